"""``kernbench calibrate``: fit a machine to measured rows."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import typer

from kernbench.cli import options as common
from kernbench.cli.registry import options_command
from kernbench.errors import UsageError
from kernbench.outputs import Outputs

if TYPE_CHECKING:
    from kernbench.accuracy.calibration import Calibration, FittedConstant
    from kernbench.accuracy.rows import Predictors
    from kernbench.accuracy.score import Errors


@dataclass(frozen=True, kw_only=True)
class CalibrateOptions(common.CommandOptions):
    """What ``kernbench calibrate`` was given."""

    machine: str = common.argument(
        ..., metavar="MACHINE", help="The machine to start from: a preset or file."
    )
    data: list[str] = common.argument(..., metavar="DATA...", help="CSV files of measured rows.")
    out: str | None = common.option(
        None, metavar="FILE", help="The new machine; NAME-calibrated.yaml."
    )
    only: list[str] | None = common.option(
        None, metavar="KEY", help="Fit this constant only; repeatable."
    )
    source: list[str] | None = common.option(
        None, metavar="NAME", help="Rows of this source only; repeatable."
    )
    rows: int = common.option(
        120, metavar="N", min=1, help="Rows to fit to, and to score on, at most."
    )
    parts: int = common.option(
        4, metavar="N", min=2, help="One in N shapes is kept apart and scored."
    )


PLACE = 50
_MOST_ROWS, _MOST_REFUSED, _MOST_PAIRS = 3, 8, 4
"""How many rows are named of a constant, and of a reason; how many pairs of constants."""


def make_app(predictors: Callable[[], Predictors] | None = None) -> typer.Typer:
    """Return the command; ``predictors`` makes those that answer rows, kernbench's own if None."""
    app = typer.Typer()

    @options_command(app, "calibrate")
    def _calibrate(context: typer.Context, options: CalibrateOptions) -> int:
        """Fit a machine's constants to measured rows and write it as a new machine file.

        Rates and bandwidths are fitted where no source states them, as in a file of kernbench
        machine new; the rest are overheads and shares that no vendor states. Whole shapes are kept
        apart and only scored: their error is what other rows will see.

        kernbench calibrate mychip.yaml rows.csv
        """
        calibrate(options, None if predictors is None else predictors())
        return 0

    return app


def calibrate(options: CalibrateOptions, predictors: Predictors | None = None) -> None:
    """Fit, write the machine, and print the constants and the errors."""
    from kernbench.hardware import file_of, load_machine

    name = load_machine(options.machine, 1).name
    asked = {"--out": options.out or f"{name}-calibrated.yaml"}
    with Outputs(asked, [*options.data, file_of(options.machine)]) as outputs:
        calibrated = _calibrated(options, predictors)
        with outputs.writing("--out") as file:
            file.write(calibrated.text.encode())
        outputs.publish()
    _print_constants(calibrated)
    _print_errors(calibrated)
    _print_refused(calibrated)
    print(f"wrote {asked['--out']}")


def _calibrated(options: CalibrateOptions, predictors: Predictors | None) -> Calibration:
    from kernbench.accuracy.calibration import calibrate
    from kernbench.accuracy.rows import OWN, read_rows

    rows = read_rows(options.data)
    if options.source:
        known = {row.source for row in rows}
        unknown = [source for source in options.source if source not in known]
        if unknown:
            raise UsageError(
                f"no row is of source {unknown[0]!r}; the rows are of {', '.join(sorted(known))}"
            )
        rows = [row for row in rows if row.source in options.source]
    return calibrate(
        options.machine,
        rows,
        parts=options.parts,
        most_rows=options.rows,
        only=tuple(options.only or ()),
        say=lambda line: print(line, file=sys.stderr, flush=True),
        predictors=predictors or OWN,
    )


def _print_constants(calibration: Calibration) -> None:
    """Print what rows say of each constant, and which they say nothing of."""
    told = [constant for constant in calibration.constants if constant.deviation is not None]
    width = max((len(constant.key) for constant in told), default=0)
    print(f"rows of {', '.join(calibration.sources)}\n")
    print(f"{'constant':<{width}}  {'before':>9}  {'after':>9}  {'known to':>8}  from")
    for constant in sorted(told, key=lambda item: not item.is_known):
        known = f"{100 * (constant.deviation or 0):.1f} %" if constant.is_known else "hardly"
        numbers = f"{constant.before:>9.5g}  {constant.after:>9.5g}"
        print(f"{constant.key:<{width}}  {numbers}  {known:>8}  {_from(constant)}")
    for one, other, deviation in calibration.together[:_MOST_PAIRS]:
        print(f"known together alone, to {100 * deviation:.1f} %: {one} times {other}")
    silent = [constant.key for constant in calibration.constants if constant.deviation is None]
    if silent:
        print(f"\nno row tells, and they stay: {', '.join(_folded(silent))}")
    if calibration.stated:
        print(
            f"\nstated by sources, and they stay unless --only names them: "
            f"{', '.join(_folded(list(calibration.stated)))}"
        )


def _from(constant: FittedConstant) -> str:
    """Return from which rows a constant is known, those that depend on it most first."""
    by_category: dict[str, int] = {}
    for row in constant.rows:
        by_category[row.category] = by_category.get(row.category, 0) + 1
    counts = ", ".join(f"{count} of {name}" for name, count in by_category.items())
    first = ", ".join(row.where for row in constant.rows[:_MOST_ROWS])
    return f"{counts}: {first}{' and more' if len(constant.rows) > _MOST_ROWS else ''}"


def _folded(keys: list[str]) -> list[str]:
    """Return keys with those of one group written once: ``a.b.{x, y}``."""
    groups: dict[str, list[str]] = {}
    for key in keys:
        group, _, last = key.rpartition(".")
        groups.setdefault(group, []).append(last)
    return [
        f"{group}.{lasts[0]}" if len(lasts) == 1 else f"{group}.{{{', '.join(lasts)}}}"
        for group, lasts in groups.items()
    ]


def _print_errors(calibration: Calibration) -> None:
    width = max(len(error.category) for error in calibration.errors) + len(" fitted to, 1000 rows")
    print(f"\n{'MAPE/median/p90 %':<{width}}  {'before':>14}  {'after':>14}")
    for error in calibration.errors:
        for label, was, now in (
            ("fitted to", error.fitted_before, error.fitted_after),
            ("kept apart", error.apart_before, error.apart_after),
        ):
            title = f"{error.category} {label}, {was.rows} rows"
            print(f"{title:<{width}}  {_errors(was):>14}  {_errors(now):>14}")


def _print_refused(calibration: Calibration) -> None:
    """Print which rows were not used, by line."""
    by_reason: dict[str, list[str]] = {}
    for row, why in calibration.refused:
        by_reason.setdefault(why, []).append(row.where)
    for why, places in by_reason.items():
        shown = ", ".join(places[:_MOST_REFUSED])
        more = len(places) - _MOST_REFUSED
        print(f"not used: {shown}{f' and {more} more' if more > 0 else ''}: {why}")


def _errors(errors: Errors) -> str:
    if errors.mape is None:
        return "-"
    return "/".join(f"{number:.1f}" for number in (errors.mape, errors.median, errors.p90))


app = make_app()
