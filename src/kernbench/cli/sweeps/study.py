"""Studies: which points a sweep has, from the command line or from a YAML file."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from kernbench.cli.sweeps.points import Point, Settings, SweptProgram, distinct
from kernbench.errors import MachineError, UnknownNameError, UsageError
from kernbench.inputs import MOST_YAML_BYTES, parse_json, parse_yaml, read_text

MOST_POINTS = 1_000_000


@dataclass(frozen=True, kw_only=True)
class Study:
    """What a sweep runs."""

    program: str
    settings: Settings = field(default_factory=Settings)
    fixed: Mapping[str, str] = field(default_factory=dict)
    axes: Mapping[str, Sequence[str]] = field(default_factory=dict)
    chosen: Sequence[Mapping[str, str]] = ()
    """Points beside those of the axes."""
    timeout_s: float | None = None
    memory_mb: float | None = None

    def values(self) -> Iterator[dict[str, str]]:
        """Yield the values of each point: the last axis changes first."""
        for name in self.axes.keys() & self.fixed.keys():
            raise UsageError(f"{name} has a grid and a fixed value; give one of them")
        if self.axes:
            for combination in itertools.product(*self.axes.values()):
                yield {**self.fixed, **dict(zip(self.axes, combination, strict=True))}
        for item in self.chosen:
            yield {**self.fixed, **item}

    @property
    def names(self) -> list[str]:
        """What varies, in order."""
        return list(
            dict.fromkeys([*self.axes, *(name for values in self.chosen for name in values)])
        )

    def points(self, program: SweptProgram) -> list[Point]:
        """Return all points, each once.

        Raises:
            UsageError: There are none, or too many; a value is not of its parameter's type.
            UnknownNameError: There is no such parameter or machine.
        """
        program.check_names([*self.fixed, *self.names])
        empty = [name for name, values in self.axes.items() if not values]
        if empty:
            raise UsageError(f"the grid has no points: {empty[0]} has no values")
        number = len(self.chosen) + (prod(map(len, self.axes.values())) if self.axes else 0)
        if not number:
            raise UsageError(
                "the grid has no points; give axes, as in --grid tokens=16,32 --grid ranks=1,2,4"
            )
        if number > MOST_POINTS:
            raise UsageError(f"the grid has {number:,} points; the most are {MOST_POINTS:,}")
        return distinct(map(program.point, self.values()))


def parse_axes(texts: Iterable[str], option: str = "--grid") -> dict[str, list[str]]:
    """Return the values of each axis of ``NAME=VALUE,...`` texts.

    Commas inside brackets do not separate values.

    Raises:
        UsageError: A text is otherwise, an axis is given twice, or it has a value twice.

    >>> parse_axes(["tp=1,2", "shape=[1,2],[3,4]"])
    {'tp': ['1', '2'], 'shape': ['[1,2]', '[3,4]']}
    """
    axes: dict[str, list[str]] = {}
    for text in texts:
        name, equals, values = text.partition("=")
        name = _name(name)
        if not equals or not name:
            raise UsageError(f"{option} must be NAME=VALUE,VALUE,..., but got {text!r}")
        if name in axes:
            raise UsageError(f"the grid has the axis {name} twice")
        axes[name] = list(split_values(values))
        twice = {axis for axis in axes[name] if axes[name].count(axis) > 1}
        if twice:
            raise UsageError(f"the axis {name} has {min(twice)} twice")
    return axes


def parse_pairs(texts: Iterable[str], option: str) -> dict[str, str]:
    """Return values by name of ``NAME=VALUE`` texts.

    Raises:
        UsageError: A text is otherwise, or a name is given twice.
    """
    pairs: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        name = _name(name)
        if not equals or not name:
            raise UsageError(f"{option} must be NAME=VALUE, but got {text!r}")
        if name in pairs:
            raise UsageError(f"{option} {name} is given twice")
        pairs[name] = value
    return pairs


def parse_shard(text: str | None) -> tuple[int, int]:
    """Return which part of how many, (0, 1) for all.

    Raises:
        UsageError: It is no ``i/N`` with i from 1 to N.

    >>> parse_shard("2/8")
    (1, 8)
    """
    if text is None:
        return 0, 1
    part, slash, count = text.partition("/")
    if slash and part.isdecimal() and count.isdecimal() and 1 <= int(part) <= int(count):
        return int(part) - 1, int(count)
    raise UsageError(f"--shard must be from 1/N to N/N, as in 2/8, but got {text!r}")


def parse_memory(text: str | None) -> float | None:
    """Return a limit in megabytes.

    Raises:
        UsageError: It is no number of MB or GB.

    >>> parse_memory("2GB"), parse_memory("512MB")
    (2000.0, 512.0)
    """
    if text is None:
        return None
    for unit, factor in (("GB", 1000), ("MB", 1)):
        if text.upper().endswith(unit):
            try:
                memory = float(text[: -len(unit)]) * factor
            except ValueError:
                break
            if 0 < memory < float("inf"):
                return memory
    raise UsageError(f"--memory must be like 2GB or 512MB, but got {text!r}")


class _StudyFile(BaseModel):
    """A study as YAML."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    program: str
    """A bench: a file beside the study, or the name of one that ships with kernbench."""
    machine: str | None = None
    ranks: int | None = Field(default=None, ge=1)
    data: bool = True
    seed: int = 0
    params: dict[str, Any] = {}
    set: dict[str, Any] = {}
    """Keys of the machine that differ for all points."""
    grid: dict[str, list[Any]] = {}
    points: list[dict[str, Any]] = []
    timeout: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    memory: str | None = None


