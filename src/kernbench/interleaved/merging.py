"""Strands that did alike become one group again, so that the scheduler times them once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from kernbench.commands import ProgramGroup
from kernbench.interleaved.recording import look
from kernbench.replay import Joining, NotAlikeError, outline


def merge_groups(groups: Sequence[ProgramGroup]) -> tuple[ProgramGroup, ...]:
    """Return the groups, those whose commands look alike as one, by their lowest program."""
    alike: dict[Any, list[ProgramGroup]] = {}
    for group in groups:
        key = tuple(look(command, whole=True) for command in group.body)
        alike.setdefault(key, []).append(group)
    merged = [group for same in alike.values() for group in _merged(same)]
    merged.sort(key=lambda group: int(group.program_ids[0]))
    return tuple(merged)


def _merged(groups: list[ProgramGroup]) -> list[ProgramGroup]:
    """Return groups that look alike as one, or as few as can be joined."""
    if len(groups) == 1:
        return groups
    try:
        return [_joined(groups)]
    except NotAlikeError:
        # Seldom: what is data in one group was decided in another.
        apart: dict[Any, list[ProgramGroup]] = {}
        for group in groups:
            apart.setdefault(outline(group.body), []).append(group)
        return [_joined(each) for each in apart.values()]


def _joined(groups: list[ProgramGroup]) -> ProgramGroup:
    ids = np.concatenate([group.program_ids for group in groups])
    joining = Joining([len(group.program_ids) for group in groups], np.argsort(ids))
    return ProgramGroup(np.sort(ids), joining.values([group.body for group in groups]))
