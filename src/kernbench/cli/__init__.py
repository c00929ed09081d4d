"""The ``kernbench`` command."""

from kernbench.cli.app import main

__all__ = ["main"]
