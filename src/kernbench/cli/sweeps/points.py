"""Points of a study: what is run, and the hash that its result is known by."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from kernbench.cli.programs.bench_file import Bench, load_bench
from kernbench.cli.programs.parameters import parameters_of, parse_parameters
from kernbench.cli.sweeps.sources import digest, imports_torch, program_digest, versions
from kernbench.errors import UnknownNameError, UsageError, nearest
from kernbench.hardware import changed_machine, load_machine, ranks_of, set_keys

RUN_AXES = ("machine", "ranks")
"""Axes that are no parameters of the program: what ``--machine`` and ``--ranks`` are to a run."""


@dataclass(frozen=True, kw_only=True)
class Point:
    """One run of a program."""

    key: str
    """Hash of all that its result depends on."""
    values: Mapping[str, str]
    """What was asked for, by axis or parameter, as typed."""
    job: Mapping[str, Any]
    """What a worker is told."""

    @property
    def label(self) -> str:
        """The point in words."""
        return ", ".join(f"{name}={value}" for name, value in self.values.items())


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What all points of a study have in common."""

    machine: str | None = None
    ranks: int | None = None
    data: bool = True
    seed: int = 0
    tf32: str = "round"
    changes: Mapping[str, str] = field(default_factory=dict)
    """Keys of the machine that are changed, by dotted path."""


class SweptBench:
    """A bench whose runs are points."""

    def __init__(self, given: str, settings: Settings) -> None:
        self.bench: Bench = load_bench(given)
        self.path: Path = self.bench.path
        self.settings = settings
        self.known = parameters_of(self.bench.run)
        self._digest = program_digest(self.path)
        self._versions = versions(imports_torch(self.path))
        self._common = {
            "program": str(self.path),
            "digest": self._digest,
            "versions": self._versions,
            "data": settings.data,
            "seed": settings.seed,
            "tf32": settings.tf32,
            "folder": str(Path.cwd()),
        }

    @property
    def name(self) -> str:
        """How errors and folders call it."""
        return self.bench.name

    def check_names(self, names: Iterable[str]) -> None:
        """Refuse axes that are neither parameters nor settings of a run.

        Raises:
            UnknownNameError: One is unknown.
        """
        known = [*RUN_AXES, *(each.name for each in self.known)]
        for name in names:
            if name not in known and "." not in name:
                raise UnknownNameError(
                    f"bench {self.name} has no parameter {name!r}, and runs have no such axis "
                    f"({', '.join(RUN_AXES)}, or a machine's key with dots): "
                    f"{nearest(name, known)}"
                )

    def point(self, values: Mapping[str, str]) -> Point:
        """Return the point with these values; the parameters left out have their defaults.

        Raises:
            UnknownNameError: There is no such parameter or machine.
            UsageError: A value is not of its parameter's type, or one is missing.
            MachineError: A machine, or a change of one, is impossible.
        """
        self.check_names(values)
        ours = {name: values[name] for name in values if name in RUN_AXES or "." in name}
        texts = [f"{name}={value}" for name, value in values.items() if name not in ours]
        params = parse_parameters(texts, self.known, self.name)
        defaults = {each.name: each.default for each in self.known if not each.is_required}
        settings = self.settings
        asked = _ranks(ours.pop("ranks", None), settings.ranks or self.bench.ranks)
        machine = ours.pop("machine", None) or settings.machine or self.bench.machine
        ranks = asked or ranks_of(machine)
        changes = {**settings.changes, **ours}
        known_by = {
            "program": self._digest,
            "params": {**defaults, **params},
            "machine": _machine_digest(machine, tuple(changes.items()), asked),
            "ranks": ranks,
            "data": settings.data,
            "seed": settings.seed,
            "tf32": settings.tf32,
            "versions": self._versions,
        }
        key = digest(json.dumps(known_by, sort_keys=True, default=repr).encode())[:32]
        job = {
            **self._common,
            "params": texts,
            "machine": machine,
            "changes": changes,
            "room": asked,
            "ranks": ranks,
        }
        return Point(key=key, values=dict(values), job=job)


def distinct(points: Iterable[Point]) -> list[Point]:
    """Return the points without those that have come before under other words."""
    return list({point.key: point for point in reversed(list(points))}.values())[::-1]


def _ranks(text: str | None, otherwise: int | None) -> int | None:
    if text is None:
        return otherwise
    if not text.isdecimal() or int(text) < 1:
        raise UsageError(f"ranks must be a positive integer, but got {text!r}")
    return int(text)


def changed(
    spec: str, changes: Sequence[tuple[str, str]] | Mapping[str, str], ranks: int | None
) -> Any:
    """Return the machine that a run gets: loaded with room for its ranks, some keys changed.

    Raises:
        KernbenchError: There is no such machine, key or room.
    """
    machine = load_machine(spec, ranks)
    if not changes:
        return machine
    pairs = changes.items() if isinstance(changes, Mapping) else changes
    _, found = set_keys(machine, [f"{key}={text}" for key, text in pairs])
    return changed_machine(machine, {each.key: each.value for each in found}, ranks)


@cache
def _machine_digest(spec: str, changes: tuple[tuple[str, str], ...], ranks: int | None) -> str:
    """Return a hash of a machine's description; one too small for the ranks is left to the run."""
    described = changed(spec, changes, None)
    try:
        machine = changed(spec, changes, ranks)
    except UsageError:
        machine = described
    text = machine.spec.model_dump_json(exclude={"sources"})
    return digest(
        text.encode(), repr((machine.num_sips, machine.shape, machine.num_hosts)).encode()
    )
