"""Results of a sweep as rows: on the disk, in a table file, on the terminal."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from kernbench.cli.sweeps.points import Point, Settings, SweptProgram
from kernbench.errors import UsageError
from kernbench.outputs import whole_file

_MOST_SHOWN = 40
_MOST_ERRORS = 5
_LEAST_COLUMNS = 80
"""Where more is shown than times."""
_ENDINGS = (".parquet", ".csv")


def row_of(point: Point, answer: Mapping[str, Any], limits: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a file keeps of a point beside its report."""
    row = {
        "key": point.key,
        "values": dict(point.values),
        "machine": point.job["machine"],
        "ranks": point.job["ranks"],
        "status": answer["status"],
        "error": answer.get("error"),
        "figures": figures(answer),
        "wall_s": answer["wall_s"],
        "peak_mb": answer["peak_mb"],
        **limits,
        "host": answer["host"],
        "finished": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "versions": point.job["versions"],
    }
    if answer.get("output"):
        row["output"] = answer["output"]
    return row


def figures(answer: Mapping[str, Any]) -> dict[str, int | float]:
    """Return the numbers of a point that a table has a column for.

    Times of ranks are those of the rank that has most of each, and so is the most memory that a
    device holds; bytes moved and FLOPs are sums.
    """
    report = answer.get("report")
    if report is None:
        return {}
    ranks, collectives = report["per_rank"], report["collectives"]
    most = ("compute_ns", "comm_exposed_ns", "idle_ns")
    more = {"energy_j": report["energy"]["energy_j"]} if "energy" in report else {}
    if "cost_usd" in report:
        more["cost_usd"] = report["cost_usd"]
    if "steps" in report:
        steps = report["steps"]
        more["step_ns"] = steps["steps"][steps["steady"]]["time_ns"]
    if "serving" in report:
        more.update(_served(report["serving"]["loads"][-1]["figures"]))
    return {
        "time_ns": report["time_ns"],
        **{name: max((rank[name] for rank in ranks), default=0) for name in most},
        "device_memory_bytes": answer["device_memory_bytes"],
        "hbm_bytes": sum(rank["hbm_bytes"] for rank in ranks),
        "flops": sum(rank["flops"] for rank in ranks),
        "launches": sum(item["launches"] for item in report["kernels"]),
        "collectives": sum(collective["count"] for collective in collectives),
        "collective_bytes": sum(collective["bytes"] for collective in collectives),
        **more,
    }


