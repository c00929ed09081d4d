"""Points of a study: what is run, and the hash that its result is known by."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from kernbench.cli.options import DEFAULT_MACHINE
from kernbench.cli.programs.bench_file import Bench, load_bench
from kernbench.cli.programs.kinds import Kind, kind_of
from kernbench.cli.programs.parameters import parameters_of, parse_parameters
from kernbench.cli.programs.scripts import find_script
from kernbench.cli.sweeps.sources import (
    digest,
    imports_torch,
    program_digest,
    program_sources,
    syntax_nodes,
    versions,
)
from kernbench.errors import UnknownNameError, UsageError, nearest
from kernbench.hardware import changed_machine, load_machine, nodes_of, ranks_of, set_keys

ENVIRONMENT = "env."
"""What an axis begins with that is a variable of the environment."""
_TRUE, _FALSE = ("true", "yes", "on"), ("false", "no", "off", "none")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramOption:
    """One option of a program, as a call of ``add_argument`` has it."""

    spelled: str
    """``--hidden-size``."""
    default: Any = None
    """Its default where that is a plain value."""
    action: str = ""
    """``store_true`` and the like."""


def options_of(path: Path) -> dict[str, ProgramOption]:
    """Return the options of a program by name, ``-`` as ``_``; nothing of it is executed.

    They are those of calls that have a text beginning with ``--`` first: argparse's
    ``add_argument``, and ``option`` of click.
    """
    options: dict[str, ProgramOption] = {}
    for file in program_sources(path):
        for node in syntax_nodes(file):
            if isinstance(node, ast.Call):
                for option in _options_in(node):
                    options.setdefault(option.spelled.lstrip("-").replace("-", "_"), option)
    return options


def _options_in(call: ast.Call) -> Iterator[ProgramOption]:
    called = call.func
    name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
    if name not in ("add_argument", "option"):
        return
    keywords = {keyword.arg: keyword.value for keyword in call.keywords}
    default = keywords.get("default")
    action = keywords.get("action")
    if isinstance(action, ast.Attribute):  # argparse.BooleanOptionalAction
        action = ast.Constant(action.attr)
    for arg in call.args:
        if isinstance(arg, ast.Constant) and str(arg.value).startswith("--"):
            yield ProgramOption(
                spelled=str(arg.value),
                default=default.value if isinstance(default, ast.Constant) else None,
                action=str(action.value) if isinstance(action, ast.Constant) else "",
            )


def spelled(values: Mapping[str, str], options: Mapping[str, ProgramOption]) -> Iterator[str]:
    """Yield the arguments by which a program gets values.

    Raises:
        UsageError: A flag is given what is neither true nor false.
    """
    for name, value in values.items():
        option = options.get(name) or ProgramOption(spelled=f"--{name}")
        if not option.action or option.action in ("store", "append"):
            yield from (option.spelled, value)
            continue
        is_set = value.lower() in _TRUE
        if not is_set and value.lower() not in _FALSE:
            raise UsageError(f"{option.spelled} is a flag: true or false, but got {value!r}")
        if option.action == "BooleanOptionalAction":
            yield option.spelled if is_set else f"--no-{option.spelled.removeprefix('--')}"
        elif is_set:
            yield option.spelled


RUN_AXES = ("machine", "ranks")
"""Axes that are no parameters of the program: what ``--machine`` and ``--ranks`` are to a run."""
_NODES = "nnodes"


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
    args: Sequence[str] = ()
    """What a program is given at all points."""
    forced: frozenset[str] = frozenset()
    """Names that are options of a program, whatever its text says."""
    fold: bool = False
    """Whether a PyTorch program's ranks are folded."""


class SweptProgram:
    """A program whose runs are points."""

    axes: tuple[str, ...] = RUN_AXES
    """What runs of its kind have besides its own parameters."""
    kind = Kind.BENCH

    def __init__(self, path: Path, name: str, machine: str, settings: Settings) -> None:
        self.path, self.name, self.machine, self.settings = path, name, machine, settings
        self._digest = program_digest(self.path)
        self._versions = versions(imports_torch(self.path))
        self._common = {
            "kind": self.kind.name,
            "program": str(self.path),
            "digest": self._digest,
            "versions": self._versions,
            "data": settings.data,
            "seed": settings.seed,
            "tf32": settings.tf32,
            "folder": str(Path.cwd()),
        }

    def check_names(self, names: Iterable[str]) -> None:
        """Refuse axes that are neither parameters nor settings of a run.

        Raises:
            UnknownNameError: One is unknown.
        """
        raise NotImplementedError

    def point(self, values: Mapping[str, str]) -> Point:
        """Return the point with these values; the parameters left out have their defaults.

        Raises:
            UnknownNameError: There is no such parameter or machine.
            UsageError: A value is not of its parameter's type, or one is missing.
            MachineError: A machine, or a change of one, is impossible.
        """
        raise NotImplementedError

    def _point(
        self,
        values: Mapping[str, str],
        machine: str,
        ours: Mapping[str, str],
        ranks: int | None,
        known_by: Mapping[str, Any],
        job: Mapping[str, Any],
    ) -> Point:
        """Return a point; ``ours`` are keys of the machine, ``ranks`` what it must have room for.

        ``known_by`` is what else its result depends on, ``job`` what else a worker is told.
        """
        settings = self.settings
        changes = {**settings.changes, **ours}
        known_by = {
            "program": self._digest,
            "machine": _machine_digest(machine, tuple(changes.items()), ranks),
            "data": settings.data,
            "seed": settings.seed,
            "tf32": settings.tf32,
            "versions": self._versions,
            **known_by,
        }
        key = digest(json.dumps(known_by, sort_keys=True, default=repr).encode())[:32]
        told = {**self._common, "machine": machine, "changes": changes, "room": ranks, **job}
        return Point(key=key, values=dict(values), job=told)


