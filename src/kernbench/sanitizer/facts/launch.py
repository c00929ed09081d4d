"""How errors name what a launch does: whose it is, its lines, its programs, and elements."""

from __future__ import annotations

from dataclasses import dataclass

from kernbench.memory import Buffer
from kernbench.sanitizer.facts.order import Clock


@dataclass(frozen=True, slots=True)
class Launched:
    """Whose launch it is, as errors say it."""

    kernel: str
    rank: int = 0
    clock: Clock | None = None
    """Its place among the operations of the run; None where it stands alone."""

    def __str__(self) -> str:
        return f"kernel {self.kernel}, rank {self.rank}"

    @property
    def who(self) -> str:
        """The same for an error about several launches: with the stream and the line."""
        where = f"rank {self.rank}" if self.clock is None else self.clock.where
        return f"kernel {self.kernel}, {where}"


class Places:
    """Numbers for the lines that touch memory, in the order in which they are first met."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[str, str], int] = {}
        self._texts: list[str] = []

    def __len__(self) -> int:
        return len(self._texts)

    def number(self, name: str, verb: str) -> int:
        """Return the number of ``tt.load at x.py:3`` and what it does."""
        key = (name, verb)
        if key not in self._numbers:
            self._numbers[key] = len(self._texts)
            self._texts.append(f"{verb} in {name}")
        return self._numbers[key]

    def __getitem__(self, number: int) -> str:
        return self._texts[number]


def element(buffer: Buffer | str, byte: int, itemsize: int) -> str:
    """Return how errors name a place: ``x (4,) float32+8 (element 2)``."""
    label = buffer if isinstance(buffer, str) else buffer.label
    return f"{label}{byte:+d} (element {byte // itemsize})"
