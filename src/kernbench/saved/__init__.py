"""Runs on disk: everything that a run's log knows, written whole and read back as that log."""

from kernbench.saved.action import ON_HANDLES, OPERANDS, STREAMS, Action
from kernbench.saved.actions import Actions, Actor
from kernbench.saved.allocations import at_other_times
from kernbench.saved.reading import SavedRun, load_run
from kernbench.saved.writing import save_run, source_texts
