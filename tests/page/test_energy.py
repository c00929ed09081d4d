"""The power of a page adds up to the energy of the run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kernbench.op_log import OpLog
from kernbench.page.contents import energy
from kernbench.saved import SavedRun
from tests.page.runs import kept, simulated, two_layers
from tests.page.test_packing import unpacked


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> SavedRun:
    path = tmp_path_factory.mktemp("energy") / "run"
    return simulated(path, two_layers, machine="a100-sxm-80g")


def test_mean_power_over_time_adds_up_to_the_energy(run: SavedRun) -> None:
    value: Any = energy(run)
    watts = {name: np.array(w) / 1000 for name, w in unpacked(value["milliwatts"]).items()}
    joules = watts["mean"].mean() * run.log.end_ps / 1e12 * run.ranks
    assert joules == pytest.approx(value["energy_j"], rel=1e-3)
    assert sum(value["parts_j"].values()) == pytest.approx(value["energy_j"])
    assert (watts["least"] <= watts["mean"]).all()
    assert (watts["mean"] <= watts["most"]).all()
    assert watts["most"].max() <= value["peak_w"] + 0.001


def test_a_machine_that_says_nothing_of_energy_has_none(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    path = tmp_path_factory.mktemp("none") / "run"
    assert energy(kept(path, OpLog(), 1)) is None
