"""Saved runs, done again without their programs: on another machine, or with keys changed."""

from kernbench.retime.retiming import Retiming

__all__ = ["Retiming"]
