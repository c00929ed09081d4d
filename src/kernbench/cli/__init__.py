"""The ``kernbench`` command."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kernbench.cli.programs.bench_file import Bench


def find_bench(text: str) -> Bench | None:
    """Return the bench that a file or a name is; None for a file that is another program.

    Raises:
        KernbenchError: There is no such file or name, or the bench is none that can run.
    """
    from kernbench.cli.programs.bench_file import load_bench
    from kernbench.cli.programs.kinds import Kind, kind_of

    return load_bench(text) if kind_of(text) is Kind.BENCH else None


def main() -> None:
    """Run the command line and exit; also where Ctrl-C comes while it is still imported."""
    try:
        from kernbench.cli.programs.importing import staying

        with staying():
            from kernbench.cli.console.streams import interruptible

        with interruptible():
            with staying():
                from kernbench.cli.app import main as run

            run()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
