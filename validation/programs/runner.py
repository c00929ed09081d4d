"""Runs programs in a child process, which is ended where one takes too long or too much memory."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

from kernbench.hardware import Machine
from validation.programs.child import serve
from validation.programs.kept import KeptAnswers, ProgramAnswer
from validation.programs.program import Program, ProgramError

TIME_LIMIT_S = 150.0
"""How much time of a CPU one program may take here, so that a busy machine ends no more of them."""
LONGEST = 5
"""How many times as long it may run at all: one that waits for itself takes no time of a CPU."""
MOST_MIB = 900
"""A child that has come to hold more than this is replaced after the program."""


def _cpu_s(pid: int | None) -> float:
    """Return how much time of a CPU a process has taken; 0 for one that has ended."""
    try:
        said = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except OSError:
        return 0.0
    # Behind the name, which may hold anything: user and system time.
    user, system = said.rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


class ProgramRunner:
    """Runs programs one after another, each distinct one once.

    The child that runs them is started for the first one, so that PyTorch and the libraries of
    programs are imported once for all. Programs whose answers are kept in a file are not run.
    """

    def __init__(self, limit_s: float = TIME_LIMIT_S, kept: KeptAnswers | None = None) -> None:
        self._limit_s = limit_s
        self._kept = kept
        self._known: dict[tuple[Program, str], ProgramAnswer] = {}
        self._child: BaseProcess | None = None
        self._pipe: Connection | None = None

    def answer(self, program: Program, machine: Machine) -> ProgramAnswer:
        """Return the modeled time of a step, and the host's share of it.

        Raises:
            ProgramError: The program cannot be run, fails, says no time, or takes too long here.
        """
        key = (program, machine.name)
        if key not in self._known:
            try:
                self._known[key] = self._kept_or_run(program, machine)
            except ProgramError as error:
                self._known[key] = ProgramAnswer(why_not=str(error))
        program_answer = self._known[key]
        if program_answer.why_not:
            raise ProgramError(program_answer.why_not)
        return program_answer

    def step_us(self, program: Program, machine: Machine) -> float:
        """Return the modeled time of a step alone, in microseconds."""
        return self.answer(program, machine).step_us

    def _kept_or_run(self, program: Program, machine: Machine) -> ProgramAnswer:
        program_answer = self._kept.get(program, machine.name) if self._kept is not None else None
        if program_answer is None:
            if self._kept is not None and not self._kept.has_run(program):
                raise ProgramError("not run for this table")
            program.check()
            program_answer = self._run(program, machine)
            if self._kept is not None:
                self._kept.keep(program, machine.name, program_answer)
        return program_answer

    def _run(self, program: Program, machine: Machine) -> ProgramAnswer:
        pipe = self._pipe or self._start()
        try:
            pipe.send((program, machine))
            if not self._has_ended(pipe):
                self.close()
                return ProgramAnswer(why_not=f"takes longer than {self._limit_s:g} s to run")
            program_answer, mib = pipe.recv()
        except (EOFError, OSError):
            self.close()
            return ProgramAnswer(why_not="its process ended without an answer")
        if mib > MOST_MIB:
            self.close()
        assert isinstance(program_answer, ProgramAnswer)
        return program_answer

    def _has_ended(self, pipe: Connection) -> bool:
        """Wait for the program's answer; False where it takes too long."""
        pid = None if self._child is None else self._child.pid
        began, spent_s = time.monotonic(), _cpu_s(pid)
        while not pipe.poll(min(1.0, self._limit_s / 4)):
            if _cpu_s(pid) - spent_s > self._limit_s:
                return False
            if time.monotonic() - began > LONGEST * self._limit_s:
                return False
        return True

    def _start(self) -> Connection:
        context = get_context("spawn")
        self._pipe, other = context.Pipe()
        self._child = context.Process(target=serve, args=(other,), daemon=True)
        self._child.start()
        other.close()
        return self._pipe

    def close(self) -> None:
        """End the child."""
        if self._child is not None:
            self._child.kill()
            self._child.join()
        if self._pipe is not None:
            with suppress(OSError):
                self._pipe.close()
        self._child = self._pipe = None
