"""Whole programs that others measured: what is run for one, where, and how long its step takes."""

from validation.programs.kept import (
    KeptAnswers,
    ProgramAnswer,
    ProgramFiles,
    forget,
    read_kept,
    said_of,
)
from validation.programs.program import LOOPS, Program, ProgramError, loop
from validation.programs.runner import ProgramRunner
from validation.programs.sources import SOURCES, Source, folder_of
