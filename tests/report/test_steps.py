"""The steps of a run in its report: a line each, and what more of them take."""

from __future__ import annotations

from typing import Any

import pytest
from rich.console import Console

from kernbench import RuntimeContext
from kernbench.op_log import HostRange
from kernbench.report import build_report, peaks_of, print_report

STEPS, SIZE = 10, 256


@pytest.mark.adr("0260-D3")
def test_a_report_has_a_line_a_step_and_what_more_of_them_take(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with RuntimeContext("h100-sxm:1", data=False) as torch:
        x = torch.zeros(SIZE, SIZE)
        torch.ahbm.synchronize()
        for step in range(STEPS):
            begun_ps = torch.run.simulation.now_ps
            for _ in range(3 - min(step, 2)):
                x @ x
            torch.ahbm.synchronize()
            end_ps = torch.run.simulation.now_ps
            torch.op_log.host_ranges.append(HostRange(0, f"step {step}", begun_ps, end_ps))
    report: Any = torch.report()
    result = report["steps"]
    ends = [host_range.end_ps - host_range.start_ps for host_range in torch.op_log.host_ranges]
    assert [1000 * item["time_ns"] for item in result["steps"]] == ends
    # Products of square matrices: 2 n^3, one in a steady step.
    peak = torch.machine.sip.peak_flops_per_s("float16")
    steady = result["steps"][result["steady"]]
    assert result["steady"] >= 2
    assert steady["of_peak"] == pytest.approx(2 * SIZE**3 / float(peak) / (steady["time_ns"] / 1e9))
    assert 0 < result["step_j"] < report["energy"]["energy_j"] / STEPS * 1.1
    whole = result["startup_ns"] + sum(item["time_ns"] for item in result["steps"])
    assert whole == pytest.approx(report["time_ns"])
    again = build_report(torch.op_log, torch.machine, ranks=1, wall_s=0.0)
    assert again["steps"] == result
    print_report(again, peaks_of(torch.machine), Console(width=100))
    shown = capsys.readouterr().out
    for said in ("before the first", "step 2", "(steady)", "+ 2 more", "1,000 more steps as step"):
        assert said in shown
