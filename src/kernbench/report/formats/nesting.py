"""Ranges that may cross, on tracks on which none does."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeVar


class Ranged(Protocol):
    """What begins and ends."""

    @property
    def start_ps(self) -> int: ...
    @property
    def end_ps(self) -> int: ...


Range = TypeVar("Range", bound=Ranged)


def nested_tracks(ranges: Iterable[Range]) -> list[list[Range]]:
    """Return the ranges on tracks, each on the first that it fits.

    On a track any two ranges are apart or one lies inside the other, as timelines draw them.
    """
    tracks: list[list[Range]] = []
    open_until: list[list[int]] = []
    for item in sorted(ranges, key=lambda it: (it.start_ps, -it.end_ps)):
        for track, ends in zip(tracks, open_until, strict=True):
            while ends and ends[-1] <= item.start_ps:
                ends.pop()
            if not ends or item.end_ps <= ends[-1]:
                track.append(item)
                ends.append(item.end_ps)
                break
        else:
            tracks.append([item])
            open_until.append([item.end_ps])
    return tracks
