"""What the lines of a run's program caused: which launched each command, which had its hosts."""

from __future__ import annotations

from dataclasses import dataclass, field

from kernbench.op_log.log import Site

UNKNOWN_SITE: Site = ("", 0)


@dataclass(slots=True)
class ProgramLines:
    """Lines of the program (not of kernbench or of libraries), by what they caused (ADR-0172).

    Of a collective it is the line of one rank: ``OpLog.sites`` has those of all.
    """

    sites: list[Site] = field(default_factory=lambda: [UNKNOWN_SITE])
    """What numbers stand for; number 0 is no line of the program."""
    modules: list[str] = field(default_factory=lambda: [""])
    """The module that ran the line of each number: so a line may have several; empty outside of
    all."""
    of_commands: dict[int, int] = field(default_factory=dict)
    """The number of the line that launched each command, by launch id."""
    of_spans: list[int] = field(default_factory=list)
    """The number of the line at which the host was, by position in ``OpLog.host_spans``."""
