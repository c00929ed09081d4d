"""The arguments of a program, and whether it reads them."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, Self

_REFUSED = 2
"""The exit status of programs that were given wrong arguments."""


class ProgramArguments(list[str]):
    """``sys.argv`` of a program; the copies for its ranks share whether one was read."""

    def __init__(self, argv: Sequence[str], looks: list[bool] | None = None) -> None:
        super().__init__(argv)
        self._looks = [] if looks is None else looks

    @property
    def was_looked_at(self) -> bool:
        """Whether the program has read more than its own name."""
        return bool(self._looks)

    def copy(self) -> Self:
        return type(self)(list.__getitem__(self, slice(None)), self._looks)

    def __reduce__(self) -> Any:
        # Other processes have arguments of their own.
        return list, (list.__getitem__(self, slice(None)),)

    def _look(self) -> None:
        """Note that somebody reads them; PyTorch's compiler looks for names of benchmarks."""
        if sys._getframe(2).f_globals.get("__name__", "").partition(".")[0] != "torch":
            self._looks.append(True)

    def __iter__(self) -> Iterator[str]:
        self._look()
        return super().__iter__()

    def __getitem__(self, index: Any) -> Any:
        if index != 0:
            self._look()
        return super().__getitem__(index)

    def __len__(self) -> int:
        self._look()
        return super().__len__()


def unseen_options(argv: ProgramArguments, options: Collection[str]) -> list[str]:
    """Return a remark on ``options`` of kernbench that a program was given and did not look at."""
    return [] if argv.was_looked_at else _misplaced(argv, options, "does not look at its arguments")


def exit_status(end: SystemExit, argv: Sequence[str], options: Collection[str] = ()) -> int:
    """Return the exit status of a program that ended by ``SystemExit``; print what it has to say.

    One that refused its arguments, as argparse does, may have been given ``options`` of kernbench.
    """
    if end.code is None or isinstance(end.code, int):
        if end.code == _REFUSED:
            print(*_misplaced(argv, options, "refused its arguments"), sep="\n", file=sys.stderr)
        return end.code or 0
    print(end.code, file=sys.stderr)
    return 1


def _misplaced(argv: Sequence[str], options: Collection[str], did: str) -> list[str]:
    program, *given = list(argv)
    ours = [each for each in given if each.partition("=")[0] in options]
    if not ours:
        return []
    return [
        f"{', '.join(ours)} went to {Path(program).name}, which {did}; options of kernbench come "
        "before the program"
    ]
