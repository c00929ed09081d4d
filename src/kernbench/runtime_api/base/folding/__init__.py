"""Folded runs: one rank runs for all that do the same, and all others are told from it."""

from kernbench.runtime_api.base.folding.axes import RankAxis, axes_of, axis_of
from kernbench.runtime_api.base.folding.classes import Folding
from kernbench.runtime_api.base.folding.timetable import CollectiveTimes, Place, Timetable
from kernbench.runtime_api.base.folding.unfolded import unfolded