def is_study(text: str) -> bool:
    """Return whether a name is that of a study's file, and not of a program."""
    return Path(text).suffix in (".json", ".yaml", ".yml")


def load_study(path: Path) -> Study:
    """Return the study that a YAML or JSON file describes.

    Raises:
        UsageError: It cannot be read, or is no study; names the key.
    """
    try:
        text = read_text(path, MOST_YAML_BYTES)
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: cannot be read: {getattr(error, 'strerror', error)}") from None
    parse = parse_json if path.suffix == ".json" else parse_yaml
    data = parse(text, str(path))
    try:
        described = _StudyFile.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the whole file"
        raise UsageError(
            f"{path}: {where}: {first['msg']}; the keys of a study are "
            f"{', '.join(_StudyFile.model_fields)}"
        ) from None
    beside = path.parent / described.program
    try:
        is_beside = beside.is_file()
    except OSError as error:
        raise UsageError(f"{path}: program: {error.strerror}") from None
    with named(path):
        memory_mb = parse_memory(described.memory)
    return Study(
        program=str(beside) if is_beside else described.program,
        settings=Settings(
            machine=described.machine,
            ranks=described.ranks,
            data=described.data,
            seed=described.seed,
            changes={name: as_text(value) for name, value in described.set.items()},
        ),
        fixed={_name(name): as_text(value) for name, value in described.params.items()},
        axes={_name(name): list(map(as_text, values)) for name, values in described.grid.items()},
        chosen=[{_name(k): as_text(v) for k, v in point.items()} for point in described.points],
        timeout_s=described.timeout,
        memory_mb=memory_mb,
    )


@contextmanager
def named(path: Path) -> Iterator[None]:
    """Say of which file's program, key or value an error is."""
    try:
        yield
    except (UsageError, UnknownNameError, MachineError) as error:
        raise UsageError(f"{path}: {error}") from None


def extended(study: Study, **values: Any) -> Study:
    """Return a study with what the command line says instead; mappings are joined."""
    changes: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            changes[name] = {**getattr(study, name), **value}
        elif value is not None:
            changes[name] = value
    return replace(study, **changes)


def as_text(value: Any) -> str:
    """Return a value of YAML as it would be typed on a command line.

    >>> as_text(True), as_text(None), as_text([1, 2]), as_text(0.5)
    ('true', 'none', '[1,2]', '0.5')
    """
    if value is None or isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{','.join(map(as_text, value))}]"
    return str(value)


def _name(text: str) -> str:
    text = text.strip()
    return text if "." in text else text.replace("-", "_")


def split_values(text: str) -> Iterator[str]:
    """Yield the parts of a text between commas that are not inside brackets."""
    part, depth = "", 0
    for letter in text:
        depth += (letter in "[(") - (letter in "])")
        if letter == "," and depth == 0:
            yield part.strip()
            part = ""
        else:
            part += letter
    if part.strip() or text:
        yield part.strip()
