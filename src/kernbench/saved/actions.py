"""What the ranks of a run did, as a part of the saved run: from it the run can be done again."""

from __future__ import annotations

import json
import zipfile
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kernbench.saved.parts import read_table, write_part, write_table

ACTIONS, DESCRIBED = "actions.parquet", "actions.json"
ACTION_SCHEMA = pa.schema(
    [("actor", pa.int32()), ("action", pa.int8()), *[(each, pa.int64()) for each in "abc"]]
)
"""One row per action, actor by actor and in order; what its numbers mean depends on the action."""
_WIDTH = 4
MEMORY_EVENTS = "actions_memory.parquet"
_EVENT_SCHEMA = pa.schema([(each, pa.int64()) for each in ("event", "actor", "place")])
Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Actor:
    """A thread of control of a run: a rank, or a thread of one; the first one is main."""

    number: int
    rank: int
    values: list[int]
    """Four numbers for each action: which one it is, and what it is done with."""


@dataclass(frozen=True)
class Actions:
    """Everything that the ranks of a run did, without what the machine made of it."""

    described: dict[str, Any]
    """What the numbers of actions stand for."""
    actors: list[Actor]
    memory_events: Numbers | None = None
    """By event of the run's memory: its number, the actor at work, how many actions it had behind
    it. None in a run that does not record its memory."""


def write_actions(archive: zipfile.ZipFile, actions: Actions) -> None:
    """Write the actions of a run as parts of its file."""
    values = np.concatenate([np.array(each.values, np.int64) for each in actions.actors])
    counts = [len(each.values) // _WIDTH for each in actions.actors]
    owners = np.repeat([each.number for each in actions.actors], counts)
    columns = [owners, *values.reshape(-1, _WIDTH).T]
    arrays = [
        pa.array(column.astype(field.type.to_pandas_dtype()), field.type)
        for column, field in zip(columns, ACTION_SCHEMA, strict=True)
    ]
    write_table(archive, ACTIONS, pa.table(arrays, schema=ACTION_SCHEMA))
    if actions.memory_events is not None:
        arrays = [pa.array(each, pa.int64()) for each in actions.memory_events.T]
        write_table(
            archive,
            MEMORY_EVENTS,
            pa.table(arrays, schema=_EVENT_SCHEMA),
            counts=_EVENT_SCHEMA.names,
        )
    described = {**actions.described, "actors": [each.rank for each in actions.actors]}
    write_part(archive, DESCRIBED, json.dumps(described, default=_plain).encode())


def read_actions(archive: zipfile.ZipFile) -> Actions | None:
    """Read the actions of a run; None if it was saved without."""
    if DESCRIBED not in archive.namelist():
        return None
    described = json.loads(archive.read(DESCRIBED))
    table = read_table(archive, ACTIONS)
    owners = table["actor"].to_numpy()
    values = np.stack([table[name].to_numpy() for name in ("action", *"abc")], axis=1)
    values = values.astype(np.int64)
    starts = np.searchsorted(owners, np.arange(len(described["actors"]) + 1))
    actors = [
        Actor(number, rank, values[starts[number] : starts[number + 1]].ravel().tolist())
        for number, rank in enumerate(described.pop("actors"))
    ]
    events = None
    if MEMORY_EVENTS in archive.namelist():
        columns = read_table(archive, MEMORY_EVENTS).columns
        events = np.stack([column.to_numpy() for column in columns], axis=1)
    return Actions(described, actors, events)


def _plain(value: Any) -> Any:
    if isinstance(value, Fraction):
        return str(value)
    if isinstance(value, np.integer):
        return int(value)
    raise TypeError(value)
