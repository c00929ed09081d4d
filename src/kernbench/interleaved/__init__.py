"""Interleaved execution of kernels whose programs decide by data or wait for each other."""

from kernbench.interleaved.execution import capture
from kernbench.interleaved.launch import Executed, InterleavedLaunch
from kernbench.interleaved.memory import Resolve
from kernbench.interleaved.pacing import Decisions, Span, Watched, parts_of, spans_of
from kernbench.interleaved.strand import Strand
from kernbench.interleaved.values import of_programs
