"""``kernbench calibrate`` with rows that others published, as their sources measured them."""

from __future__ import annotations

from kernbench.cli.commands.calibrate import PLACE, make_app
from validation.predictors.registry import published

__all__ = ["PLACE", "app"]

app = make_app(published)
