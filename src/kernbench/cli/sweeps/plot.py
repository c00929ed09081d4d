"""A picture of a sweep: one column of its table over one axis, a line for each of the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kernbench.errors import UnknownNameError, UsageError, nearest
from kernbench.outputs import whole_file

_MOST_LINES = 12
_RATIO_OF_LOG = 10
"""An axis whose largest value is this many times the smallest is shown by its logarithm."""
_UNITS = {"_ns": (1e3, "us"), "_bytes": (1e6, "MB"), "_mb": (1, "MB"), "_s": (1, "s")}

Row = Mapping[str, Any]


def format_of_plot(path: Path) -> str:
    """Return the image format by a plot's file name.

    Raises:
        UsageError: matplotlib is not installed, or does not know the format.
    """
    try:
        from matplotlib.backend_bases import FigureCanvasBase
    except ImportError:
        raise UsageError(
            "a plot needs matplotlib; install kernbench with its plots extra: "
            "pip install 'kernbench[plots]'"
        ) from None
    known = FigureCanvasBase.get_supported_filetypes()
    text = path.suffix.removeprefix(".").lower() or "png"
    if text not in known:
        raise UsageError(f"--plot {path}: no plot is a .{text}: {nearest(text, known)}")
    return text


def write_plot(rows: Sequence[Row], axes: Sequence[str], metric: str, path: str) -> None:
    """Draw ``metric`` of the points that are done.

    The axis with the most numbers is drawn to the right; the others make lines.

    Raises:
        UnknownNameError: No such column.
        UsageError: There is nothing to draw.
    """
    from matplotlib.figure import Figure

    done = [row for row in rows if row["status"] == "done"]
    if not done:
        raise UsageError("no point is done; there is nothing to plot")
    columns = [name for name, value in done[0].items() if isinstance(value, int | float)]
    if metric not in columns:
        raise UnknownNameError(
            f"--metric {metric}: no such column of numbers; {nearest(metric, columns)}"
        )
    # The axis with the most values, numbers first.
    along = max(axes, key=lambda name: (_is_number(done, name), len({row[name] for row in done})))
    factor, unit = next((unit for end, unit in _UNITS.items() if metric.endswith(end)), (1, ""))
    figure = Figure(figsize=(7, 4.2), layout="constrained")
    drawn = figure.add_subplot()
    for label, line in _lines(done, [axis for axis in axes if axis != along]).items():
        line = (
            sorted(line, key=lambda row: _number(row[along])) if _is_number(done, along) else line
        )
        places = [
            _number(row[along]) if _is_number(done, along) else str(row[along]) for row in line
        ]
        drawn.plot(places, [row[metric] / factor for row in line], marker="o", label=label)
    if _is_number(done, along) and _is_wide([_number(row[along]) for row in done]):
        drawn.set_xscale("log", base=2)
        ticks = sorted({_number(row[along]) for row in done})
        drawn.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    if _is_wide([row[metric] for row in done]):
        drawn.set_yscale("log")
    else:
        drawn.set_ylim(bottom=0)
    drawn.set_xlabel(along)
    name = metric.removesuffix("_ns").removesuffix("_bytes").removesuffix("_mb").removesuffix("_s")
    drawn.set_ylabel(f"{name} ({unit})" if unit else name)
    drawn.grid(visible=True, alpha=0.3)
    if len(axes) > 1:
        drawn.legend(fontsize="small")
    with whole_file(path) as file:
        figure.savefig(file, format=format_of_plot(Path(path)), dpi=150)


def _lines(rows: Sequence[Row], names: Sequence[str]) -> dict[str, list[Row]]:
    lines: dict[str, list[Row]] = {}
    for row in rows:
        lines.setdefault(", ".join(f"{name}={row[name]}" for name in names), []).append(row)
    if len(lines) > _MOST_LINES:
        raise UsageError(
            f"the plot would have {len(lines)} lines, but {_MOST_LINES} are the most; plot a grid "
            "with fewer axes, or the table with a tool of your own"
        )
    return lines


def _is_number(rows: Sequence[Row], name: str) -> bool:
    try:
        [_number(row[name]) for row in rows]
    except ValueError:
        return False
    return True


def _number(value: Any) -> float:
    return float(int(value, 0)) if isinstance(value, str) and value[:2] == "0x" else float(value)


def _is_wide(values: Sequence[float]) -> bool:
    return min(values) > 0 and max(values) / min(values) >= _RATIO_OF_LOG


def write_front(
    tried: Sequence[tuple[Row, Sequence[float]]],
    best: Sequence[tuple[Row, Sequence[float]]],
    goals: Sequence[str],
    path: str,
) -> None:
    """Draw all points of a search by its first two goals, or one goal by trial, and the best.

    Raises:
        OutputError: The file cannot be written.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.2), layout="constrained")
    drawn = figure.add_subplot()
    numbers = [values for _, values in tried]
    if len(goals) == 1:
        least = [min(item[0] for item in numbers[: count + 1]) for count in range(len(numbers))]
        drawn.plot([item[0] for item in numbers], ".", alpha=0.6, label="trial")
        drawn.plot(least, drawstyle="steps-post", label="least so far")
        drawn.set(xlabel="trial", ylabel=_goal_label(goals[0]))
    else:
        drawn.plot(
            *zip(*(item[:2] for item in numbers), strict=True), ".", alpha=0.6, label="trial"
        )
        front = sorted(tuple(values[:2]) for _, values in best)
        drawn.plot(*zip(*front, strict=True), "o-", drawstyle="steps-post", label="Pareto front")
        drawn.set(xlabel=_goal_label(goals[0]), ylabel=_goal_label(goals[1]))
    drawn.grid(visible=True, alpha=0.3)
    drawn.legend(fontsize="small")
    with whole_file(path) as file:
        figure.savefig(file, format=format_of_plot(Path(path)), dpi=150)


def _goal_label(goal: str) -> str:
    return {"time": "time (ns)", "memory": "device memory (bytes)"}.get(goal, goal)
