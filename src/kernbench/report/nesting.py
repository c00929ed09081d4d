"""Spreads overlapping ranges over tracks on which they nest."""

from __future__ import annotations

from collections.abc import Iterable

from kernbench.op_log import HostRange


def nested_tracks(ranges: Iterable[HostRange]) -> list[list[HostRange]]:
    """Return the ranges on tracks, each on the first that it fits.

    On a track any two ranges are apart or one lies inside the other, as timelines draw them.
    """
    tracks: list[list[HostRange]] = []
    open_until: list[list[int]] = []
    for each in sorted(ranges, key=lambda it: (it.start_ps, -it.end_ps)):
        for track, ends in zip(tracks, open_until, strict=True):
            while ends and ends[-1] <= each.start_ps:
                ends.pop()
            if not ends or each.end_ps <= ends[-1]:
                track.append(each)
                ends.append(each.end_ps)
                break
        else:
            tracks.append([each])
            open_until.append([each.end_ps])
    return tracks