def swept(text: str, settings: Settings) -> SweptProgram:
    """Return a bench, a script or a PyTorch program as what its runs are points of.

    Raises:
        KernbenchError: There is no such file or name, or it is none that can run.
    """
    kind = kind_of(text)
    if kind is Kind.BENCH:
        return SweptBench(text, settings)
    return SweptFile(text, kind, settings)


class SweptFile(SweptProgram):
    """A PyTorch program, or a script: its parameters are the options of its command line."""

    def __init__(self, text: str, kind: Kind, settings: Settings) -> None:
        path = find_script(text)
        self.kind = kind
        self.axes = (*RUN_AXES, _NODES) if kind is Kind.PYTORCH else RUN_AXES[:1]
        super().__init__(path, path.stem, settings.machine or DEFAULT_MACHINE, settings)
        self.options: Mapping[str, ProgramOption] = options_of(path)

    def check_names(self, names: Iterable[str]) -> None:
        known = [*self.axes, *self.options]
        for name in names:
            is_ours = name in self.axes or "." in name or name in self.settings.forced
            if not is_ours and self.options and name not in self.options:
                raise UnknownNameError(
                    f"{self.path.name} has no option --{name} that can be seen, and runs have no "
                    f"such axis ({', '.join(self.axes)}, a machine's key with dots, or "
                    f"{ENVIRONMENT}NAME for the environment): {nearest(name, known)}; "
                    f"--arg {name}=VALUE,... gives it one all the same"
                )

    def point(self, values: Mapping[str, str]) -> Point:
        self.check_names(values)
        settings, value = self.settings, dict(values)
        environment = {
            name.removeprefix(ENVIRONMENT): value.pop(name)
            for name in values
            if name.startswith(ENVIRONMENT)
        }
        machine = value.pop("machine", None) or self.machine
        asked = _ranks(value.pop("ranks", None), settings.ranks, "ranks")
        nodes = _ranks(value.pop(_NODES, None), None, _NODES)
        forced = settings.forced
        ours = {name: value.pop(name) for name in values if "." in name and name in value
                and name not in forced}  # fmt: skip
        args = [*settings.args, *spelled(value, self.options)]
        num_nodes, per_node = _divided(machine, asked or ranks_of(machine), nodes)
        ranks = num_nodes * per_node
        known_by = {
            "args": args, "environment": environment, "ranks": [num_nodes, per_node],
            "fold": settings.fold, "kind": self.kind.name,
        }  # fmt: skip
        job = {
            "args": args, "environment": environment, "ranks": ranks, "nodes": num_nodes,
            "per_node": per_node, "fold": settings.fold,
        }  # fmt: skip
        # A single process may start ranks itself, on as many devices as the machine has.
        room = ranks if num_nodes == 1 and ranks > 1 else None
        if num_nodes > 1:
            machine = nodes_of(machine, num_nodes, f"{num_nodes} nodes")
        return self._point(values, machine, ours, room, known_by, job)


def _divided(machine: str, ranks: int, nodes: int | None) -> tuple[int, int]:
    """Return over how many nodes ranks go, and how many are on each.

    Raises:
        UsageError: They do not fill the nodes.
    """
    if nodes is None:
        links = load_machine(machine).spec.links
        outer = None if links is None else links.scale_out
        nodes = 1 if outer is None else -(-ranks // outer.host_size)
    if ranks % nodes:
        raise UsageError(f"{ranks} ranks do not fill {nodes} nodes")
    return nodes, ranks // nodes


class SweptBench(SweptProgram):
    """A bench whose runs are points."""

    def __init__(self, text: str, settings: Settings) -> None:
        self.bench: Bench = load_bench(text)
        self.known = parameters_of(self.bench.run)
        machine = settings.machine or self.bench.machine
        super().__init__(self.bench.path, self.bench.name, machine, settings)

    def check_names(self, names: Iterable[str]) -> None:
        known = [*RUN_AXES, *(bench_parameter.name for bench_parameter in self.known)]
        for name in names:
            if name not in known and "." not in name:
                raise UnknownNameError(
                    f"bench {self.name} has no parameter {name!r}, and runs have no such axis "
                    f"({', '.join(RUN_AXES)}, or a machine's key with dots): "
                    f"{nearest(name, known)}"
                )

    def point(self, values: Mapping[str, str]) -> Point:
        self.check_names(values)
        ours = {name: values[name] for name in values if name in RUN_AXES or "." in name}
        texts = [f"{name}={value}" for name, value in values.items() if name not in ours]
        params = parse_parameters(texts, self.known, self.name)
        defaults = {item.name: item.default for item in self.known if not item.is_required}
        default = self.settings.ranks or self.bench.ranks
        asked = _ranks(ours.pop("ranks", None), default, "ranks")
        machine = ours.pop("machine", None) or self.machine
        ranks = asked or ranks_of(machine)
        known_by = {"params": {**defaults, **params}, "ranks": ranks}
        return self._point(
            values, machine, ours, asked, known_by, {"params": texts, "ranks": ranks}
        )


def distinct(points: Iterable[Point]) -> list[Point]:
    """Return the points without those that have come before under other words."""
    return list({point.key: point for point in reversed(list(points))}.values())[::-1]


def _ranks(text: str | None, otherwise: int | None, name: str) -> int | None:
    if text is None:
        return otherwise
    if not text.isdecimal() or int(text) < 1:
        raise UsageError(f"{name} must be a positive integer, but got {text!r}")
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
    _, machine_changes = set_keys(machine, [f"{key}={text}" for key, text in pairs])
    return changed_machine(machine, {change.key: change.value for change in machine_changes}, ranks)


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
