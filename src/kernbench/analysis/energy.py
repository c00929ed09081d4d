"""The tables of a run's energy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from rich.text import Text

from kernbench.analysis.tables import SHOWN_LINES, TableColumn, fitting_table
from kernbench.errors import UsageError
from kernbench.op_log import EnergyReport, Window, energy_of
from kernbench.report import format_share

if TYPE_CHECKING:
    from rich.console import Console

    from kernbench.saved import SavedRun

_UNITS = ((1e6, "MJ"), (1e3, "kJ"), (1.0, "J"), (1e-3, "mJ"), (1e-6, "uJ"))
_SHOWN_RANKS = 8


def saved_energy(run: SavedRun, within: Window | None = None) -> EnergyReport:
    """Return the energy of a saved run, or of a window of it.

    Raises:
        UsageError: Its machine says nothing of energy, or an older kernbench saved it.
    """
    energy = energy_of(run.log, run.machine, run.ranks, within=within)
    if energy is None:
        raise no_energy(run.machine.name)
    if run.log.instances and not any(instance.template.energy_pj for instance in run.log.instances):
        raise UsageError(f"{run.path} was saved without energies; save it again")
    return energy


def no_energy(machine: str) -> UsageError:
    """Return the error for a machine without ``sip.power``."""
    return UsageError(
        f"machine {machine} says nothing of energy; add sip.power to its file, as in "
        "kernbench machine show h100-sxm"
    )


def format_joules(joules: float) -> str:
    """Return an energy.

    >>> format_joules(0.00244), format_joules(1530), format_joules(0)
    ('2.44 mJ', '1.53 kJ', '0')
    """
    if not joules:
        return "0"
    for size, unit in _UNITS:
        if joules >= 0.9995 * size:
            return f"{joules / size:.3g} {unit}"
    return f"{joules * 1e9:.3g} nJ"


def print_energy(
    energy: EnergyReport, machine: str, console: Console, cost_usd: float | None = None
) -> None:
    """Print where the energy went, what used it, and what the devices of ranks draw."""
    ranks = energy["devices"]
    said = f"{format_joules(energy['energy_j'])}, {energy['average_w']:.0f} W on average each"
    cost = "" if cost_usd is None else f", {cost_usd:.3g} USD"
    name = f"{ranks} device{'s' if ranks != 1 else ''} of {machine}"
    said = said if ranks > 1 else said.removesuffix(" each")
    console.print("", Text(f"{name}: {said}{cost}"), sep="\n")
    tables = [(_PARTS, _parts(energy)), (_USES, _uses(energy))]
    if len(energy["per_rank"]) > 1:
        tables.append((_RANKS, _ranks(energy)))
    for columns, rows in tables:
        console.print("", fitting_table(console, columns, rows), sep="\n")


_PARTS = (
    TableColumn("where the energy went", is_number=False),
    TableColumn("energy"),
    TableColumn("share"),
)


def _parts(energy: EnergyReport) -> Iterator[list[str]]:
    whole = energy["energy_j"]
    for part, joules in sorted(energy["parts_j"].items(), key=lambda pair: -pair[1]):
        yield [part, format_joules(joules), format_share(joules, whole)]


_USES = (
    TableColumn("for what", is_number=False),
    TableColumn("is a", is_number=False, only_wide=True),
    TableColumn("times", only_wide=True),
    TableColumn("energy"),
    TableColumn("share"),
    TableColumn("draws"),
    TableColumn("mostly", is_number=False),
)


def _uses(energy: EnergyReport) -> Iterator[list[str]]:
    """Return what takes energy beside the idle devices, the most first."""
    whole = energy["energy_j"]
    for use_energy in energy["uses"][:SHOWN_LINES]:
        parts: Mapping[str, float] = use_energy["parts_j"]
        yield [
            use_energy["name"],
            use_energy["kind"],
            str(use_energy["count"] or ""),
            format_joules(use_energy["energy_j"]),
            format_share(use_energy["energy_j"], whole),
            f"{use_energy['average_w']:.0f} W",
            max(parts, key=lambda part: parts[part]) if parts else "",
        ]
    rest = energy["uses"][SHOWN_LINES:]
    if rest:
        joules = sum(energy["energy_j"] for energy in rest)
        share = format_share(joules, whole)
        yield [f"({len(rest)} more)", "", "", format_joules(joules), share, "", ""]


_RANKS = (
    TableColumn("rank", is_number=False),
    TableColumn("energy"),
    TableColumn("average"),
    TableColumn("most"),
)


def _ranks(energy: EnergyReport) -> Iterator[list[str]]:
    rows: Any = energy["per_rank"]
    for row in rows[:_SHOWN_RANKS]:
        watts = [f"{row[key]:.0f} W" for key in ("average_w", "peak_w")]
        yield [str(row["rank"]), format_joules(row["energy_j"]), *watts]
    rest = rows[_SHOWN_RANKS:]
    if rest:
        mean_w = sum(item["average_w"] for item in rest) / len(rest)
        most_w = max(item["peak_w"] for item in rest)
        joules = sum(item["energy_j"] for item in rest)
        yield [f"(+ {len(rest)})", format_joules(joules), f"{mean_w:.0f} W", f"{most_w:.0f} W"]
