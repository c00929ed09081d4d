"""``kernbench calibrate`` with rows that others published, as their sources measured them."""

from __future__ import annotations

from kernbench.accuracy.calibration import RowModel
from kernbench.cli.commands.calibrate import PLACE, make_app

__all__ = ["PLACE", "app"]


def _published() -> RowModel:
    from validation.fits.published import published_rows

    return published_rows()


app = make_app(_published)
