"""Which way of splitting a model over devices is fastest."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console

from kernbench.api.results import Printed, StrPath
from kernbench.cli.options import load_changed
from kernbench.cli.plans.ranking import Ranking, as_json, check_goal, print_ranking, rank, run_best
from kernbench.cli.plans.running import LayoutPrograms
from kernbench.errors import UnknownNameError, nearest
from kernbench.hardware import file_of
from kernbench.notebooks import notebook_progress
from kernbench.plans import SHARDS, AllowedSizes, Job, TimedLayout, model_of

_KINDS = ("tp", "pp", "cp", "dp", "ep")
_SHOWN = 8


@dataclass(frozen=True, repr=False)
class PlanResult(Printed):
    """The layouts of a model that fit, the best first; its table has a row for each."""

    ranking: Ranking
    _programs: LayoutPrograms
    _goal: str

    @property
    def layouts(self) -> Sequence[TimedLayout]:
        return self.ranking.timed

    @property
    def best(self) -> TimedLayout:
        return self.ranking.timed[0]

    def write(self, folder: StrPath) -> str:
        """Write the program of the best layout and its configuration.

        Returns the command of a shell that runs it.
        """
        return self._programs.write(self.best, os.fspath(folder))

    def rows(self) -> Sequence[Mapping[str, object]]:
        rows: list[dict[str, object]] = as_json(self.ranking)["layouts"]
        return rows

    def print_to(self, console: Console) -> None:
        print_ranking(self.ranking, console, _SHOWN, self._goal)

    def __repr__(self) -> str:
        job, best = self.ranking.job, self.best
        return (
            f"PlanResult({self.ranking.model.name} on {job.devices} x {self.ranking.machine.name}, "
            f"{len(self.layouts)} layouts, best {best.layout.label}: {best.seconds:.4g} s)"
        )


def plan(
    model: StrPath,
    *,
    machine: StrPath,
    devices: int,
    trains: bool = True,
    batch: int | None = None,
    seq: int = 4096,
    new_tokens: int = 256,
    sizes: Mapping[str, Iterable[int]] | None = None,
    shard: Iterable[str] | None = None,
    run: int = 12,
    compile: bool = False,
    minimize: str = "time",
    price: float | None = None,
) -> PlanResult:
    """Rank the ways of splitting a model over devices, as ``kernbench plan --model`` does.

    Args:
        model: A known model, or a ``config.json``.
        machine: A preset, or a YAML file.
        devices: How many of them.
        trains: Whether they train; else they serve.
        batch: Sequences of a step; None: one per device.
        seq: Tokens of a sequence, or of a prompt.
        new_tokens: Tokens that a server makes for each sequence.
        sizes: Sizes that are looked at, by ``tp``, ``pp``, ``cp``, ``dp``, ``ep``; others: all.
        shard: How replicas may share state, of ``zero3``, ``zero2``, ``hsdp``, ``zero1``, ``ddp``.
        run: Of how many of the best the programs are run; that needs PyTorch.
        compile: Whether layers of those programs are compiled.
        minimize: ``time``, ``energy`` or ``cost``.
        price: USD of a device for an hour.

    Raises:
        UsageError: No layout divides, or none fits.
        UnknownNameError: There is no such model, kind of parallelism, way to share or goal.
        MachineError: There is no such machine.
    """
    for name in sizes or {}:
        if name not in _KINDS:
            raise UnknownNameError(f"sizes of {name!r}: {nearest(name, _KINDS)}")
    shards = None if shard is None else tuple(shard)
    for name in shards or ():
        if name not in SHARDS:
            raise UnknownNameError(f"shard {name!r}: {nearest(name, SHARDS)}")
    shape, file = model_of(os.fspath(model)), file_of(os.fspath(machine))
    loaded, _ = load_changed(f"{file}:{devices}", devices, None, price)
    check_goal(minimize, loaded)
    job = Job(
        trains=trains,
        devices=devices,
        batch=batch or devices,
        seq=seq,
        new_tokens=0 if trains else new_tokens,
    )
    allowed = AllowedSizes({name: tuple(size) for name, size in (sizes or {}).items()}, shards)
    programs = LayoutPrograms(model=shape, job=job, machine=loaded, file=file, compiles=compile)
    state = ["counting layouts"]

    def say(text: str) -> None:
        state[0] = text

    with notebook_progress(lambda: state[0]):
        ranking = rank(shape, job, loaded, allowed, minimize, say)
        ranking = run_best(ranking, run, programs, minimize, say)
    return PlanResult(ranking, programs, minimize)
