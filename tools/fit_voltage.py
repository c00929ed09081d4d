"""Fit how devices' voltage falls with their clock, from traces that Zeus published.

    python tools/fit_voltage.py zeus/examples/research_reproducibility/zeus_nsdi23/trace

The folder is that of https://github.com/ml-energy/zeus (Apache-2.0). Training of BERT that all but
draws the limit is taken: its time is that of the clock, so that mean power is what the device draws
at any clock, and what it draws at that clock's voltage. Printed are those three numbers and the
error of the power that follows from them, beside that of energies in proportion to the clock.
"""

from __future__ import annotations

import csv
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.float64]
_AT_LIMIT = 0.85
"""Of the highest limit, that training must draw to be bound by it."""


def curves(file: Path) -> Numbers:
    """Return clock, watts, and watts without a limit, one row per limit."""
    groups = defaultdict(list)
    with file.open(newline="") as text:
        for row in csv.DictReader(text):
            if row["network"] == "bert_base_uncased":
                numbers = ("power_limit", "time_per_epoch", "average_power")
                key = row["dataset"], row["batch_size"]
                groups[key].append(tuple(float(row[number]) for number in numbers))
    result = []
    for rows in map(sorted, groups.values()):
        limit_w, base_s, top_w = rows[-1]
        if top_w > _AT_LIMIT * limit_w:
            result += [(base_s / taken_s, watts, top_w) for _, taken_s, watts in rows]
    return np.array(result)


def _error(share: Numbers, still_w: float, watts: Numbers, top: Numbers) -> float:
    """Return how far off power is, relative, whose moving part is a share of the most."""
    return float(np.sqrt(np.mean(((still_w + (top - still_w) * share) / watts - 1) ** 2)))


def main() -> None:
    """Print the best fit of each device."""
    for file in sorted(Path(sys.argv[1]).glob("summary_power_*.csv")):
        clock, watts, top = curves(file).T
        best = old = (np.inf, 0.0, 0.0, 0.0)
        for still_w in range(15, 110, 2):
            old = min(old, (_error(clock**2, still_w, watts, top), still_w, 0.0, 0.0))
            for floor in np.arange(0.6, 0.95, 0.01):
                for slope in np.arange(0.6, 3.1, 0.1):
                    voltage = np.maximum(floor, 1 - slope * (1 - clock))
                    off = _error(clock * voltage**2, still_w, watts, top)
                    best = min(best, (off, still_w, floor, slope))
        off, still_w, floor, slope = best
        print(
            f"{file.stem}: {still_w} W at any clock, floor {floor:.2f}, slope {slope:.1f}, "
            f"off by {off:.1%}; in proportion to the clock: off by {old[0]:.1%}"
        )


if __name__ == "__main__":
    main()
