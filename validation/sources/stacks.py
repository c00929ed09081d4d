"""The software stacks that sources measured: how each runs a transformer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from pydantic import field_validator

from kernbench.plans import PLAIN, Stack, TrainingRun
from validation.sources.tables import Entry, table


def _checked(kind: type[Any], value: Any, where: str) -> None:
    """Refuse what is no mapping, or has a key that a record has no field for."""
    if not isinstance(value, Mapping):
        raise ValueError(f"{where} must have keys and values")
    known = {field.name for field in fields(kind)}
    unknown = [key for key in value if key not in known]
    if unknown:
        raise ValueError(f"{where} has no key {unknown[0]!r}; it has {', '.join(sorted(known))}")


class OfSource(Entry):
    """The stack of a source."""

    how: Stack

    @field_validator("how", mode="before")
    @classmethod
    def _has_known_keys(cls, how: Any) -> Any:
        _checked(Stack, how, "how")
        runs = how.get("runs", {})
        for run in (*(runs.values() if isinstance(runs, Mapping) else ()), how.get("run", {})):
            _checked(TrainingRun, run, "a run")
        return how


STACKS: dict[str, Stack] = {
    source.source: source.how for source in table("stacks.yaml", "stacks", OfSource)
}


def stack_of(source: str) -> Stack:
    """Return the stack that a source measured; a plain one for an unknown source."""
    return STACKS.get(source, PLAIN)
