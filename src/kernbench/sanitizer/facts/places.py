"""The lines of a kernel that touch memory, by small numbers, and how errors say who did."""

from __future__ import annotations


class Places:
    """Numbers for lines, in the order in which they are first met."""

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


def coordinates(linear: int, grid: tuple[int, int, int]) -> tuple[int, int, int]:
    """Return a program's place in the grid."""
    x, y, _ = grid
    return linear % x, linear // x % y, linear // (x * y)
