"""Each claim of the tables of a run is checked, and names the part and the row that break it."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kernbench.errors import UsageError
from kernbench.saved import load_run
from kernbench.saved.consistency import _take_expanded
from kernbench.saved.opened import RunFile
from tests.saved.damaging import Parts, parts_of, table_bytes, write

_BIG = 10**9


def changed(parts: Parts, part: str, column: str, change: Callable[[list[Any]], Any]) -> Parts:
    """Return parts with other values in a column."""
    name = f"{part}.parquet"
    table = pq.read_table(io.BytesIO(parts[name]))
    place = table.column_names.index(column)
    field = table.schema.field(place)
    values = table[column].to_pylist()
    values = change(values) or values
    array = pa.array(values, field.type)
    return {**parts, name: table_bytes(table.set_column(place, field.with_nullable(True), array))}


def said_of(kept: Path, tmp_path: Path, parts: Parts) -> str:
    """Return the error of a run with these parts, which names its file."""
    assert parts != parts_of(kept)
    path = write(tmp_path / "other.run", parts)
    with pytest.raises(UsageError) as error:  # noqa: PT012 - a run reads its parts one by one
        run = load_run(path)
        assert run.log
        assert run.actions
        assert len(run.allocations)
    said = str(error.value)
    assert said.startswith(f"{path} is damaged: "), said
    return said.removeprefix(f"{path} is damaged: ")


def _put(place: int, value: Any) -> Callable[[list[Any]], None]:
    return lambda values: values.__setitem__(place, value)


@pytest.mark.adr("0234-D1")
@pytest.mark.parametrize(
    ("part", "column", "change", "said"),
    [
        ("lines_commands", "line", _put(3, _BIG), "line 1000000000 of "),
        ("commands", "template", _put(0, 99), "template 99 of "),
        ("commands", "template", _put(0, -1), "template -1 of "),
        ("commands", "rank", _put(0, [4]), "rank 4 of 4 ranks"),
        ("commands", "rank", _put(0, []), "a command has no rank"),
        ("commands", "rank", _put(0, None), "rank lacks values"),
        ("commands", "sip", _put(0, [0, 1]), "row 0: sip is of 2 ranks, of 1"),
        ("commands", "launch", _put(1, 1), "launch 1 is there twice"),
        ("commands", "after", _put(0, [_BIG]), "row 0: it is after launch 1000000000"),
        ("commands", "end_ps", _put(0, [0]), "row 0: it ends at 0 ps and starts at 2000000 ps"),
        ("hosts", "kind", _put(0, "sleeping"), "kind cannot be 'sleeping'"),
        ("hosts", "end_ps", _put(1, 10**18 + 1), "end_ps 1000000000000000001, which is not from 0"),
        ("hosts", "start_ps", _put(0, 10**15), "row 0: it ends at 2000000 ps"),
        ("waits", "after", _put(0, _BIG), "row 0: it waits for launch 1000000000"),
        ("woken", "by", _put(0, 7), "by 7 of 4 ranks"),
        ("rows", "link", _put(0, 500), "link 500 of "),
        ("rows", "rank", _put(0, 3), "row 0: rank 3 of 1"),
        ("templates", "num_rows", _put(0, 2), " rows, of "),
        ("templates", "given", _put(0, "["), "invalid JSON"),
        ("templates", "given", _put(0, '{"grid": ["x"]}'), "grid.0: input should be a valid"),
        ("memory", "begin", _put(5, 0), "row 5: event 0 is not in order"),
        ("memory", "end", _put(9, 1), "row 9: it is freed by event 1, after 9"),
        ("memory", "phase", _put(0, "for fun"), "phase cannot be 'for fun'"),
        ("actions", "action", _put(5, 99), "row 5: there is no action 99"),
        ("actions", "a", _put(0, 0), "row 0: actor 0 starts 4 from 0, of 5"),
        ("actions_memory", "place", _put(0, _BIG), "row 0: number 1000000000 of"),
        ("lines_hosts", "line", lambda values: values.pop(), " host spans"),
    ],
)
def test_what_cannot_be_is_named(
    kept: Path, tmp_path: Path, part: str, column: str, change: Any, said: str
) -> None:
    parts = parts_of(kept)
    if part == "lines_hosts":
        name = "lines_hosts.parquet"
        table = pq.read_table(io.BytesIO(parts[name]))
        parts = {**parts, name: table_bytes(table.slice(1))}
    else:
        parts = changed(parts, part, column, change)
    result = said_of(kept, tmp_path, parts)
    assert result.startswith(f"{part}.parquet: "), result
    assert said in result


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("ranks", 2_000_000_000, "report.ranks: 2,000,000,000 ranks, of a machine with 4 SIPs"),
        ("ranks", -1, "report.ranks: input should be greater than or equal to 1"),
        ("ranks", 4.0, "report.ranks: input should be a valid integer"),
        ("ranks", 3, "report.per_rank: it is of 4 ranks, and 3 have run"),
        ("kernels", None, "report.kernels: input should be a valid"),
    ],
)
def test_a_report_is_held_to_the_run(
    kept: Path, tmp_path: Path, key: str, value: Any, said: str
) -> None:
    parts = parts_of(kept)
    about = json.loads(parts["run.json"])
    about["report"][key] = value
    result = said_of(kept, tmp_path, {**parts, "run.json": json.dumps(about).encode()})
    assert result.startswith(f"run.json: {said}"), result


@pytest.mark.adr("0234-D1")
def test_who_did_something_is_a_rank_that_ran(kept: Path, tmp_path: Path) -> None:
    parts = parts_of(kept)
    about = json.loads(parts["run.json"])
    about["running"] = [0, 1, 2]
    del about["report"]["per_rank"][3]
    result = said_of(kept, tmp_path, {**parts, "run.json": json.dumps(about).encode()})
    assert "rank 3 has not run" in result


def test_actions_are_held_to_what_they_name(kept: Path, tmp_path: Path) -> None:
    parts = parts_of(kept)
    for change, said in (
        (lambda result: result["works"].pop(), "works"),
        (lambda answer: answer["streams"].pop(), "stream 3 of 3"),
        (lambda outcome: outcome["works"][0].update(sip=4), "a work is on SIP 4 of 4 SIPs"),
        (lambda got: got["works"][0].update(kind="other"), "works.0: input tag 'other'"),
        (lambda found: found["meetings"][0].update(ranks=[0, 0, 1, 2]), "in a collective twice"),
        (
            lambda found: next(item for item in found["works"] if item["kind"] == "kernel").update(
                grid=[2**31 - 1, 1, 1]
            ),
            "MB of memory",
        ),
    ):
        data = json.loads(parts["actions.json"])
        change(data)
        said_now = said_of(kept, tmp_path, {**parts, "actions.json": json.dumps(data).encode()})
        assert said in said_now, said_now


def test_rows_take_memory_of_one_command_at_a_time() -> None:
    # A collective of 64 ranks, whose 80 calls share their rows.
    with zipfile.ZipFile(io.BytesIO(), "w") as archive:
        file = RunFile("a.run", archive, 331_005)
    rows = pa.table({"src_param": [0], "dst_param": [0]})
    commands = pa.table({"template": [0] * 80})
    # What other parts of that run take before and after.
    file.take("all_reduce", 137_000_000 + 26_000_000)
    _take_expanded(file, pa.table({"num_rows": [139_136]}), rows, commands)
    largest = pa.table({"num_rows": [10_000_000]})
    many = pa.table({"template": [0] * 8000})
    for num_rows, of_run in ((largest, commands), (pa.table({"num_rows": [139_136]}), many)):
        with pytest.raises(UsageError, match="MB of memory"):
            _take_expanded(file, num_rows, rows, of_run)
