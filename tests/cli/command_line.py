"""Calling the command in tests, in this process."""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner, Result

from kernbench.cli.app import app

PRODUCTS = """
def run(torch, times: int = 3):
    a = torch.randn(256, 256)
    for _ in range(times):
        a = a @ a
    torch.ahbm.synchronize()
"""
"""A bench of products that follow each other."""


def kernbench(*arguments: str | Path) -> Result:
    """Return how a command ended, and what it printed."""
    return CliRunner().invoke(app, list(map(str, arguments)))
