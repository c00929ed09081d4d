"""What the sanitizer knows about one launch while it runs, and how its errors name things."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from kernbench.commands import SourceLine
from kernbench.memory import Buffer
from kernbench.sanitizer.facts.order import Clock

if TYPE_CHECKING:
    from kernbench.sanitizer.ordering.ordered_map import OrderedMap
    from kernbench.sanitizer.ordering.programs import ProgramOrder
    from kernbench.sanitizer.ordering.races import Touched
    from kernbench.sanitizer.ordering.trace_touches import SeenTouches

Array = npt.NDArray[Any]


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


class LaunchState:
    """The state of one launch; a new one for every launch."""

    def __init__(
        self,
        launched: Launched,
        touched: Callable[[Buffer], Touched | OrderedMap | None],
        seen: SeenTouches,
        on_non_finite: Callable[[str], None] | None,
        order: ProgramOrder | None = None,
        on_conversion: Callable[[str], None] | None = None,
    ) -> None:
        self.launched = launched
        self.touched = touched
        """Gives the map of a buffer in which programs may race; None where they cannot."""
        self.seen = seen
        """What accesses by data have touched."""
        self.order = order
        """What programs tell each other by atomics; None where nobody listens."""
        self.unwritten: dict[SourceLine, str] = {}
        """By the line of a load, the first place it read that nothing had written, in words."""
        self.issued: tuple[Array, Array] | None = None
        """Of a write that takes effect later: the programs, and their segments at the time."""
        self.on_non_finite = on_non_finite
        """Who hears of the first NaN; None once somebody has, or if nobody wants to."""
        self.on_conversion = on_conversion
        """Who hears of the first float that no integer holds; None as above."""
        self.converted: dict[SourceLine, str] = {}
        """By the line of a conversion, the first such number and what became of it, in words."""
        self.has_read_non_finite: Array = np.zeros(1, np.bool_)
        """Per program of the chunk: whether it has read NaN or Inf."""
        self.first_site: Array = np.zeros(1, np.int64)
        """Per program of the chunk: the command that made NaN first, from 1; 0 for none."""

    def actors(self, programs: Array, *, plain: bool) -> Array:
        """Return who accesses memory, as the maps of :attr:`touched` count them.

        An atomic need not know what the program has found so far, a ``plain`` access has to.
        """
        if self.order is None:
            return programs
        if self.issued is not None:
            known, segments = self.issued
            return np.asarray(segments[np.searchsorted(known, programs)])
        return self.order.of(programs) if plain else np.asarray(self.order.current[programs])


def written_of(buffer: Buffer) -> Array | None:
    """Return the buffer's count of written bytes, which is given up once all of them are."""
    written = buffer.written
    # Most often the end is written last.
    if written is not None and len(written) and written[-1] and written.all():
        buffer.written = written = None
    return written


def element(buffer: Buffer, byte: int, itemsize: int) -> str:
    """Return how errors name a place: ``x (4,) float32+8 (element 2)``."""
    return f"{buffer.label}{byte:+d} (element {byte // itemsize})"
