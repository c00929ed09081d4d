"""Numbers of sources, stacks and machines in YAML files: each with where it is from."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from kernbench.errors import UsageError
from kernbench.hardware import known_machines
from kernbench.inputs import parse_yaml

FOLDER = Path(__file__).parent


class Entry(BaseModel):
    """One entry of a table: what it is of, and where its numbers are from."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    source: str = Field(min_length=1)
    """Whose rows these are, as they name it; or the document that says so."""
    rows: int = Field(ge=1)
    """How many published rows the numbers are used for."""
    fitted_to: str = Field(min_length=1)
    """Which of them the numbers were fitted to, and how; ``nothing`` where a document has them."""
    machine: str = ""
    """The machine that it is of; empty for all."""

    @field_validator("machine")
    @classmethod
    def _is_known(cls, machine: str) -> str:
        if machine and machine not in known_machines():
            raise ValueError(f"no machine is {machine!r}")
        return machine

    def key(self) -> Hashable:
        """Return what no two entries of a table have in common."""
        return self.source, self.machine


E = TypeVar("E", bound=Entry)


def table(file: str, name: str, kind: type[E]) -> tuple[E, ...]:
    """Return the entries of one table of a file beside this module."""
    text = (FOLDER / file).read_text(encoding="utf-8")
    return read(parse_yaml(text, file, is_shipped=True), file, name, kind)


def read(data: Any, file: str, name: str, kind: type[E]) -> tuple[E, ...]:
    """Return the entries of one table of a file's contents.

    Raises:
        UsageError: There is no such table, an entry is wrong, or two are of the same.
    """
    listed = data.get(name) if isinstance(data, Mapping) else None
    if not isinstance(listed, list) or not listed:
        raise UsageError(f"{file} has no list {name}")
    entries: dict[Hashable, E] = {}
    for number, value in enumerate(listed, 1):
        where = f"{file}: entry {number} of {name}"
        try:
            entry = kind.model_validate(value)
        except ValidationError as error:
            first = error.errors()[0]
            at = ".".join(map(str, first["loc"]))
            raise UsageError(f"{where}: {at}: {first['msg']} (found {first['input']!r})") from None
        if entry.key() in entries:
            raise UsageError(f"{where} is of the same as another: {entry.key()}")
        entries[entry.key()] = entry
    return tuple(entries.values())
