"""Reading a saved run: its log, its machine and its report, as they were."""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import pyarrow as pa

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
from kernbench.saved.actions import Actions, read_actions
from kernbench.saved.allocations import MEMBER as ALLOCATIONS
from kernbench.saved.allocations import allocations_in, table_of
from kernbench.saved.layout import (
    ABOUT,
    COMMANDS,
    FORMAT,
    HOSTS,
    PARTS,
    RANGES,
    ROWS,
    SOURCES,
    TEMPLATES,
    WAITS,
    WOKEN,
)
from kernbench.saved.parts import read_table
from kernbench.saved.program_lines import read_lines


@dataclass(frozen=True)
class SavedRun:
    """A run that was saved; made by :func:`load_run`. What is large is read when asked for."""

    path: str
    program: str
    """The program's file, as it was named."""
    version: str
    """Of the kernbench that saved it."""
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
        """As ``OpLog.graphs``."""
        return {name: tuple(names) for name, names in self._about["graphs"].items()}

    @cached_property
    def log(self) -> OpLog:
        """What the run did, and when."""
        with _opened(self.path) as archive, uncollected():
            return _read_log(archive, self._about)

    @cached_property
    def actions(self) -> Actions | None:
        """What its ranks did, so that it can be done again; None if it was saved without."""
        with _opened(self.path) as archive, uncollected():
            return read_actions(archive)

    @cached_property
    def allocations(self) -> pa.Table:
        """What it allocated, as a table; empty if it was saved without."""
        with _opened(self.path) as archive:
            if ALLOCATIONS not in archive.namelist():
                return table_of(AllocationLog())
            return read_table(archive, ALLOCATIONS)

    @cached_property
    def sources(self) -> dict[str, str]:
        """The texts of the kernels' source files, by path, as they were when the run was saved."""
        with _opened(self.path) as archive:
            return {
                path: archive.read(f"{SOURCES}{number}").decode(errors="replace")
                for number, path in enumerate(self._about["sources"])
            }


def load_run(path: str | os.PathLike[str]) -> SavedRun:
    """Return a run that ``--save`` wrote, whose parts are whole.

    Raises:
        UsageError: There is no such file, it is no saved run, it is damaged, or another version of
            kernbench wrote it in a form that this one does not read.
    """
    name = os.fspath(path)
    with _opened(name) as archive:
        about = json.loads(archive.read(ABOUT))
        if about["format"] != FORMAT:
            raise UsageError(
                f"{name}: kernbench {about['kernbench']} saved this run in format "
                f"{about['format']}, and this version reads format {FORMAT}; run the program "
                "again with --save"
            )
        damaged = archive.testzip()
        if damaged is not None:
            raise UsageError(f"{name}: this saved run is damaged: {damaged} has other bytes")
        for part in PARTS:
            archive.getinfo(part)
        return SavedRun(
            name,
            about["program"],
            about["kernbench"],
            machine_of_data(about["machine"], f"the machine of {name}"),
            about["report"],
            about,
        )


@contextmanager
def _opened(name: str) -> Iterator[zipfile.ZipFile]:
    """Open the file of a run.

    Raises:
        UsageError: It cannot be read, or what is in it cannot.
    """
    try:
        with zipfile.ZipFile(name) as archive:
            yield archive
    except OSError as error:
        reason = error.strerror or error
        raise UsageError(f"{name}: cannot be read as a saved run: {reason}") from None
    except (zipfile.BadZipFile, KeyError, ValueError, TypeError, pa.ArrowException) as error:
        if isinstance(error, UsageError):
            raise
        what = "is empty" if Path(name).stat().st_size == 0 else "is no run saved with --save"
        raise UsageError(f"{name}: {what}, or it is damaged ({error})") from None


def _columns(archive: zipfile.ZipFile, name: str) -> list[list[Any]]:
    return [column.to_pylist() for column in read_table(archive, name).columns]


def _read_log(archive: zipfile.ZipFile, about: Mapping[str, Any]) -> OpLog:
    log = OpLog()
    templates = _read_templates(archive)
    for launch, number, stream, *lists in zip(*_columns(archive, COMMANDS), strict=True):
        ranks, sips, starts_ps, ends_ps, after, addresses, files, lines = map(tuple, lists)
        if files:
            log.sites[launch] = tuple(zip(files, lines, strict=True))
        log.append(
            Instance(
                templates[number], launch, ranks, sips, starts_ps, ends_ps, stream, addresses, after
            )
        )
    log.host_spans.extend(map(HostSpan, *_columns(archive, HOSTS)))
    log.host_ranges.extend(map(HostRange, *_columns(archive, RANGES)))
    for values in zip(*_columns(archive, WAITS), strict=True):
        log.plain_waits.extend(values)
    log.woken = list(zip(*_columns(archive, WOKEN), strict=True))
    if ALLOCATIONS in archive.namelist():
        log.allocations = allocations_in(read_table(archive, ALLOCATIONS))
    log.program_lines = read_lines(archive, log)
    running = about.get("running")
    log.running = None if running is None else tuple(running)
    log.graphs = {name: tuple(names) for name, names in about["graphs"].items()}
    return log


def _read_templates(archive: zipfile.ZipFile) -> list[Template]:
    rows = _SavedRows(read_table(archive, ROWS))
    found = []
    first = 0
    for given in read_table(archive, TEMPLATES).to_pylist():
        num_rows = given.pop("num_rows")
        engines = {Engine(name): ps for name, ps in given.pop("engine_busy_ps")}
        limits = {Limit(name): ps for name, ps in given.pop("limits_ps")}
        by_rank = tuple(given.pop("hbm_bytes_by_rank"))
        launched_with = json.loads(given.pop("given"))
        energies = {Energy(name): pj for name, pj in given.pop("energy_pj", ())}
        found.append(
            Template(
                **given,
                engine_busy_ps=engines,
                limits_ps=limits,
                hbm_bytes_by_rank=by_rank,
                given=launched_with,
                energy_pj=energies,
                make_rows=rows.maker(first, num_rows),
            )
        )
        first += num_rows
    return found


class _SavedRows:
    """The rows of all templates, of which each makes its own when they are read."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def maker(self, first: int, count: int) -> Callable[[], dict[str, Column]]:
        return partial(self._make, first, count)

    def _make(self, first: int, count: int) -> dict[str, Column]:
        part = self._table.slice(first, count)
        return {name: part[name].to_numpy() for name in ROW_COLUMNS}
