"""The clocks at which a chip trains: a loop of one product has pauses, training has none."""

from __future__ import annotations

from kernbench.hardware import Machine
from validation.sources.tables import Entry, table


class TrainingClock(Entry):
    """Keys of a machine that training changes, of one kernel library or, empty, of all."""

    library: str = ""
    changes: dict[str, float]

    def key(self) -> str:
        return self.library


_CLOCKS = table("clocks.yaml", "clocks", TrainingClock)


def training_clocks(machine: Machine) -> dict[str, float]:
    """Return the keys of a machine that training for many steps changes (docs/model/clock.md).

    Products are taken to be of 16 bits. Nothing changes where no loss is known.
    """
    if machine.sip.sustained is None:
        return {}
    of = ("", machine.spec.kernel_library)
    # Those of all first: machines are named by their changes in this order.
    clocks = sorted((clock for clock in _CLOCKS if clock.library in of), key=lambda it: it.library)
    return {name: value for clock in clocks for name, value in clock.changes.items()}
