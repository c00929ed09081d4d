"""``kernbench validate`` for rows that others published, too, and the page about them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import typer

from kernbench.accuracy.rows import Machines, Row
from kernbench.accuracy.score import Scored
from kernbench.cli import options as common
from kernbench.cli.commands import validate as of_users
from kernbench.cli.commands.validate import row_bar
from kernbench.cli.registry import options_command
from kernbench.errors import UsageError, nearest
from kernbench.outputs import Outputs
from validation.programs import ProgramFiles

_ABOUT = """\
# How far off the model is

Written by `kernbench validate DATA... --page docs/validation.md`; errors are modeled over measured
time less one, in percent. *MAPE* is the mean of their absolute values; *roofline* is the longer of
compute and memory time at the vendor's peaks, as MAPE/median/p90.

The rows are measurements that third parties published, keyed by `source`. Files have the columns
`device, op, dtype, time_us, source` and those of a category: `m, n, k, bytes` (gemm),
`rows, cols, bytes` (membound), `n_ranks, bytes` (collectives), `tp, pp` and a model's sizes
(tp_scaling). With your own measurements in the same columns you get your own table.

First are sources that no constant was fitted to: no number of a machine, a library or a source's
way of measuring names them. Beside them stands what a user would take instead, *roofline* and
PyTorch's *RuntimeEstimator* with the machine's rates (median/MAPE; it has answers for eager
programs of KernelBench). Rows that are short are the host's, or on the grid of the source's clock,
and stand apart. Variants of a kernel or a network are ranked: *regret* is how much longer than the
best measured one that takes which the model would choose. A measured time is *inside* if it is in a
range of 80 % that was made of other sources' rows, or, where there are none, of other programs;
for kinds of which fits have seen all rows, of those and of what sources differ by. Sources that
fits have seen come last.

Few numbers were set to rows of KernelBench, which are not wholly unseen therefore: what every host
takes for a convolution or norm and for an event (`planned_us`, `event_us`, 315 eager programs), in
part how fast the hosts of H100s are, how fast an SM of an A100 or H100 gathers volumes of few
channels (`vector_share`, seven programs on A100-40GB, and H100s), and from which share of a wave on
Hopper's products of float32 are not cut along K (one program on an H100 PCIe).

*run* says what the engine ran for a group of rows: kernbench's own *kernels*; *library kernels* of
a vendor or a stack, timed by their tiles; a *collective*; *layers*, put together by the rules of
`kernbench plan`; or a whole *program*. Where it says *composed*, formulas have a time but nothing
was run: such rows are unanswered, in a table of their own, and in no error. The last table says why
others have no answer, those that are left out because their sources or their neighbours contradict
them among them.

