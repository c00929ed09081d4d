"""The tables of a saved run, held against each other before they are used (ADR-0234)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kernbench.saved.layout import (
    ALLOCATIONS,
    COMMANDS,
    HOSTS,
    RANGES,
    ROWS,
    TEMPLATES,
    WAITS,
    WOKEN,
)
from kernbench.saved.opened import RunFile

Numbers = npt.NDArray[Any]
_EXPANDED_BYTES = 150
"""What a row of a command takes, while all rows of some command are looked at."""
_COUNTED_BYTES = 2
"""And what each row of all commands counts for: readers go over every one, in 0.1 us."""
_BY_RANK = ("rank", "sip", "start_ps", "end_ps", "after")


def numbers(table: pa.Table, name: str) -> Numbers:
    """Return a column of numbers."""
    array: Numbers = table[name].to_numpy()
    return array


def lengths(table: pa.Table, name: str) -> Numbers:
    """Return how long the lists of a column are."""
    return np.diff(_offsets(table, name))


def flat(table: pa.Table, name: str) -> Numbers:
    """Return the numbers of all lists of a column, one list after another."""
    numbers: Numbers = table[name].combine_chunks().flatten().to_numpy()
    return numbers


def _offsets(table: pa.Table, name: str) -> Numbers:
    column = table[name].combine_chunks()
    offsets: Numbers = column.offsets.to_numpy() if len(column) else np.zeros(1, np.int32)
    return offsets


def texts(table: pa.Table, name: str) -> list[str]:
    """Return a column of texts; equal ones are one object."""
    column = table[name].combine_chunks()
    if not len(column):
        return []
    return list(map(column.dictionary.to_pylist().__getitem__, column.indices.to_pylist()))


def lists(table: pa.Table, name: str) -> list[tuple[Any, ...]]:
    """Return a column of lists as tuples."""
    column = table[name].combine_chunks()
    if not len(column):
        return []
    ends = column.offsets.to_pylist()
    inner = column.flatten()
    if pa.types.is_dictionary(inner.type):
        known = inner.dictionary.to_pylist()
        values = [known[item] for item in inner.indices.to_pylist()]
    else:
        values = inner.to_pylist()
    first = ends[0]
    return [tuple(values[start - first : end - first]) for start, end in pairwise(ends)]


class _Checks:
    """Claims about tables, each of which names the first row that breaks it."""

    def __init__(self, file: RunFile) -> None:
        self.file = file

    def all(self, part: str, holds: Any, what: str, *values: Numbers) -> None:
        """Raise an error unless all claims hold; ``what`` has a place for each of the values."""
        if not np.all(holds):
            row = int(np.argmin(np.broadcast_to(holds, np.shape(holds))))
            said = what.format(*[int(value[row]) for value in values])
            raise self.file.damaged(part, f"row {row:,}: {said}")


def check_log(
    file: RunFile,
    templates: pa.Table,
    rows: pa.Table,
    commands: pa.Table,
    counts: Mapping[str, int],
) -> None:
    """Hold templates, their rows and the commands that they are of against each other.

    Raises:
        UsageError: They contradict each other; names the part and the row.
    """
    checks = _Checks(file)
    num_ranks = _check_commands(checks, commands)
    by_template = _ranks_of_templates(checks, templates, commands, num_ranks)
    _check_rows(checks, templates, rows, by_template, counts)
    _take_expanded(file, templates, rows, commands)


def _check_commands(checks: _Checks, commands: pa.Table) -> Numbers:
    """Check commands by themselves; return how many ranks each has."""
    part = COMMANDS.part
    ordered = np.sort(numbers(commands, "launch"))
    twice = ordered[1:][ordered[1:] == ordered[:-1]]
    if len(twice):
        raise checks.file.damaged(part, f"launch {twice[0]} is there twice")
    num_ranks = lengths(commands, "rank")
    checks.all(part, num_ranks > 0, "a command has no rank")
    for name in _BY_RANK[1:]:
        own = lengths(commands, name)
        checks.all(part, own == num_ranks, f"{name} is of {{}} ranks, of {{}}", own, num_ranks)
    sites = lengths(commands, "site_line")
    own = lengths(commands, "site_file")
    checks.all(part, own == sites, "{} files have {} lines", own, sites)
    holds = (sites == 0) | (sites == num_ranks)
    checks.all(part, holds, "{} callers have {} ranks", sites, num_ranks)
    starts_ps, ends_ps = flat(commands, "start_ps"), flat(commands, "end_ps")
    checks.all(
        part, ends_ps >= starts_ps, "it ends at {} ps and starts at {} ps", ends_ps, starts_ps
    )
    after = flat(commands, "after")
    checks.all(part, is_launch(after, ordered), "it is after launch {}, which there is not", after)
    return num_ranks


def is_launch(values: Numbers, launches: Numbers) -> Any:
    """Return which of some numbers are launches of a run in order, or 0."""
    if not len(launches):
        return values == 0
    places = np.minimum(np.searchsorted(launches, values), len(launches) - 1)
    return (values == 0) | (launches[places] == values)


def _ranks_of_templates(
    checks: _Checks, templates: pa.Table, commands: pa.Table, num_ranks: Numbers
) -> Numbers:
    """Return how many ranks the commands of each template have, 0 of one without."""
    ranks = np.zeros(templates.num_rows, np.int64)
    numbered = numbers(commands, "template")
    ranks[numbered] = num_ranks
    own = ranks[numbered]
    what = "its template is of {} ranks, and it has {}"
    checks.all(COMMANDS.part, own == num_ranks, what, own, num_ranks)
    alone = np.array([text != "collective" for text in texts(templates, "kind")], bool)
    checks.all(
        TEMPLATES.part, ~alone | (ranks <= 1), "it is no collective, and has {} ranks", ranks
    )
    shares = lengths(templates, "hbm_bytes_by_rank")
    holds = (shares == 0) | (ranks == 0) | (shares == ranks)
    checks.all(TEMPLATES.part, holds, "{} ranks share bytes of HBM, of {}", shares, ranks)
    return ranks


def _check_rows(
    checks: _Checks,
    templates: pa.Table,
    rows: pa.Table,
    by_template: Numbers,
    counts: Mapping[str, int],
) -> None:
    part = ROWS.part
    num_rows = numbers(templates, "num_rows")
    described = int(num_rows.sum(dtype=np.float64))
    if described != rows.num_rows:
        said = f"templates have {described:,} rows, of {rows.num_rows:,}"
        raise checks.file.damaged(TEMPLATES.part, said)
    starts_ps, ends_ps = numbers(rows, "start_ps"), numbers(rows, "end_ps")
    checks.all(
        part, ends_ps >= starts_ps, "it ends at {} ps and starts at {} ps", ends_ps, starts_ps
    )
    ranks = np.repeat(by_template, num_rows)
    # A rank is a position in the group; so is a peer of a collective's, else it is a rank.
    position = numbers(rows, "rank")
    holds = (position < ranks) | (ranks == 0)
    checks.all(part, holds, "rank {} of {}", position, ranks)
    is_kernel = np.array([text == "kernel" for text in texts(templates, "kind")], bool)
    most = np.where(np.repeat(is_kernel, num_rows), counts["ranks"], ranks)
    peer = numbers(rows, "peer")
    checks.all(part, (peer < most) | (ranks == 0), "peer {} of {}", peer, most)


def _take_expanded(file: RunFile, templates: pa.Table, rows: pa.Table, commands: pa.Table) -> None:
    """Take the memory of rows, those of the largest command at once, and of addresses they name."""
    of_commands = numbers(templates, "num_rows")[numbers(commands, "template")]
    most_param = max(
        [int(numbers(rows, name).max(initial=0)) for name in ("src_param", "dst_param")]
    )
    file.take(ROWS.part, int(of_commands.max(initial=0)) * _EXPANDED_BYTES)
    file.take(ROWS.part, int(of_commands.sum(dtype=np.float64)) * _COUNTED_BYTES)
    file.take(ROWS.part, most_param * commands.num_rows * 8)


def check_hosts(
    file: RunFile, tables: Mapping[str, pa.Table], launches: Numbers, running: Sequence[int] | None
) -> None:
    """Hold what hosts did against the commands, and who did something against those that ran.

    Raises:
        UsageError: They contradict each other; names the part and the row.
    """
    checks = _Checks(file)
    for part in (COMMANDS.part, HOSTS.part, WAITS.part, WOKEN.part, RANGES.part):
        ranks = (flat if part == COMMANDS.part else numbers)(tables[part], "rank")
        ran = running is None or np.isin(ranks, running)
        checks.all(part, ran, "rank {} has not run", ranks)
    for part in (HOSTS.part, RANGES.part):
        starts_ps, ends_ps = numbers(tables[part], "start_ps"), numbers(tables[part], "end_ps")
        what = "it ends at {} ps and starts at {} ps"
        checks.all(part, ends_ps >= starts_ps, what, ends_ps, starts_ps)
    after = numbers(tables[WAITS.part], "after")
    what = "it waits for launch {}, which there is not"
    checks.all(WAITS.part, is_launch(after, launches), what, after)


def check_allocations(file: RunFile, table: pa.Table) -> None:
    """Check that memory is allocated in order, and freed after that.

    Raises:
        UsageError: It is not; names the row.
    """
    checks, part = _Checks(file), ALLOCATIONS.part
    begins, ends = numbers(table, "begin"), numbers(table, "end")
    if len(begins):
        in_order = np.concatenate([[True], begins[1:] > begins[:-1]])
        checks.all(part, in_order, "event {} is not in order", begins)
    checks.all(
        part, (ends == -1) | (ends > begins), "it is freed by event {}, after {}", ends, begins
    )
    ends_ps = numbers(table, "end_ps")
    checks.all(
        part, (ends == -1) == (ends_ps == -1), "it is freed at {} ps, by event {}", ends_ps, ends
    )
    freed = np.sort(ends[ends != -1])
    if (freed[1:] == freed[:-1]).any() or np.isin(freed, begins).any():
        raise file.damaged(part, "two events have one number")
