"""Saved runs with right checksums and wrong contents, and what commands make of them.

``python -m tests.saved.damaging RUN... [--first SEED --count N]`` damages each run in N ways, lets
every command read each, and prints those that end in anything but a result or an error that names
the file.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import random
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from kernbench.cli.programs import failures
from kernbench.cli.programs.reporting import DONE, WRONG_USAGE
from kernbench.errors import KernbenchError
from tests.cli.command_line import kernbench

Parts = dict[str, bytes]
NUMBERS = (-1, -(10**9), 0, 1, 7, 10**9, 2**31 - 1, 2**31, 2**62, -(2**63), 2**63 - 1)
VALUES: tuple[Any, ...] = (
    *NUMBERS, None, True, "", "x", "../x", 1.5, -0.5, 1e308, 10**30, [], {}, [[]], [None], [-1],
    {"a": {"b": [1]}}, [0] * 50, "launch", "a" * 1000,
)  # fmt: skip


def parts_of(path: Path) -> Parts:
    """Return the parts of a saved run."""
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def write(path: Path, parts: Parts) -> Path:
    """Write parts as a saved run, with right checksums."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in parts.items():
            archive.writestr(name, data)
    return path


def table_bytes(table: pa.Table) -> bytes:
    """Return a table as Parquet."""
    out = io.BytesIO()
    pq.write_table(table, out)
    return out.getvalue()


def damaged(parts: Parts, seed: int) -> tuple[str, Parts]:
    """Return parts with one damage, and what it is."""
    draw = random.Random(seed)
    name = draw.choice([part for part in sorted(parts) if not part.startswith("sources/")])
    if draw.random() < 0.06:
        what, changed = _of_parts(draw, name, parts)
        return f"{seed}: {what}", changed
    if name.endswith(".json"):
        what, data = _of_json(draw, parts[name])
    else:
        what, data = _of_table(draw, pq.read_table(io.BytesIO(parts[name])))
    return f"{seed}: {name}: {what}", {**parts, name: data}


