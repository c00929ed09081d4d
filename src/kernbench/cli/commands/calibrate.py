"""``kernbench calibrate``: fit a machine to measured rows."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from kernbench.errors import UsageError
from kernbench.outputs import Outputs

if TYPE_CHECKING:
    from kernbench.accuracy.calibration import Calibration, Fitted, RowModel
    from kernbench.accuracy.score import Errors


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrateOptions:
    """What ``kernbench calibrate`` was given; see ``kernbench calibrate --help``."""

    machine: str
    data: tuple[str, ...]
    out: str | None
    only: tuple[str, ...]
    sources: tuple[str, ...]
    rows: int
    parts: int


PLACE = 50


def make_app(model: Callable[[], RowModel] | None = None) -> typer.Typer:
    """Return the command; ``model`` makes what says how rows were measured."""
    made = typer.Typer()

    @made.command("calibrate")
    def _calibrate(
        machine: Annotated[
            str,
            typer.Argument(metavar="MACHINE", help="The machine to start from: a preset or file."),
        ],
        data: Annotated[
            list[str], typer.Argument(metavar="DATA...", help="CSV files of measured rows.")
        ],
        out: Annotated[
            str | None, typer.Option(metavar="FILE", help="The new machine; NAME-calibrated.yaml.")
        ] = None,
        only: Annotated[
            list[str] | None,
            typer.Option(metavar="KEY", help="Fit this constant only; repeatable."),
        ] = None,
        source: Annotated[
            list[str] | None,
            typer.Option(metavar="NAME", help="Rows of this source only; repeatable."),
        ] = None,
        rows: Annotated[
            int, typer.Option(metavar="N", min=1, help="Rows to fit to, and to score on, at most.")
        ] = 120,
        parts: Annotated[
            int, typer.Option(metavar="N", min=2, help="One in N shapes is kept apart and scored.")
        ] = 4,
    ) -> None:
        """Fit a machine's named constants to measured rows and write it as a new machine file.

        Whole shapes are kept apart and only scored: their error is what other rows will see.
        """
        calibrate(
            CalibrateOptions(
                machine=machine,
                data=tuple(data),
                out=out,
                only=tuple(only or ()),
                sources=tuple(source or ()),
                rows=rows,
                parts=parts,
            ),
            None if model is None else model(),
        )

    return made


def calibrate(options: CalibrateOptions, model: RowModel | None = None) -> None:
    """Fit, write the machine, and print the constants and the errors.

    ``model`` is how rows were measured; one kernel at a time where it is None.
    """
    from kernbench.hardware import file_of, load_machine

    name = load_machine(options.machine, 1).name
    asked = {"--out": options.out or f"{name}-calibrated.yaml"}
    with Outputs(asked, [*options.data, file_of(options.machine)]) as outputs:
        found = _calibrated(options, model)
        with outputs.writing("--out") as file:
            file.write(found.text.encode())
        outputs.publish()
    for fitted in found.fits:
        _print_fit(fitted)
    print(f"wrote {asked['--out']}")


def _calibrated(options: CalibrateOptions, model: RowModel | None) -> Calibration:
    from kernbench.accuracy.calibration import RowModel, calibrate
    from kernbench.accuracy.rows import read_rows

    rows = read_rows(options.data)
    if options.sources:
        known = {row.source for row in rows}
        unknown = [each for each in options.sources if each not in known]
        if unknown:
            raise UsageError(
                f"no row is of source {unknown[0]!r}; the rows are of {', '.join(sorted(known))}"
            )
        rows = [row for row in rows if row.source in options.sources]
    return calibrate(
        options.machine,
        rows,
        parts=options.parts,
        most_rows=options.rows,
        only=options.only,
        say=lambda line: print(line, file=sys.stderr, flush=True),
        model=model or RowModel(),
    )


def _print_fit(fitted: Fitted) -> None:
    width = max(len(key) for key, _, _ in fitted.constants)
    print(f"{fitted.category}, rows of {', '.join(fitted.sources)}")
    print(f"  {'constant':<{width}}  {'before':>10}  {'after':>10}")
    for key, before, after in fitted.constants:
        print(f"  {key:<{width}}  {before:>10.5g}  {after:>10.5g}")
    print(f"  {'MAPE/median/p90 %':<{width}}  {'before':>14}  {'after':>14}")
    for label, was, now in (
        ("fitted to", fitted.fitted_before, fitted.fitted_after),
        ("kept apart", fitted.apart_before, fitted.apart_after),
    ):
        cells = f"{_errors(was):>14}  {_errors(now):>14}"
        print(f"  {f'{label}, {was.rows} rows':<{width}}  {cells}")


def _errors(found: Errors) -> str:
    if found.mape is None:
        return "-"
    return "/".join(f"{each:.1f}" for each in (found.mape, found.median, found.p90))


app = make_app()