def _served(figures: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of a load that was served."""
    names = ("requests_per_s", "output_tokens_per_s_per_device", "goodput_per_s")
    values = {name: figures[name] for name in names if name in figures}
    for name in ("ttft_s", "tpot_s"):
        if figures[name] is not None:
            values.update({f"{name[:-2]}_{item}_s": figures[name][item] for item in ("p50", "p99")})
    return values


def tokens_of(text: str | None, point: Point, program: SweptProgram) -> int | None:
    """Return how many tokens a step of a point has, as ``--tokens`` says; None if it does not.

    Raises:
        UsageError: A factor is neither a number nor a value or a default of the program.
    """
    if text is None:
        return None
    values = dict(zip(program.settings.args, program.settings.args[1:], strict=False))
    product = 1
    for factor in map(str.strip, text.split("*")):
        option = getattr(program, "options", {}).get(factor.replace("-", "_"))
        otherwise = None if option is None else values.get(option.spelled, option.default)
        value = str(point.values.get(factor.replace("-", "_"), otherwise))
        name = factor if factor.isdecimal() else value
        if factor == "ranks" and "ranks" not in point.values:
            name = str(point.job["ranks"])
        if not name.isdecimal():
            raise UsageError(
                f"--tokens {text}: {factor} must be a number, ranks, or an option of "
                f"{program.path.name} with a whole number, but got {name}"
            )
        product *= int(name)
    return product


_MANY_RANKS = 32


def say_what_is_long(points: Sequence[Point], settings: Settings) -> None:
    """Propose ``--fold`` on stderr where points run many ranks, each by itself."""
    import sys

    most = max((item.job["ranks"] for item in points if item.job["kind"] == "PYTORCH"), default=0)
    if most >= _MANY_RANKS and not settings.fold:
        with_it = "--fold" if not settings.data else "--no-data --fold"
        print(
            f"note: points have up to {most} ranks, of which each is run; {with_it} runs one for "
            "all that do the same",
            file=sys.stderr,
        )


def without_effect(
    points: Sequence[Point], rows: Mapping[str, Mapping[str, Any]], names: Sequence[str]
) -> list[str]:
    """Return the names of which values, where all else is equal, gave results with equal figures.

    Only of names with several values whose points are done: a program may not read such a one.
    """
    done = [point for point in points if rows.get(point.key, {}).get("status") == "done"]
    results: list[str] = []
    for name in names:
        alike: dict[str, dict[str, str]] = {}
        for point in done:
            others = {**point.values, "machine": point.job["machine"], name: ""}
            alike.setdefault(str(others), {})[point.values.get(name, "")] = str(
                sorted(rows[point.key]["figures"].items())
            )
        several = [values for values in alike.values() if len(values) > 1]
        if several and all(len(set(values.values())) == 1 for values in several):
            results.append(name)
    return results


def flat(point: Point, row: Mapping[str, Any] | None, tokens: int | None = None) -> dict[str, Any]:
    """Return a row of the table; a point without a result is pending.

    ``tokens`` are those of a step, or of the run where no steps are known.
    """
    base: dict[str, Any] = {"machine": point.job["machine"], "ranks": point.job["ranks"]}
    base.update(point.values)
    if row is None:
        return {**base, "status": "pending", "error": None, "key": point.key}
    values = dict(row["figures"])
    if tokens is not None and values:
        whole_ns = values.get("step_ns") or values["time_ns"]
        values["tokens_per_s"] = tokens / whole_ns * 1e9
    return {
        **base,
        "status": row["status"],
        "error": row["error"],
        **values,
        **{name: row[name] for name in ("wall_s", "peak_mb", "key")},
    }


def check_table(path: str) -> None:
    """Refuse a table of a kind that is not written.

    Raises:
        UsageError: The name ends otherwise.
    """
    if Path(path).suffix not in _ENDINGS:
        raise UsageError(f"{path}: a table's name must end in {' or '.join(_ENDINGS)}")


def write_table(rows: Sequence[Mapping[str, Any]], path: str) -> None:
    """Write rows as Parquet or CSV, by the ending of the name; columns have one type each.

    Raises:
        OutputError: It cannot be written.
    """
    import pyarrow as pa
    from pyarrow import csv, parquet

    names = list(dict.fromkeys(name for row in rows for name in row))
    columns = {name: pa.array(_typed([row.get(name) for row in rows])) for name in names}
    table = pa.table(columns)
    with whole_file(path) as file:
        if path.endswith(".csv"):
            csv.write_csv(table, file)
        else:
            parquet.write_table(table, file)


def _typed(values: list[Any]) -> list[Any]:
    """Return values of one type: whole numbers, else numbers, else what they are as texts."""
    for kind in (int, float):
        try:
            kinds = [None if item is None else kind(item) for item in values]
        except (ValueError, OverflowError):
            continue
        if kind is float or all(type(item) is not float for item in values):
            return kinds
    return [None if item is None else str(item) for item in values]


def show(rows: Sequence[Mapping[str, Any]], axes: Iterable[str], console: Console) -> None:
    """Print what varies, and what came of it; of many rows the first ones."""
    from rich.table import Table

    from kernbench.report import format_amount, format_ns

    say = partial(console.print, markup=False, highlight=False, soft_wrap=True)
    table = Table(box=None, pad_edge=False, header_style="")
    names = list(axes)
    for name in names:
        table.add_column(name, overflow="fold")
    figures = {
        "time_ns": ("time", format_ns),
        "step_ns": ("step", format_ns),
        "tokens_per_s": ("tokens/s", "{:,.0f}".format),
        "device_memory_bytes": ("memory", lambda value: format_amount(value, "B")),
        "cost_usd": ("USD", "{:.3g}".format),
    }
    had = {key for row in rows for key in figures if row.get(key) is not None}
    had = had | {"time_ns"} if console.width >= _LEAST_COLUMNS else {"time_ns"}
    figures = {key: figures[key] for key in figures if key in had}
    for title, _ in figures.values():
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("status", no_wrap=True)
    for row in rows[:_MOST_SHOWN]:
        cells = [str(row.get(name, "-")) for name in names]
        for key, (_, shown) in figures.items():
            value = row.get(key)
            cells.append("-" if value is None else shown(value))
        table.add_row(*cells, row["status"])
    console.print(table)
    if len(rows) > _MOST_SHOWN:
        say(f"... and {len(rows) - _MOST_SHOWN} more")
    failed = [row for row in rows if row["error"]]
    for row in failed[:_MOST_ERRORS]:
        label = ", ".join(f"{name}={row.get(name, '-')}" for name in names)
        say(f"\n{label}: {row['error']}")
    if len(failed) > _MOST_ERRORS:
        others = len(failed) - _MOST_ERRORS
        say(f"\n... and {others} other error{'s' if others > 1 else ''}")
