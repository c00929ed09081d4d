"""``kernbench trace``: the timeline of a saved run."""

from __future__ import annotations

import sys
from dataclasses import dataclass

import typer

from kernbench.cli import options as common
from kernbench.cli.programs.reporting import DONE, dump_timeline, guarded_command
from kernbench.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class TraceOptions(common.SavedRunOptions):
    """What ``kernbench trace`` was given."""

    run: str = common.argument(..., metavar="RUN", help="A run that --save has kept.")
    file: str = common.argument(
        ..., metavar="FILE|DIR", help="The timeline: .pftrace or .json; .gz compresses it."
    )
    kineto: bool = common.option(
        False, "--kineto", help="Into DIR, a file per rank as torch.profiler writes it, for HTA."
    )
    chakra: bool = common.option(
        False, "--chakra", help="Into DIR, an execution trace of Chakra per rank."
    )
    csv: bool = common.option(
        False, "--csv", help="Into DIR, the sums of nsys stats: kernels, copies, ranges."
    )


PLACE = 22
app = typer.Typer()


@guarded_command(app, "trace")
def _trace(options: TraceOptions) -> int:
    """Write the timeline of a saved run, with its critical path, for ui.perfetto.dev.

    kernbench trace train.run train.pftrace

    Or, with --kineto, --chakra or --csv, files that other tools read.
    """
    asked = [name for name in ("kineto", "chakra", "csv") if getattr(options, name)]
    if len(asked) > 1:
        names = " and ".join(f"--{name}" for name in asked[:2])
        raise UsageError(f"{names} are two formats; write them to two folders")
    if asked:
        return _write_folder(options)
    from kernbench.outputs import Outputs
    from kernbench.saved import load_run

    with Outputs({"FILE": options.file}, [options.run]) as outputs:
        run = load_run(options.run)
        with outputs.writing("FILE") as file:
            dump_timeline(run.log, run.machine, file, options.file)
        outputs.publish()
    print(f"timeline: {options.file} (open it in https://ui.perfetto.dev)", file=sys.stderr)
    return DONE


def _write_folder(options: TraceOptions) -> int:
    from kernbench.report import write_execution_traces, write_profiles, write_statistics
    from kernbench.saved import load_run

    run = load_run(options.run)
    if options.csv:
        names = ", ".join(path.name for path in write_statistics(run.log, options.file))
        print(f"{options.file}: {names}", file=sys.stderr)
        return DONE
    write = write_profiles if options.kineto else write_execution_traces
    files = write(run.log, run.machine, run.ranks, options.file)
    said = f"{files[0].name} to {files[-1].name}" if len(files) > 1 else files[0].name
    print(f"{options.file}: {said}", file=sys.stderr)
    return DONE
