"""``kernbench diff``: what changed between two saved runs, and whether that is too much."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import typer

from kernbench.cli import options as common
from kernbench.cli.programs.reporting import DONE, FAILED, guarded_command, show_or_write
from kernbench.errors import UsageError

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True, kw_only=True)
class DiffOptions(common.RangeOptions):
    """What ``kernbench diff`` was given."""

    before: str = common.argument(..., metavar="A", help="A run that --save has kept.")
    after: str = common.argument(..., metavar="B", help="The run to compare with it.")
    markdown: common.Markdown = None
    fail_over: str | None = common.option(
        None, metavar="5%", help="Exit with 1 if B takes longer than A by more than this."
    )
    lines: bool = common.option(
        False, "--lines", help="Also by lines of the programs, though they moved."
    )


PLACE = 21
app = typer.Typer()


@guarded_command(app, "diff")
def _diff(options: DiffOptions) -> int:
    """Say why one saved run takes longer than another, by parts that add up to the difference.

    kernbench diff before.run after.run
    """
    from rich.text import Text

    from kernbench.analysis import (
        RunPart,
        difference,
        difference_as_markdown,
        difference_by_line,
        print_difference,
        print_difference_by_line,
        slower_by,
    )
    from kernbench.saved import load_run

    most = None if options.fail_over is None else parse_share(options.fail_over)
    before, after = load_run(options.before), load_run(options.after)
    old, new = (options.part(run.log) for run in (before, after))
    if (old.window is None) != (new.window is None):
        # Only one has steps: what both have is a whole.
        old = new = RunPart()
    parts = (old.window, new.window)
    result = difference(before, after, parts)
    lines = difference_by_line(before, after, parts) if options.lines else []

    said = list(dict.fromkeys(item.said for item in (old, new) if item.said))

    def show(console: Console) -> None:
        for part in said:
            console.print(Text(part))
        print_difference(result, console)
        if options.lines:
            print_difference_by_line(lines, console)

    whole = {**result, "lines": lines} if options.lines else result
    markdown = options.markdown, lambda: difference_as_markdown(result, said)
    show_or_write(whole, options.json, show, *markdown)
    return FAILED if most is not None and slower_by(result) > most else DONE


def parse_share(text: str, option: str = "--fail-over") -> float:
    """Return a share that is given in percent.

    Raises:
        UsageError: It is none.

    >>> parse_share("5%"), parse_share("2.5 %")
    (0.05, 0.025)
    """
    number = text.removesuffix("%").strip()
    try:
        share = float(number) / 100
    except ValueError:
        share = -1.0
    if not text.endswith("%") or not 0 <= share < float("inf"):
        raise UsageError(f"{option} takes a percentage such as 5%, but got {text!r}")
    return share
