"""``kernbench report``: a saved run as a page with pictures."""

from __future__ import annotations

import sys
from dataclasses import dataclass

import typer

from kernbench.cli import options as common
from kernbench.cli.programs.reporting import DONE, guarded_command


@dataclass(frozen=True, kw_only=True)
class PageOptions(common.SavedRunOptions):
    """What ``kernbench report`` was given."""

    run: str = common.argument(..., metavar="RUN", help="A run that --save has kept.")
    after: str | None = common.argument(
        None, metavar="[B]", help="A second run: the page is its, compared with RUN."
    )
    output: str = common.option(
        ..., "--output", "-o", metavar="FILE", help="The page, an HTML file."
    )
    findings: bool = common.option(
        False,
        "--findings",
        help="Try what would save time, as kernbench findings does: a run each.",
    )
    range: common.Range = None
    steps: common.Steps = None


PLACE = 23
app = typer.Typer()


@guarded_command(app, "report")
def _report(options: PageOptions) -> int:
    """Write a saved run as one HTML page: timeline, roofline, ranks, lines, communication.

    kernbench report train.run
    """
    from kernbench.analysis import part_of
    from kernbench.outputs import Outputs
    from kernbench.page import dump_page
    from kernbench.retiming import findings
    from kernbench.saved import load_run

    inputs = [options.run] if options.after is None else [options.run, options.after]
    with Outputs({"--output": options.output}, inputs) as outputs:
        *before, run = map(load_run, inputs)
        part = part_of(run.log, options.range, options.steps)
        ranked_findings = findings(run, part) if options.findings else None
        with outputs.writing("--output") as file:
            dump_page(file, run, before[0] if before else None, ranked_findings, part)
        outputs.publish()
    print(f"page: {options.output} (open it in a browser)", file=sys.stderr)
    return DONE
