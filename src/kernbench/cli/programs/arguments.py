"""The arguments of a program, and whether it reads them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, Self


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

    def __iter__(self) -> Iterator[str]:
        self._looks.append(True)
        return super().__iter__()

    def __getitem__(self, index: Any) -> Any:
        if index != 0:
            self._looks.append(True)
        return super().__getitem__(index)

    def __len__(self) -> int:
        self._looks.append(True)
        return super().__len__()


def unseen_options(
    argv: ProgramArguments, script: str, command: str, options: Collection[str]
) -> list[str]:
    """Return a remark on ``options`` of kernbench that a program was given and ignored."""
    given = list.__getitem__(argv, slice(1, None))
    ours = [each for each in given if each.partition("=")[0] in options]
    if not ours or argv.was_looked_at:
        return []
    return [
        f"{', '.join(ours)} went to {Path(script).name}, which does not look at its arguments; "
        f"options of kernbench {command} come before the program"
    ]
