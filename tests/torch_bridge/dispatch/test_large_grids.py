"""What launches of many programs keep in memory."""

from __future__ import annotations

import pytest

from tests.torch_bridge.running import simulated

SIZES = (3_000_000, 3_000_016, 3_000_032)
"""Elements, of which a program has 16."""


def test_launches_without_data_hold_no_traces_that_nobody_reads(
    capsys: pytest.CaptureFixture[str],
) -> None:
    held, durations = [], []
    for data in (True, False):
        run = simulated("large_grids.py", *SIZES, data=data, check=False, machine="rtx-4090")
        _, plans, _, size_bytes = capsys.readouterr().out.split()
        assert int(plans) == len(SIZES)
        held.append(int(size_bytes))
        launched = [
            instance for instance in run.op_log.instances if instance.template.name == "scale"
        ]
        durations.append([item.template.duration_ps for item in launched])
    programs = sum(SIZES) // 16
    # With data: ids, and an address for the load and for the store, in 64 bits each.
    assert held[0] > 3 * 8 * programs
    assert held[1] < 6 * programs
    # The third launch of a size waits behind the second, whenever the first one was ready.
    assert durations[0][2::3] == durations[1][2::3]
    assert len(set(durations[0][2::3])) == len(SIZES)
