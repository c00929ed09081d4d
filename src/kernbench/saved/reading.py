"""Reading a saved run: its log, its machine and its report, as they were."""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from kernbench.commands import Engine
from kernbench.errors import UsageError
from kernbench.hardware import Machine, machine_of_data
from kernbench.op_log import (
    ROW_COLUMNS,
    Column,
    HostRange,
    HostSpan,
    Instance,
    Limit,
    OpLog,
    Template,
)
from kernbench.saved.layout import (
    ABOUT,
    COMMANDS,
    FORMAT,
    HOSTS,
    RANGES,
    ROWS,
    SOURCES,
    TEMPLATES,
    WAITS,
    WOKEN,
)


@dataclass(frozen=True)
class SavedRun:
    """A run that was saved; made by :func:`load_run`."""

    path: str
    program: str
    """The program's file, as it was named."""
    version: str
    """Of the kernbench that saved it."""
    machine: Machine
    report: Mapping[str, Any]
    """What ``torch.report()`` returned, and the remarks about the run."""
    log: OpLog
    _source_paths: tuple[str, ...]

    @property
    def ranks(self) -> int:
        """World size."""
        return int(self.report["ranks"])

    @cached_property
    def sources(self) -> dict[str, str]:
        """The texts of the kernels' source files, by path, as they were when the run was saved."""
        with zipfile.ZipFile(self.path) as archive:
            return {
                path: archive.read(f"{SOURCES}{number}").decode(errors="replace")
                for number, path in enumerate(self._source_paths)
            }


def load_run(path: str | os.PathLike[str]) -> SavedRun:
    """Read a run that ``--save`` or ``torch.save_run`` wrote.

    Raises:
        UsageError: There is no such file, it is no saved run, it is damaged, or another version of
            kernbench wrote it in a form that this one does not read.
    """
    name = os.fspath(path)
    try:
        with zipfile.ZipFile(name) as archive:
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
            log = _read_log(archive, about)
    except OSError as error:
        reason = error.strerror or error
        raise UsageError(f"{name}: cannot be read as a saved run: {reason}") from None
    except (zipfile.BadZipFile, KeyError, ValueError, TypeError, pa.ArrowException) as error:
        if isinstance(error, UsageError):
            raise
        what = "is empty" if Path(name).stat().st_size == 0 else "is no run saved with --save"
        raise UsageError(f"{name}: {what}, or it is damaged ({error})") from None
    return SavedRun(
        name,
        about["program"],
        about["kernbench"],
        machine_of_data(about["machine"], f"the machine of {name}"),
        about["report"],
        log,
        tuple(about["sources"]),
    )


def _read_table(archive: zipfile.ZipFile, name: str) -> pa.Table:
    return pq.read_table(pa.BufferReader(archive.read(name)))


def _columns(archive: zipfile.ZipFile, name: str) -> list[list[Any]]:
    return [column.to_pylist() for column in _read_table(archive, name).columns]


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
    log.graphs = {name: tuple(names) for name, names in about["graphs"].items()}
    return log


def _read_templates(archive: zipfile.ZipFile) -> list[Template]:
    rows = _SavedRows(_read_table(archive, ROWS))
    found = []
    first = 0
    for given in _read_table(archive, TEMPLATES).to_pylist():
        num_rows = given.pop("num_rows")
        engines = {Engine(name): ps for name, ps in given.pop("engine_busy_ps")}
        limits = {Limit(name): ps for name, ps in given.pop("limits_ps")}
        by_rank = tuple(given.pop("hbm_bytes_by_rank"))
        launched_with = json.loads(given.pop("given"))
        found.append(
            Template(
                **given,
                engine_busy_ps=engines,
                limits_ps=limits,
                hbm_bytes_by_rank=by_rank,
                given=launched_with,
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
