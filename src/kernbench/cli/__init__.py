"""The ``kernbench`` command."""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """Run the command line and exit; also where Ctrl-C comes while it is still imported."""
    try:
        from kernbench.cli.console.interrupt import interruptible

        with interruptible():
            from kernbench.cli.app import main as run

            run()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
