"""Small files that stand for more than a machine holds, or for work without end, as saved runs.

``python -m tests.saved.bombs RUN [NAME...]`` makes them of a saved run, lets every command read
each in a process of its own, and prints what takes more than 500 MB or 10 s, or ends in anything
but a result or an error that names the file.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tests.saved.damaging import Parts, commands, complaint, parts_of, table_bytes, write

ROOT = Path(__file__).parents[2]
MOST_MB, MOST_S = 500, 10
MANY = 20_000_000
Writer = Callable[[Path, Parts], None]
BOMBS: dict[str, Writer] = {}


def _bomb(function: Callable[[Parts], Parts]) -> Callable[[Parts], Parts]:
    BOMBS[function.__name__] = lambda path, parts: void(write(path, function(parts)))
    return function


def _file(function: Writer) -> Writer:
    BOMBS[function.__name__] = function
    return function


def void(_: Any) -> None:
    """Return nothing of what was made."""


def _table(parts: Parts, name: str) -> pa.Table:
    return pq.read_table(io.BytesIO(parts[name]))


def _repeated(parts: Parts, name: str, count: int) -> Parts:
    """Make a table so many copies of its first row, which take a few bytes."""
    table = _table(parts, name)
    columns = []
    for column in table.columns:
        first = column.combine_chunks()[:1]
        if pa.types.is_dictionary(first.type):
            codes = pa.array(np.zeros(count, np.int32))
            columns.append(pa.DictionaryArray.from_arrays(codes, first.dictionary))
        elif pa.types.is_integer(first.type):
            columns.append(pa.array(np.full(count, first[0].as_py()), first.type))
        else:
            columns.append(first.take(pa.array(np.zeros(count, np.int64))))
    names = pa.schema([item.with_nullable(False) for item in table.schema])
    return {**parts, name: table_bytes(pa.table(columns, schema=names))}


def _of_rows(part: str, count: int) -> None:
    BOMBS[f"rows of {part}"] = lambda path, parts: void(
        write(path, _repeated(parts, f"{part}.parquet", count))
    )


for _part in ("hosts", "waits", "woken", "lines_hosts", "lines_commands", "actions_memory"):
    _of_rows(_part, MANY)
for _part in ("rows", "memory", "actions", "lines"):
    _of_rows(_part, MANY // 6)
for _part in ("commands", "templates"):
    _of_rows(_part, MANY // 60)


def _set(table: pa.Table, name: str, values: Any) -> bytes:
    place = table.column_names.index(name)
    kind = table.schema.field(place).type
    return table_bytes(table.set_column(place, name, pa.array(values, kind)))


@_bomb
def all_rows_of_all_commands(parts: Parts) -> Parts:
    """Each of many commands is of a template of many rows."""
    many = _repeated(_repeated(parts, "rows.parquet", 200_000), "commands.parquet", 20_000)
    templates = _table(parts, "templates.parquet")
    counts = [200_000] + [0] * (templates.num_rows - 1)
    commands = _table(many, "commands.parquet")
    return {
        **many,
        "templates.parquet": _set(templates, "num_rows", counts),
        "commands.parquet": _set(commands, "launch", list(range(1, 1 + commands.num_rows))),
        "lines_commands.parquet": table_bytes(
            pa.table({"line": pa.array(np.zeros(commands.num_rows, np.int32))})
        ),
    }


@_bomb
def a_parameter_of_many(parts: Parts) -> Parts:
    rows = _table(parts, "rows.parquet")
    return {**parts, "rows.parquet": _set(rows, "src_param", [2**31 - 1] * rows.num_rows)}


@_bomb
def lists_of_ranks(parts: Parts) -> Parts:
    table = _table(parts, "commands.parquet")
    ranks = [[0] * 20_000_000, *table["rank"].to_pylist()[1:]]
    return {**parts, "commands.parquet": _set(table, "rank", ranks)}


@_bomb
def a_long_label(parts: Parts) -> Parts:
    """One text of 100 MB, which all rows name."""
    return _with_label(parts, ["x" * 100_000_000], 100_000)


@_bomb
def many_labels(parts: Parts) -> Parts:
    return _with_label(parts, ["x" * 1000 + str(index) for index in range(300_000)], 300_000)


def _with_label(parts: Parts, labels: list[str], count: int) -> Parts:
    hosts = _table(_repeated(parts, "hosts.parquet", count), "hosts.parquet")
    codes = pa.array(np.arange(count, dtype=np.int32) % len(labels))
    column = pa.DictionaryArray.from_arrays(codes, pa.array(labels))
    place = hosts.column_names.index("label")
    lines = {"line": pa.array(np.zeros(count, np.int32))}
    return {
        **parts,
        "hosts.parquet": table_bytes(hosts.set_column(place, "label", column)),
        "lines_hosts.parquet": table_bytes(pa.table(lines)),
    }


@_bomb
def a_long_name_of_templates(parts: Parts) -> Parts:
    table = _table(parts, "templates.parquet")
    names = ["x" * 200_000_000] * table.num_rows
    return {**parts, "templates.parquet": _set(table, "name", names)}


@_bomb
def what_templates_were_launched_with(parts: Parts) -> Parts:
    table = _table(parts, "templates.parquet")
    texts = ["[" * 1_000_000, '{"grid":[' + "0," * 30_000_000 + "0]}", *["{}"] * table.num_rows]
    return {**parts, "templates.parquet": _set(table, "given", texts[: table.num_rows])}


@_bomb
def one_more_part(parts: Parts) -> Parts:
    return {**parts, "more": bytes(1_500_000_000)}


@_bomb
def a_long_source(parts: Parts) -> Parts:
    return {**parts, "sources/0": bytes(1_500_000_000)}


@_bomb
def spaces(parts: Parts) -> Parts:
    return {**parts, "run.json": parts["run.json"] + b" " * 1_000_000_000}


@_bomb
def brackets(parts: Parts) -> Parts:
    return {**parts, "run.json": b"[" * 50_000_000}


@_bomb
def empty_lists(parts: Parts) -> Parts:
    return {**parts, "run.json": b'{"format":2,"x":[' + b"[]," * 30_000_000 + b"[]]}"}


@_bomb
def tuples_of_actions(parts: Parts) -> Parts:
    lists = b'{"tuples":[' + b"[]," * 30_000_000 + b"[]],"
    return {**parts, "actions.json": lists + parts["actions.json"][1:]}


def _about(parts: Parts, *path: str, value: Any, part: str = "run.json") -> Parts:
    data = json.loads(parts[part])
    at = data
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    return {**parts, part: json.dumps(data).encode()}


@_bomb
def ranks(parts: Parts) -> Parts:
    return _about(parts, "report", "ranks", value=2_000_000_000)


@_bomb
def ranks_and_sips(parts: Parts) -> Parts:
    return _about(
        _about(parts, "report", "ranks", value=2_000_000_000),
        *("machine", "num_sips"),
        value=2_000_000_000,
    )


@_bomb
def as_many_ranks_as_a_machine_has(parts: Parts) -> Parts:
    """Of them the same ones have run as before."""
    return _with_ranks(parts, 65_536)


@_bomb
def many_ranks(parts: Parts) -> Parts:
    return _with_ranks(parts, 16_384)


def _with_ranks(parts: Parts, count: int) -> Parts:
    ran = len(json.loads(parts["run.json"])["report"]["per_rank"])
    more = _about(parts, "running", value=list(range(ran)))
    for path in (("report", "ranks"), ("machine", "num_sips")):
        more = _about(more, *path, value=count)
    return more


@_bomb
def sips_on_all_sides(parts: Parts) -> Parts:
    more = _about(parts, "machine", "num_sips", value=65_536)
    return _about(more, "machine", "spec", "links", "topology", value="fully_connected")


@_bomb
def rank_that_ran(parts: Parts) -> Parts:
    return _about(parts, "running", value=[2_000_000_000])


@_bomb
def graphs(parts: Parts) -> Parts:
    return _about(parts, "graphs", value={"x": ["x" * 100] * 2_000_000})


@_bomb
def programs_of_kernels(parts: Parts) -> Parts:
    return _about_works(parts, "kernel", "grid", [2**31 - 1, 65_535, 65_535])


@_bomb
def programs_of_one_axis(parts: Parts) -> Parts:
    return _about_works(parts, "kernel", "grid", [2**31 - 1, 1, 1])


@_bomb
def sizes_of_kernels(parts: Parts) -> Parts:
    return _about_works(parts, "kernel", "ints", lambda own: [[at, 10**15] for at, _ in own])


@_bomb
def bytes_of_transfers(parts: Parts) -> Parts:
    return _about_works(parts, "transfer", "bytes", 10**18)


@_bomb
def elements_of_collectives(parts: Parts) -> Parts:
    return _about_works(parts, "part", "num_elements", 10**17)


def _about_works(parts: Parts, kind: str, key: str, value: Any) -> Parts:
    data = json.loads(parts["actions.json"])
    for work in data["works"]:
        if work["kind"] == kind:
            work[key] = value(work[key]) if callable(value) else value
    return {**parts, "actions.json": json.dumps(data).encode()}


@_bomb
def ranks_of_collectives(parts: Parts) -> Parts:
    data = json.loads(parts["actions.json"])
    for meeting in data["meetings"]:
        meeting["ranks"] = [0] * 200_000
    return {**parts, "actions.json": json.dumps(data).encode()}


@_bomb
def actors_that_start_themselves(parts: Parts) -> Parts:
    table = _table(parts, "actions.parquet")
    firsts = [0 if item == 11 else of for item, of in zip(
        table["action"].to_pylist(), table["a"].to_pylist(), strict=True
    )]  # fmt: skip
    return {**parts, "actions.parquet": _set(table, "a", firsts)}


@_bomb
def streams(parts: Parts) -> Parts:
    return _about(parts, "streams", value=[[0, 10**9]] * 4, part="actions.json")


@_bomb
def times(parts: Parts) -> Parts:
    hosts = _table(parts, "hosts.parquet")
    ends = [10**18 - index for index in range(hosts.num_rows)]
    return {**parts, "hosts.parquet": _set(hosts, "end_ps", ends)}


@_bomb
def one_row_at_the_end_of_time(parts: Parts) -> Parts:
    table = _table(parts, "commands.parquet")
    ends = table["end_ps"].to_pylist()
    ends[-1] = [10**18] * len(ends[-1])
    return {**parts, "commands.parquet": _set(table, "end_ps", ends)}


@_file
def other_compression(path: Path, parts: Parts) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_LZMA) as archive:
        for name, data in {**parts, "more": bytes(1_000_000_000)}.items():
            archive.writestr(name, data)


@_file
def many_parts(path: Path, parts: Parts) -> None:
    write(path, {**parts, **{f"more/{index}": b"" for index in range(50_000)}})


@_file
def many_tables(path: Path, parts: Parts) -> None:
    """A table of a hundred thousand groups of rows."""
    table = _table(parts, "waits.parquet").slice(0, 1)
    out = io.BytesIO()
    with pq.ParquetWriter(out, table.schema) as writer:
        for _ in range(20_000):
            writer.write_table(table)
    write(path, {**parts, "waits.parquet": out.getvalue()})


@_file
def a_device(path: Path, _: Parts) -> None:
    path.symlink_to("/dev/zero")


@_file
def a_pipe(path: Path, _: Parts) -> None:
    os.mkfifo(path)


@_file
def a_folder(path: Path, _: Parts) -> None:
    path.mkdir()


@_file
def a_socket(path: Path, _: Parts) -> None:
    # Its path has to be short.
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(path))


@_file
def zeros(path: Path, _: Parts) -> None:
    with path.open("wb") as out:
        out.truncate(1 << 40)


def read(run: Path, other: Path, numbers: list[int]) -> dict[str, Any]:
    """Let commands of this process read a run; return what is wrong, the time, the memory."""
    result = []
    with tempfile.TemporaryDirectory() as folder:
        for number, command in enumerate(commands(run, other, Path(folder))):
            if numbers and number not in numbers:
                continue
            began = time.process_time()
            result.append(complaint(command, run))
            took_s = time.process_time() - began
            if took_s > MOST_S:
                result.append(f"{' '.join(map(str, command))[:60]} takes {took_s:.1f} s")
    return {
        "found": [item for item in result if item],
        "mb": peak_mb(),
    }


def peak_mb() -> float:
    """Return the most memory that this process had; what it was started by does not count."""
    status = Path("/proc/self/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024 / 1e6


def read_apart(run: Path, other: Path, numbers: list[int], timeout_s: float) -> dict[str, Any]:
    """As :func:`read`, in a process of its own."""
    paths = str(run.resolve()), "--read", str(other.resolve())
    command = [sys.executable, "-m", __spec__.name, *paths]
    command += ["--numbers", *map(str, numbers)] if numbers else []
    try:
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=timeout_s, check=False
        )
    except subprocess.TimeoutExpired:
        return {"found": [f"reads for more than {timeout_s:g} s"], "mb": 0}
    if done.returncode:
        return {"found": [f"ends with {done.returncode}: {done.stderr[-500:]}"], "mb": 0}
    data: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return data


def main() -> int:
    """Make the bombs that are named, all if none is; return 1 if something is wrong with one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--read", type=Path, help="for processes that read one")
    parser.add_argument("--numbers", type=int, nargs="*", default=[])
    args = parser.parse_args()
    if args.read is not None:
        print(json.dumps(read(args.run, args.read, args.numbers)))
        return 0
    plain = read_apart(args.run, args.run, args.numbers, 300)
    print(f"as it was: {plain['mb']:.0f} MB, {plain['found']}")
    wrong = 0
    for name in args.names or BOMBS:
        with tempfile.TemporaryDirectory() as folder:
            run = Path(folder) / "bomb.run"
            BOMBS[name](run, parts_of(args.run))
            size = run.lstat().st_size
            result = read_apart(run, args.run, args.numbers, 300)
        more_mb = result["mb"] - plain["mb"]
        is_wrong = bool(result["found"]) or more_mb > MOST_MB
        wrong += is_wrong
        mark = "WRONG" if is_wrong else "ok"
        print(f"{mark:6}{name}: {size:,} bytes, {more_mb:+.0f} MB, {result['found']}", flush=True)
    print(f"{len(args.names or BOMBS)} bombs, {wrong} not bounded")
    return min(wrong, 1)


if __name__ == "__main__":
    sys.exit(main())
