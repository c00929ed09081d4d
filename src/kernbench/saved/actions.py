"""What the ranks of a run did, as a part of the saved run: from it the run can be done again."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pydantic_core import from_json

from kernbench.saved.action import ACTORS, Actor
from kernbench.saved.action_checks import check_actions, counts_of, take_programs
from kernbench.saved.consistency import numbers, texts
from kernbench.saved.described import DescribedActions
from kernbench.saved.layout import ACTIONS, DESCRIBED, MEMORY_EVENTS, TEMPLATES
from kernbench.saved.opened import RunFile
from kernbench.saved.parts import write_part, write_table

_WIDTH = 4
Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Actions:
    """Everything that the ranks of a run did, without what the machine made of it."""

    described: dict[str, Any]
    """What the numbers of actions stand for."""
    actors: list[Actor]
    memory_events: Numbers | None = None
    """Events of the run's memory: the number, the actor at work, how many actions it had behind
    it. None in a run that does not record its memory."""


def write_actions(archive: zipfile.ZipFile, actions: Actions) -> None:
    """Write the actions of a run as parts of its file."""
    values = np.concatenate([np.array(actor.values, np.int64) for actor in actions.actors])
    counts = [len(actor.values) // _WIDTH for actor in actions.actors]
    owners = np.repeat([actor.number for actor in actions.actors], counts)
    columns = [owners, *values.reshape(-1, _WIDTH).T]
    arrays = [
        pa.array(column.astype(field.type.to_pandas_dtype()), field.type)
        for column, field in zip(columns, ACTIONS.schema, strict=True)
    ]
    write_table(archive, ACTIONS.part, pa.table(arrays, schema=ACTIONS.schema))
    if actions.memory_events is not None:
        arrays = [pa.array(item, pa.int64()) for item in actions.memory_events.T]
        write_table(
            archive,
            MEMORY_EVENTS.part,
            pa.table(arrays, schema=MEMORY_EVENTS.schema),
            counts=MEMORY_EVENTS.schema.names,
        )
    described = {**actions.described, "actors": [actor.rank for actor in actions.actors]}
    write_part(archive, DESCRIBED, json.dumps(described, default=_plain).encode())


def read_actions(file: RunFile, counts: Mapping[str, int]) -> Actions | None:
    """Read the actions of a run; None if it was saved without.

    Raises:
        UsageError: They are not those of a run; names the part.
    """
    if not file.has(DESCRIBED):
        return None
    described = file.described(DESCRIBED, DescribedActions)
    ranks = described.pop("actors")
    launched = [from_json(text) for text in {*texts(file.table(TEMPLATES, counts), "given")}]
    take_programs(file, described, [tuple(item.get("grid") or ()) for item in launched])
    counts = {**counts, **counts_of(described), ACTORS: len(ranks)}
    table = file.table(ACTIONS, counts)
    owners = numbers(table, "actor")
    values = np.stack(
        [numbers(table, name).astype(np.int64) for name in ("action", *"abc")], axis=1
    )
    starts = np.searchsorted(owners, np.arange(len(ranks) + 1))
    events = None
    if file.has(MEMORY_EVENTS.part):
        events = np.stack(
            [
                numbers(file.table(MEMORY_EVENTS, counts), name)
                for name in ("event", "actor", "place")
            ],
            axis=1,
        )
    check_actions(file, described, ranks, owners, values, events, counts)
    actors = [
        Actor(number, rank, values[starts[number] : starts[number + 1]].ravel().tolist())
        for number, rank in enumerate(ranks)
    ]
    return Actions(described, actors, events)


def _plain(value: Any) -> Any:
    if isinstance(value, Fraction):
        return str(value)
    if isinstance(value, np.integer):
        return int(value)
    raise TypeError(value)
