"""What comes before what, among programs that signal each other."""

from __future__ import annotations

import pytest

from kernbench.sanitizer.ordering.segments import Segments


def steps_of_a_chain(count: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """Return the segments that are looked at where each program takes up the one before it."""
    looked_at = 0
    step = Segments._step

    def counted(segments: Segments, past: object) -> None:
        nonlocal looked_at
        looked_at += 1
        step(segments, past)  # type: ignore[arg-type]

    monkeypatch.setattr(Segments, "_step", counted)
    segments = Segments()
    first = [int(number) for number in segments.begin((count, 1, 1), None, "kernel scan")]
    released = first[0]
    for program in range(1, count):
        after = segments.acquire(first[program], [released])
        assert segments.is_before(released, after)
        assert not segments.is_before(after, released)
        released = after
    looked_at_by_neighbours = looked_at
    assert segments.is_before(first[0], released)
    assert not segments.is_before(released, first[0])
    monkeypatch.undo()
    return looked_at_by_neighbours


@pytest.mark.adr("0021-D6")
def test_a_chain_of_programs_costs_what_its_length_is_not_its_square(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    few, many = (steps_of_a_chain(count, monkeypatch) for count in (100, 400))
    assert many < 4.5 * few
