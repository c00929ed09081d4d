"""Reading a saved run: its log, its machine and its report, as they were."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain
from operator import lt
from typing import Any

import numpy as np
import pyarrow as pa
from pydantic_core import from_json

from kernbench.commands import Engine
from kernbench.errors import UsageError
from kernbench.hardware import Machine, machine_of_data
from kernbench.memory import AllocationLog
from kernbench.op_log import (
    ROW_COLUMNS,
    Column,
    Energy,
    HostRange,
    HostSpan,
    Instance,
    Limit,
    OpLog,
    Template,
    uncollected,
)
from kernbench.saved.action import Actions
from kernbench.saved.allocations import allocations_in, read_actions, read_lines, table_of
from kernbench.saved.consistency import (
    check_allocations,
    check_hosts,
    check_log,
    lists,
    numbers,
    texts,
)
from kernbench.saved.described import About, Given, Version
from kernbench.saved.layout import (
    ABOUT,
    ALLOCATIONS,
    COMMANDS,
    FORMAT,
    HOSTS,
    RANGES,
    ROWS,
    SOURCES,
    TABLES,
    TEMPLATES,
    WAITS,
    WOKEN,
    TableLayout,
)
from kernbench.saved.opened import RunFile, opened

_RANK_BYTES = 4096
"""What a rank takes in memory, about, where each is looked at."""


@dataclass(frozen=True)
class SavedRun:
    """A run that was saved; made by :func:`load_run`. What is large is read when asked for."""

    path: str
    program: str
    """The program's file, as it was named."""
    version: str
    """The version of the kernbench that saved it."""
    machine: Machine
    report: Mapping[str, Any]
    """What ``torch.report()`` returned, and the remarks about the run."""
    _about: Mapping[str, Any]

    @property
    def ranks(self) -> int:
        """World size."""
        return int(self.report["ranks"])

    @property
    def graphs(self) -> dict[str, tuple[str, ...]]:
        """The same as ``OpLog.graphs``."""
        return {name: tuple(names) for name, names in self._about["graphs"].items()}

    @cached_property
    def log(self) -> OpLog:
        """What the run did, and when."""
        with opened(self.path) as file, uncollected():
            return _read_log(file, self._about, self.machine)

    @cached_property
    def actions(self) -> Actions | None:
        """What its ranks did, so that it can be done again; None if it was saved without."""
        with opened(self.path) as file, uncollected():
            return read_actions(file, counts_of_run(self._about, self.machine))

    @cached_property
    def allocations(self) -> pa.Table:
        """What it allocated, as a table; empty if it was saved without."""
        with opened(self.path) as file:
            return read_allocations(file, counts_of_run(self._about, self.machine))

    @cached_property
    def sources(self) -> dict[str, str]:
        """The texts of the kernels' source files, by path, as they were when the run was saved."""
        with opened(self.path) as file:
            return {
                path: file.read(f"{SOURCES}{number}").decode(errors="replace")
                for number, path in enumerate(self._about["sources"])
            }


def load_run(path: str | os.PathLike[str]) -> SavedRun:
    """Return a run that ``--save`` wrote, whose parts are whole.

    Raises:
        UsageError: There is no such file, it is no saved run, it is damaged, or another version of
            kernbench wrote it in a form that this one does not read.
    """
    name = os.fspath(path)
    with opened(name) as file:
        if not file.has(ABOUT):
            raise UsageError(f"{name}: is no run saved with --save: it has no {ABOUT}")
        file.check_whole()
        version = file.described(ABOUT, Version)
        if version["format"] != FORMAT:
            raise UsageError(
                f"{name}: kernbench {version['kernbench']} saved this run in format "
                f"{version['format']}, and this version reads format {FORMAT}; run the program "
                "again with --save"
            )
        about = file.described(ABOUT, About)
        for layout in TABLES:
            if not file.has(layout.part):
                raise file.damaged(layout.part, "the part is missing")
        machine = machine_of_data(about["machine"], f"the machine of {name}")
        _check_about(file, about, machine)
        return SavedRun(name, about["program"], about["kernbench"], machine, about["report"], about)


def _check_about(file: RunFile, about: Mapping[str, Any], machine: Machine) -> None:
    """Hold what a run says of itself against its machine.

    Raises:
        UsageError: It contradicts itself; names the key.
    """
    ranks, running = about["report"]["ranks"], about.get("running")
    if ranks > machine.num_sips:
        said = f"report.ranks: {ranks:,} ranks, of a machine with {machine.num_sips:,} SIPs"
        raise file.damaged(ABOUT, said)
    file.take(ABOUT, ranks * _RANK_BYTES)
    if running is not None and not (running and all(map(lt, running, [*running[1:], ranks]))):
        raise file.damaged(ABOUT, f"running: not some of {ranks:,} ranks in order")
    ran, told = ranks if running is None else len(running), len(about["report"]["per_rank"])
    if told != ran:
        said = f"report.per_rank: it is of {told:,} ranks, and {ran:,} have run"
        raise file.damaged(ABOUT, said)


