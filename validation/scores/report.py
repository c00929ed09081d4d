"""The error table as text, as JSON, as a page of the documentation, and as a plot."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

from kernbench.accuracy.rows import Category, Machines, presets
from kernbench.accuracy.score import Errors, Scored, columns, furthest, measure, percent_of, reasons
from validation.predictors.families.chosen import family_of
from validation.scores.baselines import roofline
from validation.scores.families import families_of
from validation.scores.goals import goals_of
from validation.scores.left_out import left_out_tables, seen_table
from validation.scores.memories import fitting, peaks_of
from validation.scores.speedups import speedups_of
from validation.scores.sweeps import sweeps_of


@dataclass(frozen=True, slots=True)
class Group:
    """Rows of one category, device, source, op and dtype."""

    category: Category
    device: str
    source: str
    op: str
    dtype: str

    @classmethod
    def of(cls, scored: Scored) -> Group:
        row = scored.row
        if row.category is Category.PROGRAMS:
            # Their operations are commands, and their dtypes sentences.
            family = family_of(row, scored.answer.why_not)
            return cls(row.category, row.device, row.source, family.value, "")
        return cls(row.category, row.device, row.source, row.op, row.dtype)


def grouped(scored: Iterable[Scored]) -> dict[Group, list[Scored]]:
    """Return the rows by group, sorted by category and name."""
    values: dict[Group, list[Scored]] = {}
    for entry in scored:
        values.setdefault(Group.of(entry), []).append(entry)
    key = list(Category).index
    return dict(
        sorted(
            values.items(),
            key=lambda item: (key(item[0].category), item[0].device, item[0].source, item[0].op,
                              item[0].dtype),
        )
    )  # fmt: skip


_HEAD = (
    "rows", "unanswered", "MAPE", "median", "p90", "bias", "Spearman", "roofline", "run",
)  # fmt: skip
_MOST_REASONS = 12


def to_json(scored: Sequence[Scored], machines: Machines | None = None) -> dict[str, Any]:
    """Return errors per category and per group in percent, goals, and sweeps of splits."""
    machines = machines or presets()
    categories = {}
    for category in Category:
        rows = [item for item in scored if item.row.category is category]
        if rows:
            errors = measure(rows)
            categories[category.value] = {
                name: getattr(errors, name)
                for name in ("rows", "unanswered", "mape", "median", "p90")
            }
    groups = []
    for group, rows in grouped(scored).items():
        errors = measure(rows)
        groups.append(
            {
                "category": group.category.value,
                "device": group.device,
                "source": group.source,
                "op": group.op,
                "dtype": group.dtype,
                **{
                    name: getattr(errors, name)
                    for name in (
                        "rows", "unanswered", "mape", "median", "p90", "bias", "spearman",
                    )
                },
            }
        )  # fmt: skip
    sweeps = sweeps_of(scored)
    return {
        "categories": categories,
        "groups": groups,
        "goals": [asdict(goal) for goal in goals_of(scored, sweeps, machines)],
        "tp_sweeps": None if sweeps is None else asdict(sweeps),
        "programs": [asdict(family) for family in families_of(scored)],
        "speedups": [asdict(speedup) for speedup in speedups_of(scored)],
        "composed": [
            {"source": source, "device": device, "op": op, "rows": rows}
            for (source, device, op), rows in _composed(scored).items()
        ],
    }


def _composed(scored: Sequence[Scored]) -> dict[tuple[str, str, str], int]:
    """Return how many rows of a source, device and operation formulas have a time for."""
    groups = (Group.of(item) for item in scored if item.answer.composed_us is not None)
    return dict(sorted(Counter((group.source, group.device, group.op) for group in groups).items()))


def table(scored: Sequence[Scored], header: Sequence[str], machines: Machines) -> list[list[str]]:
    """Return the lines of the error table as cells: every group, then every category."""
    lines = [[*header, *_HEAD]]
    previous: Category | None = None
    for group, rows in grouped(scored).items():
        if previous is not None and group.category is not previous:
            lines.append(_total(scored, previous, len(header)))
        previous = group.category
        cells = [group.category.value, group.device, group.source, f"{group.op} {group.dtype}"]
        lines.append(
            [*cells, *_errors(measure(rows)), _baseline(roofline(rows, machines)), _ran(rows)]
        )
    if previous is not None:
        lines.append(_total(scored, previous, len(header)))
    return lines


def _total(scored: Sequence[Scored], category: Category, width: int) -> list[str]:
    rows = [item for item in scored if item.row.category is category]
    cells = [category.value, "all", *[""] * (width - 2)]
    return [*cells, *_errors(measure(rows)), "", ""]


def _ran(rows: Iterable[Scored]) -> str:
    """Return what was run for rows, or that they were composed, the most common first."""
    answers = (row.answer for row in rows)
    kinds = Counter(
        answer.ran.value if answer.ran is not None else "composed"
        for answer in answers
        if answer.ran is not None or answer.composed_us is not None
    )
    return ", ".join(kind for kind, _ in kinds.most_common()) or "-"


def _errors(errors: Errors) -> list[str]:
    percent = [percent_of(value) for value in (errors.mape, errors.median, errors.p90)]
    bias = "-" if errors.bias is None else f"{errors.bias:+.1f}"
    spearman = "-" if errors.spearman is None else f"{errors.spearman:.3f}"
    return [str(errors.rows), str(errors.unanswered), *percent, bias, spearman]


def _baseline(errors: Errors | None) -> str:
    return (
        ""
        if errors is None
        else "/".join(map(percent_of, (errors.mape, errors.median, errors.p90)))
    )


HEADER = ("category", "device", "source", "op")


def render_text(scored: Sequence[Scored], worst: int, machines: Machines | None = None) -> str:
    """Return what the command prints."""
    lines = table(scored, HEADER, machines or presets())
    text = columns(lines, len(HEADER))
    text += ["", "errors in %; roofline: MAPE/median/p90 of the same rows"]
    for said, cells in _more(scored, machines or presets()):
        text += ["", f"{said}:", *columns(cells, 1)]
    pairs = reasons(scored)
    if pairs:
        text += ["", "unanswered rows:"]
        text += [f"{count:>7}  {reason}" for count, reason in pairs[:_MOST_REASONS]]
        left = sum(count for count, _ in pairs[_MOST_REASONS:])
        text += [f"{left:>7}  for other reasons"] if left else []
    if worst:
        text += ["", f"the {worst} rows that are furthest off:", *furthest(scored, worst)]
    return "\n".join(text)


def _more(
    scored: Sequence[Scored], machines: Machines, programs: Path | None = None
) -> list[tuple[str, list[list[str]]]]:
    """Return the tables after the one of errors, each with its title."""
    tables = left_out_tables(scored, machines, programs)
    sweeps = sweeps_of(scored)
    goals = goals_of(scored, sweeps, machines)
    if goals:
        lines = [["goal", "rows", "limit", "reached", "met"]]
        lines += [
            [goal.name, str(goal.rows), goal.limit, goal.reached, "yes" if goal.met else "no"]
            for goal in goals
        ]
        tables.append(("goals", lines))
    if sweeps is not None:
        lines = [["choice of a split (TP x PP x CP x DP)", "sweeps", "model right", "naive right"]]
        lines += [
            [question.name, str(question.sweeps), str(question.right), str(question.naive_right)]
            for question in sweeps.questions
        ]
        tables.append(("sweeps of splits", lines))
    families = families_of(scored)
    if families:
        lines = [["family", "rows", "unanswered", "MAPE", "worst", "why not"]]
        lines += [
            [
                family.name, str(family.rows), str(family.unanswered), percent_of(family.mape),
                percent_of(family.worst), family.why_not,
            ]
            for family in families
        ]  # fmt: skip
        tables.append(("whole programs", lines))
    speedups = speedups_of(scored)
    if speedups:
        lines = [["compiled over eager", "device", "pairs", "measured", "modeled", "MAPE"]]
        lines += [
            [
                speedup.source, speedup.device, str(speedup.pairs), f"{speedup.measured:.2f}x",
                f"{speedup.modeled:.2f}x", percent_of(speedup.mape),
            ]
            for speedup in speedups
        ]  # fmt: skip
        tables.append(("speed-ups of compiled programs, geometric means", lines))
    tables += _memories(scored)
    composed = _composed(scored)
    if composed:
        lines = [["source", "device", "op", "rows"]]
        lines += [[*names, str(count)] for names, count in composed.items()]
        tables.append((_COMPOSED, lines))
    return tables + seen_table(scored, machines)


_COMPOSED = (
    "rows for which nothing was run: formulas have a time for them, in no error of this page"
)


def _memories(scored: Sequence[Scored]) -> list[tuple[str, list[list[str]]]]:
    """Return the table of peaks of memory, if there are any."""
    peaks = peaks_of(scored)
    if not peaks:
        return []
    lines = [["run", "devices", "split", "recomputed", "measured", "modeled", "error"]]
    for peak in peaks:
        fields = peak.row.fields
        split = (f"{name} {fields[name]}" for name in ("fsdp", "dp", "tp", "pp", "cp"))
        lines.append(
            [
                f"{peak.row.source} {fields['model']}",
                fields["n_devices"],
                " ".join(part for part in split if not part.endswith((" ", " 1"))),
                fields["activation_checkpointing"],
                f"{peak.measured:.1f}",
                f"{peak.modeled:.1f}",
                f"{peak.modeled / peak.measured - 1:+.0%}",
            ]
        )
    error = sum(abs(item.modeled / item.measured - 1) for item in peaks) / len(peaks)
    ended, full = fitting(scored)
    lines.append(["all", f"{len(peaks)} rows", "", "", "", "", f"{100 * error:.1f} %"])
    lines.append(["fits", f"{ended} of {ended + full}", "programs that a source ran", *[""] * 4])
    return [("peak memory of a rank in training, GiB", lines)]


def render_page(
    scored: Sequence[Scored],
    about: str,
    machines: Machines | None = None,
    programs: Path | None = None,
) -> str:
    """Return the table as a page of the documentation, with ``about`` as its text.

    ``programs`` is the folder of programs, for what PyTorch estimates of them.
    """
    lines = table(scored, HEADER, machines or presets())
    text = [about.rstrip()]
    for said, cells in _more(scored, machines or presets(), programs):
        text += ["", f"## {said[0].upper()}{said[1:]}", "", *_marked_down(cells, 1)]
    text += ["", "## Errors", "", *_marked_down(lines, len(HEADER))]
    pairs = reasons(scored)
    if pairs:
        text += ["", "## Rows without an answer", "", "| rows | why |", "| ---: | --- |"]
        text += [f"| {count} | {reason} |" for count, reason in pairs]
    return "\n".join(text) + "\n"


def _marked_down(lines: Sequence[Sequence[str]], num_left: int) -> list[str]:
    cells = ["| " + " | ".join(line) + " |" for line in lines]
    align = ["---"] * num_left + ["---:"] * (len(lines[0]) - num_left)
    return [cells[0], "| " + " | ".join(align) + " |", *cells[1:]]


def dump_plot(scored: Sequence[Scored], out: BinaryIO, format: str) -> None:
    """Plot modeled against measured times into an open file, a colour per category and device."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 7), layout="constrained")
    axes = figure.add_subplot(xscale="log", yscale="log")
    answered = [item for item in scored if item.answer.time_us is not None]
    named: dict[str, list[Scored]] = {}
    for item in answered:
        named.setdefault(f"{item.row.category.value} {item.row.device}", []).append(item)
    for name, rows in sorted(named.items()):
        measured = [row.row.time_us for row in rows]
        modeled = [row.answer.time_us or 0.0 for row in rows]
        axes.scatter(measured, modeled, s=5, alpha=0.5, label=name)
    times = [scored.row.time_us for scored in answered] or [1.0]
    axes.plot([min(times), max(times)], [min(times), max(times)], color="black", linewidth=0.8)
    axes.set(xlabel="measured time, us", ylabel="modeled time, us")
    axes.legend(fontsize=6, loc="upper left")
    figure.savefig(out, format=format)
