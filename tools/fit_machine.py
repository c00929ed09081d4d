"""Fit the named constants of a preset to measured GEMMs, and score them on rows kept apart.

    python tools/fit_machine.py MACHINE GEMM.csv --source aic-gemm --rows 80

Rows go to four folds by a hash of their weight's shape (NxK): fold 0 is scored on, the others are
fitted to. The model is the engine itself; each round fits with the best few tiles of every row and
then looks for the best tiles again. Needs scipy. Prints the constants and both errors; putting them
into the preset, with their source, is up to you.
"""

from __future__ import annotations

import argparse
import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import yaml
from scipy.optimize import least_squares

from kernbench.hardware import Machine, load_machine, parse_machine
from kernbench.ops import GemmTile
from kernbench.validation import Category, Errors, Row, errors_of, read_rows
from kernbench.validation.devices import known_devices
from kernbench.validation.gemm import DTYPES, GemmTuner, Problem, tiles
from kernbench.validation.harness import gemm_harness

# Key path inside ``sip``, and whether it is a share. Latencies of HBM and cache are one constant.
CONSTANTS = (
    ("front_end_us", False),
    ("queued_front_end_us", False),
    ("pe.gemm.efficiency", True),
    ("cube.hbm_short_run_efficiency", True),
    ("cube.hbm_latency_ns", False),
    ("cache.bandwidth_gbps", False),
    ("sustained.clock_loss", True),
)
_TIED = {"cube.hbm_latency_ns": "cache.latency_ns"}
_KEPT_TILES = 3
_LEAST_K = 256


@dataclass(frozen=True)
class Sample:
    """A row, its problem, and the tiles that may be the fastest for it."""

    row: Row
    problem: Problem
    tiles: tuple[GemmTile, ...]


class Fit:
    """The constants of one machine, and the samples that they are fitted to."""

    def __init__(self, machine: str) -> None:
        self.spec = load_machine(machine, 1).spec
        self.tuner = GemmTuner()
        # Traces do not depend on the constants: keep them all.
        self.traces: dict[object, object] = {}
        trace = self.tuner._trace
        self.tuner._traces = lambda *key: (  # type: ignore[assignment, misc]
            self.traces.get(key) or self.traces.setdefault(key, trace(*key))
        )
        sip = self.spec.sip.model_dump(mode="json")
        self.start = np.array([float(_get(sip, key)) for key, _ in CONSTANTS])

    def machine(self, values: Sequence[float]) -> Machine:
        """Return the machine with other constants."""
        data = self.spec.model_dump(mode="json")
        for (key, _), value in zip(CONSTANTS, values, strict=True):
            number = float(f"{value:.5g}")
            for each in (key, _TIED.get(key)):
                if each is not None:
                    _set(data["sip"], each, number)
        streams = data["sip"]["cube"]["hbm_efficiency"]
        short = data["sip"]["cube"]["hbm_short_run_efficiency"]
        data["sip"]["cube"]["hbm_efficiency"] = max(streams, short)
        return parse_machine(yaml.safe_dump(data), self.spec.name, 1)

    def sample(self, row: Row, machine: Machine) -> Sample:
        problem = Problem(row.integer("m"), row.integer("n"), row.integer("k"), DTYPES[row.dtype])
        fitting = (
            tile
            for tile in tiles(problem, machine.sip)
            if tile.split_k == 1 or tile.steps(problem.k) * tile.block_k >= _LEAST_K
        )
        return Sample(row, problem, tuple(fitting))

    def times_us(self, sample: Sample, machine: Machine) -> list[float]:
        """Return the time that each of a sample's tiles takes in its source's harness."""
        problem = sample.problem
        harness = gemm_harness(sample.row.source, machine.name)
        warm = harness.warm_share(problem.k * problem.n * problem.dtype.itemsize, machine.sip)
        return [
            harness.time_us(self.tuner.time_ps(problem, tile, machine, warm) / 1e6)
            for tile in sample.tiles
        ]

    def best_us(self, samples: Sequence[Sample], machine: Machine) -> np.ndarray:
        return np.array([min(self.times_us(each, machine)) for each in samples])

    def narrowed(self, samples: Sequence[Sample], machine: Machine) -> list[Sample]:
        """Return the samples with their fastest tiles only."""
        found = []
        for each in samples:
            order = np.argsort(self.times_us(each, machine))[:_KEPT_TILES]
            found.append(Sample(each.row, each.problem, tuple(each.tiles[i] for i in order)))
        return found

    def run(self, rows: Sequence[Row], rounds: int) -> np.ndarray:
        """Return the constants that fit ``rows`` best."""
        values = self.start.copy()
        samples = [self.sample(row, self.machine(values)) for row in rows]
        measured = np.array([row.time_us for row in rows])
        for number in range(rounds):
            machine = self.machine(values)
            few = self.narrowed(samples, machine)
            print(f"round {number}: {_text(errors_of(self.best_us(few, machine), measured))}")
            base = values.copy()
            upper = np.array(
                [
                    min(3.0, 1 / x) if share else 3.0
                    for x, (_, share) in zip(base, CONSTANTS, strict=True)
                ]
            )
            solved = least_squares(
                lambda z, few=few, base=base: np.log(
                    self.best_us(few, self.machine(z * base)) / measured
                ),
                np.minimum(np.ones(len(base)), upper - 1e-6),
                bounds=(0.3, upper),
                loss="soft_l1",
                f_scale=0.05,
                diff_step=0.02,
                max_nfev=7,
            )
            values = solved.x * base
        return values


def _get(data: dict, key: str) -> float:
    for part in key.split("."):
        data = data[part]
    return data  # type: ignore[return-value]


def _set(data: dict, key: str, value: float) -> None:
    *groups, last = key.split(".")
    for part in groups:
        data = data[part]
    data[last] = value


def fold(row: Row) -> int:
    """Return which of four parts a row is in: whole weight shapes stay together."""
    name = f"{row.fields['n']}x{row.fields['k']}"
    return int(hashlib.md5(name.encode()).hexdigest(), 16) % 4


def _text(found: Errors) -> str:
    return (
        f"MAPE {found.mape:.2f} median {found.median:.2f} p90 {found.p90:.2f} "
        f"bias {found.bias:+.2f} ({found.rows} rows)"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("machine")
    parser.add_argument("data")
    parser.add_argument("--source", default="aic-gemm")
    parser.add_argument("--rows", type=int, default=80, help="rows to fit to, and to score on")
    parser.add_argument("--rounds", type=int, default=2)
    given = parser.parse_args()
    devices = {each for each, name in known_devices().items() if name == given.machine}
    rows = [
        row
        for row in read_rows([given.data])
        if row.category is Category.GEMM and row.device in devices and row.source == given.source
    ]
    random.Random(1).shuffle(rows)
    fit = Fit(given.machine)
    values = fit.run([row for row in rows if fold(row) != 0][: given.rows], given.rounds)
    apart = [row for row in rows if fold(row) == 0][: given.rows]
    measured = np.array([row.time_us for row in apart])
    for label, constants in (("as the preset is", fit.start), ("fitted", values)):
        machine = fit.machine(constants)
        found = errors_of(fit.best_us([fit.sample(r, machine) for r in apart], machine), measured)
        print(f"kept apart, {label}: {_text(found)}")
    for (key, _), value in zip(CONSTANTS, values, strict=True):
        print(f"sip.{key}: {value:.4g}")


if __name__ == "__main__":
    main()