def _read_log(file: RunFile, about: Mapping[str, Any], machine: Machine) -> OpLog:
    log = OpLog()
    log.path = file.name
    counts = counts_of_run(about, machine)
    templates = file.table(TEMPLATES, counts)
    counts["templates"] = templates.num_rows
    tables = {table.part: file.table(table, counts) for table in TABLES[1:]}
    rows, commands = tables[ROWS.part], tables[COMMANDS.part]
    check_log(file, templates, rows, commands, counts)
    launches = numbers(commands, "launch")
    check_hosts(file, tables, np.sort(launches), about.get("running"))
    result = _make_templates(file, templates, rows)
    ranks, sips, starts_ps, ends_ps, after, addresses, files, lines = (
        lists(commands, column.name) for column in COMMANDS.columns[3:]
    )
    numbered = launches.tolist()
    log.sites = {
        launch: tuple(zip(*file, strict=True))
        for launch, *file in zip(numbered, files, lines, strict=True)
        if file[0]
    }
    used = [result[number] for number in numbers(commands, "template").tolist()]
    streams = texts(commands, "stream")
    log.instances.extend(
        map(Instance, used, numbered, ranks, sips, starts_ps, ends_ps, streams, addresses, after)
    )
    log.host_spans.extend(map(HostSpan, *_columns(tables, HOSTS)))
    log.host_ranges.extend(map(HostRange, *_columns(tables, RANGES)))
    log.plain_waits.extend(chain.from_iterable(zip(*_columns(tables, WAITS), strict=True)))
    log.woken = list(zip(*_columns(tables, WOKEN), strict=True))
    if file.has(ALLOCATIONS.part):
        log.allocations = allocations_in(read_allocations(file, counts))
    log.program_lines = read_lines(file, numbered, tables[HOSTS.part].num_rows)
    running = about.get("running")
    log.running = None if running is None else tuple(running)
    log.graphs = {name: tuple(names) for name, names in about["graphs"].items()}
    return log


def _columns(tables: Mapping[str, pa.Table], layout: TableLayout) -> list[Sequence[Any]]:
    table = tables[layout.part]
    return [
        texts(table, column.name)
        if pa.types.is_dictionary(column.type)
        else numbers(table, column.name).tolist()
        for column in layout.columns
    ]


def counts_of_run(about: Mapping[str, Any], machine: Machine) -> dict[str, int]:
    """Return how many there are of what columns name."""
    ranks = about["report"]["ranks"]
    return {"ranks": ranks, "SIPs": machine.num_sips, "links": len(machine.links)}


def read_allocations(file: RunFile, counts: Mapping[str, int]) -> pa.Table:
    """Return what a run allocated, as a table; empty if it was saved without.

    Raises:
        UsageError: It is not that of a run.
    """
    if not file.has(ALLOCATIONS.part):
        return table_of(AllocationLog())
    table = file.table(ALLOCATIONS, counts)
    check_allocations(file, table)
    return table


def _make_templates(file: RunFile, table: pa.Table, rows: pa.Table) -> list[Template]:
    kept = _SavedRows(rows)
    templates = []
    first = 0
    launched_with: dict[str, Any] = {}
    for values in table.to_pylist():
        num_rows, text = values.pop("num_rows"), values.pop("given")
        if text not in launched_with:
            file.hold(TEMPLATES.part, Given, text)
            launched_with[text] = from_json(text)
        engines = {Engine(name): ps for name, ps in values.pop("engine_busy_ps")}
        limits = {Limit(name): ps for name, ps in values.pop("limits_ps")}
        by_rank = tuple(values.pop("hbm_bytes_by_rank"))
        energies = {Energy(name): pj for name, pj in values.pop("energy_pj", ())}
        templates.append(
            Template(
                **values,
                engine_busy_ps=engines,
                limits_ps=limits,
                hbm_bytes_by_rank=by_rank,
                launched_with=launched_with[text],
                energy_pj=energies,
                make_rows=kept.maker(first, num_rows),
            )
        )
        first += num_rows
    return templates


class _SavedRows:
    """The rows of all templates, of which each makes its own when they are read."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def maker(self, first: int, count: int) -> Callable[[], dict[str, Column]]:
        return partial(self._make, first, count)

    def _make(self, first: int, count: int) -> dict[str, Column]:
        part = self._table.slice(first, count)
        return {name: part[name].to_numpy() for name in ROW_COLUMNS}
