"""What the devices of a run draw over time, and where their energy goes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kernbench.op_log import energy_of, of_all, power_over_time
from kernbench.page.packing import packed

if TYPE_CHECKING:
    from kernbench.saved import SavedRun

BINS = 300
"""Parts of the run, each with its mean power."""
MOST_USES = 40


def energy(run: SavedRun) -> dict[str, Any] | None:
    """Return the energy of a run, and the power of a device over time: mean, least, most of all.

    None: the run's machine says nothing of energy, or the run was saved without.
    """
    energy_report = energy_of(run.log, run.machine, run.ranks)
    is_counted = any(instance.template.energy_pj for instance in run.log.instances)
    if energy_report is None or not is_counted:
        return None
    if run.log.running is not None:
        energy_report = of_all(energy_report, run.log.running)
    edges = np.linspace(0, run.log.end_ps, BINS + 1)
    rows = []
    curves = power_over_time(run.log, run.machine, run.ranks)
    for times_ps, watts in map(curves.__getitem__, run.log.ranks_of(run.ranks)):
        drawn = np.concatenate([[0.0], np.cumsum(np.diff(times_ps) * watts[:-1])])
        rows.append(np.diff(np.interp(edges, times_ps, drawn)) / np.diff(edges))
    by_rank = np.stack(rows)
    milliwatts = {
        name: np.rint(values * 1000).astype(np.int64)
        for name, values in (
            ("mean", by_rank.mean(axis=0)),
            ("least", by_rank.min(axis=0)),
            ("most", by_rank.max(axis=0)),
        )
    }
    power = run.machine.sip.power
    return {
        **{name: energy_report[name] for name in ("energy_j", "average_w", "parts_j")},
        "uses": energy_report["uses"][:MOST_USES],
        "num_uses": len(energy_report["uses"]),
        "peak_w": max(rank_energy["peak_w"] for rank_energy in energy_report["per_rank"]),
        "board_w": None if power is None else float(power.board_w),
        "bins": BINS,
        "milliwatts": packed(milliwatts),
    }