def _of_parts(draw: random.Random, name: str, parts: Parts) -> tuple[str, Parts]:
    other = draw.choice(sorted(parts))
    rest = {key: data for key, data in parts.items() if key != name}
    ways: dict[str, Parts] = {
        f"no {name}": rest,
        f"{name} is empty": {**parts, name: b""},
        f"{name} is cut": {**parts, name: parts[name][: len(parts[name]) // 2]},
        f"{name} is {other}": {**parts, name: parts[other]},
        "one more": {**parts, "more.parquet": parts[name]},
        f"a byte of {name}": {**parts, name: _with_byte(draw, parts[name])},
    }
    what = draw.choice(list(ways))
    return what, ways[what]


def _with_byte(draw: random.Random, data: bytes) -> bytes:
    place = draw.randrange(len(data))
    return data[:place] + bytes([draw.randrange(256)]) + data[place + 1 :]


def _of_json(draw: random.Random, data: bytes) -> tuple[str, bytes]:
    result = json.loads(data)
    at, path = result, []
    # At least one key deep, and as deep as chance has it.
    while True:
        keys = list(at) if isinstance(at, dict) else list(range(len(at)))
        key = draw.choice(keys)
        path.append(str(key))
        if isinstance(at[key], dict | list) and at[key] and draw.random() < 0.85:
            at = at[key]
            continue
        break
    way = draw.randrange(5)
    if way == 0:
        del at[key]
        return f"{'.'.join(path)} is gone", json.dumps(result).encode()
    if way == 1 and isinstance(at, list):
        at.insert(draw.randrange(len(at)), at[key])
        return f"{'.'.join(path)} is there twice", json.dumps(result).encode()
    if way == 2 and len(keys) > 1:
        other = draw.choice(keys)
        at[key], at[other] = at[other], at[key]
        return f"{'.'.join(path)} and {other} change places", json.dumps(result).encode()
    value = draw.choice(VALUES)
    at[key] = value
    return f"{'.'.join(path)} = {value!r:.60}", json.dumps(result).encode()


def _of_table(draw: random.Random, table: pa.Table) -> tuple[str, bytes]:
    count = table.num_rows
    ways = [_of_rows, _of_schema] if count else [_of_schema]
    if count:
        ways += [_of_values] * 6
    what, changed = draw.choice(ways)(draw, table)
    return what, table_bytes(changed)


def _of_rows(draw: random.Random, table: pa.Table) -> tuple[str, pa.Table]:
    count = table.num_rows
    order = list(range(count))
    a, b = draw.randrange(count), draw.randrange(count)
    swapped = order.copy()
    swapped[a], swapped[b] = b, a
    shuffled = draw.sample(order, count)
    ways = {
        f"rows {a} and {b} change places": swapped,
        f"row {a} is there twice": [*order[:a], a, *order[a:]],
        f"row {a} is gone": [*order[:a], *order[a + 1 :]],
        "it is cut": order[: count // 2],
        "it is empty": [],
        "rows in other order": shuffled,
        "all rows twice": order * 2,
    }
    what = draw.choice(list(ways))
    return what, table.take(pa.array(ways[what], pa.int64()))


def _of_schema(draw: random.Random, table: pa.Table) -> tuple[str, pa.Table]:
    place = draw.randrange(table.num_columns)
    name, count = table.column_names[place], table.num_rows
    others = {
        "floats": pa.array(np.full(count, np.nan)),
        "texts": pa.array(["x"] * count, pa.string()),
        "nulls": pa.nulls(count, table.schema.field(place).type),
        "bytes": pa.array([b"\xff\xfe"] * count, pa.binary()),
        "lists": pa.array([[1]] * count, pa.list_(pa.int64())),
        "decimals": pa.array(np.zeros(count, np.int16)),
    }
    way = draw.choice([*others, "gone", "more", "named"])
    if way == "gone":
        return f"no column {name}", table.drop_columns([name])
    if way == "more":
        return "a column more", table.append_column("more", pa.array([0] * count, pa.int64()))
    if way == "named":
        names = [
            "other" if column_name == name else column_name for column_name in table.column_names
        ]
        return f"{name} has another name", table.rename_columns(names)
    return f"{name} is of {way}", table.set_column(place, name, others[way])


def _of_values(draw: random.Random, table: pa.Table) -> tuple[str, pa.Table]:
    place = draw.randrange(table.num_columns)
    field = table.schema.field(place)
    values = table.column(place).to_pylist()
    rows = draw.choice([[draw.randrange(len(values))], list(range(len(values)))])
    what = ""
    for row in rows:
        if not what or draw.random() < 0.5:
            value = _other(draw, field.type, values, row)
            what = what or f"{field.name} of {len(rows)} rows from {rows[0]} = {value!r:.60}"
        values[row] = value
    nullable = pa.field(field.name, field.type, nullable=True)
    return what, table.set_column(place, nullable, pa.array(values, field.type))


def _other(draw: random.Random, kind: pa.DataType, values: list[Any], row: int) -> Any:
    if draw.random() < 0.1:
        return None
    if draw.random() < 0.2:
        return draw.choice(values)
    if pa.types.is_map(kind):
        own = list(values[row])
        return draw.choice([[], [*own, *own], [("x", 1)], [(key, -1) for key, _ in own]])
    if pa.types.is_list(kind):
        own = list(values[row])
        like = own or [0 if pa.types.is_integer(kind.value_type) else ""]
        longer = [*own, _other(draw, kind.value_type, like, 0)]
        return draw.choice([[], longer, own[:-1], longer[::-1], own * 3])
    if pa.types.is_integer(kind):
        most = (1 << (kind.bit_width - 1)) - 1
        near = values[row] + draw.choice([-1, 1, 1000]) if values[row] is not None else 0
        return max(min(draw.choice([near, *NUMBERS]), most), -most - 1)
    return draw.choice(["", "x", "kernel", "wait", "{", "{}", '{"grid": [1]}', "\x00", "\u202e"])


def commands(run: Path, other: Path, folder: Path) -> Iterator[list[str | Path]]:
    """Yield the commands that read a run; ``other`` is a right one."""
    yield ["why", run, "--path"]
    yield ["why", run, "--lines"]
    yield ["why", run, "--lines", "matmul"]
    yield ["why", run, "--energy"]
    yield ["why", run, "--communication"]
    yield ["memory", run, "--rank", "0"]
    yield ["memory", run, "--json", "-"]
    yield ["trace", run, folder / "trace.json"]
    yield ["trace", run, folder / "trace.pftrace"]
    yield ["trace", run, folder / "kineto", "--kineto"]
    yield ["trace", run, folder / "chakra", "--chakra"]
    yield ["diff", run, other, "--lines"]
    yield ["diff", other, run, "--lines"]
    yield ["report", run, "-o", folder / "page.html"]
    yield ["report", other, run, "-o", folder / "page.html"]
    yield ["goodput", run, "--checkpoint-s", "10", "--histories", "20"]
    yield ["retime", run, "--save", folder / "again.run", "--memory"]
    yield ["findings", run, "--json", "-"]


def complaint(command: list[str | Path], run: Path) -> str:
    """Return what is wrong with how a command ends; empty where nothing is."""
    kept: list[BaseException] = []
    described = failures.describe_failure

    def describe(error: BaseException) -> str:
        kept.append(error)
        return described(error)

    failures.describe_failure = describe
    began = time.process_time()
    try:
        done = kernbench(*command)
    finally:
        failures.describe_failure = described
    took_s = time.process_time() - began
    said = f"{command[0]} {' '.join(map(str, command[2:]))[:40]}"
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        return f"{said}: raises {done.exception!r}"
    for error in kept:
        causes = [cause for _, cause in failures.root_causes(error)]
        if not all(isinstance(cause, KernbenchError) for cause in causes):
            return f"{said}: {described(error)[:300]}"
    if done.exit_code == WRONG_USAGE and str(run) not in done.output.replace("\n", ""):
        return f"{said}: does not name the file: {done.output[:300]}"
    if done.exit_code not in (DONE, WRONG_USAGE) and not kept:
        return f"{said}: ends with {done.exit_code}: {done.output[:300]}"
    return f"{said}: takes {took_s:.1f} s" if took_s > 10 else ""


def complaints(
    path: Path, seed: int, folder: Path, chosen: Callable[[int], bool] = lambda _: True
) -> list[str]:
    """Damage a run by a seed, read it by the chosen commands, and return what is wrong."""
    what, parts = damaged(parts_of(path), seed)
    run = write(folder / "damaged.run", parts)
    result = []
    for number, command in enumerate(commands(run, path, folder)):
        if chosen(number):
            said = complaint(command, run)
            if said:
                result.append(f"{path.name} {what}: {said}")
    return result


def in_share(seed: int, share: int, number: int) -> bool:
    """Return whether a command reads a run, by its number and the seed of the damage."""
    return number % share == seed % share


def main() -> int:
    """Damage the runs that are named, and return how many findings there are, at most 1."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--share", type=int, default=1, help="one in so many commands reads each")
    args = parser.parse_args()
    number = 0
    for path in [item.resolve() for item in args.runs]:
        for seed in range(args.first, args.first + args.count):
            with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
                share = partial(in_share, seed, args.share)
                for complaint in complaints(path, seed, Path(folder), share):
                    number += 1
                    print(complaint, flush=True)
    print(f"{args.count * len(args.runs):,} damaged runs, {number} findings")
    return min(number, 1)


if __name__ == "__main__":
    sys.exit(main())
