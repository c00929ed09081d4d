"""``kernbench findings``: what holds a saved run up, and what would be gained without it."""

from __future__ import annotations

import sys
from dataclasses import dataclass

import typer

from kernbench.cli import options as common
from kernbench.cli.commands.kept.diff import parse_share
from kernbench.cli.programs.reporting import DONE, FAILED, guarded_command, show_or_write
from kernbench.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class FindingsOptions(common.RangeOptions):
    """What ``kernbench findings`` was given."""

    run: str = common.argument(..., metavar="RUN", help="A run that --save has kept.")
    against: str | None = common.option(None, metavar="RUN", help="An older run, for --fail-over.")
    markdown: common.Markdown = None
    fail_over: str | None = common.option(
        None, metavar="5%", help="Exit with 1 if the run takes longer by more than this."
    )


PLACE = 21
app = typer.Typer()


@guarded_command(app, "findings")
def _findings(options: FindingsOptions) -> int:
    """Rank what holds a saved run up, by the gain that runs without it have shown.

    kernbench findings train.run --markdown findings.md

    Each of them is done anew, without the program: a kernel that takes no time, HBM or links twice
    as fast, hosts that take no time, collectives that overlap, no rank that waits.
    """
    from kernbench.retiming import as_markdown, findings, print_findings
    from kernbench.saved import load_run

    if (options.against is None) != (options.fail_over is None):
        raise UsageError("--fail-over 5% and --against RUN are given together")
    most = None if options.fail_over is None else parse_share(options.fail_over)
    saved = load_run(options.run)
    before = None if options.against is None else load_run(options.against)
    part = options.part(saved.log)
    ranked_findings = findings(saved, part)
    show_or_write(
        *(ranked_findings, options.json, lambda console: print_findings(ranked_findings, console)),
        *(options.markdown, lambda: as_markdown(ranked_findings)),
    )
    if most is None or before is None:
        return DONE
    slower = part.time_ps(saved.log) / options.part(before.log).time_ps(before.log) - 1
    if slower <= most:
        return DONE
    print(
        f"{options.run} takes {slower:.1%} longer than {options.against}, which is more than "
        f"{options.fail_over}",
        file=sys.stderr,
    )
    return FAILED