Which constants were fitted, to which rows, is said in each machine's `sources` (`kernbench machine
show NAME`); those of a source's software are in `validation.sources.stacks`, those of
its way of measuring in `validation.sources.harness`. Calibration keeps one row in four apart,
by whole shapes (n x k of a GEMM).
"""


PLACE = 40
app = typer.Typer()


@dataclass(frozen=True, kw_only=True)
class ValidateOptions(of_users.ValidateOptions):
    """What ``kernbench validate`` was given; see ``kernbench validate --help``."""

    every: list[str] | None = common.option(
        None,
        metavar="[NAME=]N",
        help="Score one row in N, picked by a hash; of a file or category, or of all. Repeatable.",
    )
    plot: str | None = common.option(
        None, metavar="FILE", help="Write a scatter plot (needs matplotlib)."
    )
    page: str | None = common.option(
        None, metavar="FILE", help="Write the table as a Markdown page."
    )
    publish: str | None = common.option(
        None, metavar="FILE", help="Write the errors by machine and category, for reports."
    )
    borrow: str | None = common.option(
        None,
        metavar="DONOR:TARGET",
        help="Score TARGET's GEMMs with DONOR's fitted constants, as if it had no rows.",
    )
    programs: str | None = common.option(
        None, metavar="DIR", help="Where make programs put scripts.  [default: build/programs]"
    )
    keep: str | None = common.option(
        None, metavar="FILE", help="Keep answers of programs there, and do not run those it has."
    )
    kept: str | None = common.option(
        None, metavar="FILE", help="The same, and run no program: others count as not run."
    )
    again: list[str] | None = common.option(
        None,
        metavar="WORDS",
        help="Run programs of --kept that begin so, all of them anew; repeatable.",
    )


@options_command(app, "validate")
def _validate(context: typer.Context, options: ValidateOptions) -> int:
    """Score the model on measured rows: errors per category, device and source.

    kernbench validate rows.csv --every 5 --page errors.md
    """
    return validate(options)


def validate(options: ValidateOptions) -> int:
    """Score the model, write and print the table, and return the exit status.

    Raises:
        KernbenchError: The rows or the options are wrong, or a file cannot be written.
    """
    import json

    from kernbench.cli.sweeps.plot import format_of_plot
    from validation.programs.kept import PROGRAMS
    from validation.scores.published import published
    from validation.scores.report import dump_plot, render_page, render_text, to_json

    asked = {f"--{name}": getattr(options, name) for name in ("json", "page", "plot", "publish")}
    with Outputs(asked, [*options.data, *(options.machine or ())]) as outputs:
        if options.plot is not None:
            format_of_plot(Path(options.plot))
        scored, machines = _scored(options)
        text = render_text(scored, options.worst, machines)
        if "--json" in outputs:
            with outputs.writing("--json") as file:
                data = json.dumps(to_json(scored, machines), indent=2)
                file.write(f"{data}\n".encode())
        if "--page" in outputs:
            with outputs.writing("--page") as file:
                about, folder = _ABOUT + _command(options), Path(options.programs or PROGRAMS)
                file.write(render_page(scored, about, machines, folder).encode())
        if "--plot" in outputs:
            with outputs.writing("--plot") as file:
                dump_plot(scored, file, format_of_plot(Path(outputs.path_of("--plot"))))
        if "--publish" in outputs:
            with outputs.writing("--publish") as file:
                errors = {"made by": f"{_words(options)} --publish", **published(scored, machines)}
                file.write(f"{json.dumps(errors, indent=1)}\n".encode())
        outputs.publish()
    print(text)
    return 0


def _scored(options: ValidateOptions) -> tuple[list[Scored], Machines]:
    from kernbench.accuracy.rows import Machines, read_rows, sampled
    from kernbench.accuracy.score import answer_rows
    from kernbench.hardware import machine_text
    from validation.predictors.registry import published
    from validation.sources.forms import FORMS

    rows = read_rows(options.data, FORMS)
    added = [machine_text(name) for name in options.machine or ()]
    if options.borrow is not None:
        text, rows = _borrowed(options.borrow, rows)
        added.append(text)
    every = _every(options.every or (), {Path(name).name for name in options.data})
    rows = sampled(rows, every)
    if not rows:
        raise UsageError(
            f"there is nothing to score: {', '.join(options.data)} "
            + (
                f"and --every {' '.join(options.every or ())} leave no row"
                if every
                else "has no rows"
            )
        )
    machines, jobs = Machines(added), options.jobs or os.cpu_count() or 1
    programs = _files(options)
    with row_bar(len(rows)) as advance:
        return answer_rows(rows, jobs, advance, machines, published(programs)), machines


def _files(options: ValidateOptions) -> ProgramFiles:
    """Return the folder of ``--programs`` and the file of ``--keep`` or ``--kept``.

    Raises:
        UsageError: A folder or file does not exist, or the file has something else in it.
    """
    from validation.programs import ProgramFiles, forget, read_kept

    if options.keep is not None and options.kept is not None:
        raise UsageError("--keep runs programs, and --kept runs none: give one of them")
    if options.again and options.kept is None:
        raise UsageError("--again runs programs of --kept FILE anew: give that, too")
    if options.kept is not None and not Path(options.kept).is_file():
        raise UsageError(f"--kept {options.kept}: no such file; --keep makes it")
    file = options.keep if options.kept is None else options.kept
    again = tuple(options.again or ())
    runs = None if options.kept is None else again
    files = ProgramFiles(kept=None if file is None else Path(file), runs=runs)
    if options.programs is not None:
        if not Path(options.programs).is_dir():
            raise UsageError(
                f"--programs {options.programs}: no such folder; make programs makes build/programs"
            )
        files = replace(files, folder=Path(options.programs))
    if files.kept is not None:
        if not files.kept.parent.is_dir():
            raise UsageError(f"--keep {files.kept}: there is no folder {files.kept.parent}")
        # What is wrong with it is said before hours of running.
        read_kept(files.kept)
        if again:
            forget(files.kept, again)
    return files


def _every(asked: Sequence[str], files: set[str]) -> dict[str, int]:
    """Return, by file and category, in how many rows one is scored."""
    from kernbench.accuracy.rows import Category

    known = {*(category.value for category in Category), *files}
    every: dict[str, int] = {}
    for item in asked:
        name, _, number = item.rpartition("=")
        if name and name not in known:
            raise UsageError(f"--every knows no file or category {name!r}: {nearest(name, known)}")
        if not number.isdecimal():
            raise UsageError(f"--every takes a number or NAME=NUMBER, but got {item!r}")
        for category in [name] if name else (category.value for category in Category):
            every[category] = int(number)
    return every


def _command(options: ValidateOptions) -> str:
    """Return the line of a page that says how it was made."""
    said = f"\nMade by `{_words(options)} --page`"
    if options.every:
        said += "; with `--every N` a table is of one row in N, picked by a hash"
    if options.keep or options.kept:
        from validation.programs import said_of

        said += f". Of whole programs, {said_of(Path(options.keep or options.kept or ''))}"
    return f"{said}.\n"


def _words(options: ValidateOptions) -> str:
    """Return what was asked, without where results go and the folders of files."""
    words = ["kernbench validate", *(Path(name).name for name in options.data)]
    words += [f"--every {name}" for name in options.every or ()]
    words += [f"--machine {Path(machine).name}" for machine in options.machine or ()]
    words += [f"--keep {Path(options.keep).name}"] if options.keep else []
    words += [f"--kept {Path(options.kept).name}"] if options.kept else []
    words += [f"--borrow {options.borrow}"] if options.borrow else []
    return " ".join(words)


def _borrowed(asked: str, rows: Sequence[Row]) -> tuple[tuple[str, str], list[Row]]:
    """Return the machine that ``DONOR:TARGET`` makes, and TARGET's GEMM rows."""
    from kernbench.accuracy.rows import Category
    from kernbench.hardware import parse_machine
    from validation.fits.transfer import transferred

    donor, colon, target = asked.partition(":")
    if not (donor and colon and target):
        raise UsageError(f"--borrow takes DONOR:TARGET, two machines, but got {asked!r}")
    text, origin = transferred(donor, target), f"{target} with constants of {donor}"
    devices = parse_machine(text, origin, 1).spec.devices
    own = [row for row in rows if row.device in devices and row.category is Category.GEMM]
    if not own:
        raise UsageError(
            f"no GEMM row was measured on a device of {target}: {', '.join(devices) or 'none'}"
        )
    return (text, origin), own
