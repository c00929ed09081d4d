"""Every algorithm, executed on symbols: who ends with whose contributions, and in which order.

A value is a rank's own contribution (its number) or a pair (received, own) that was reduced.
"""

from __future__ import annotations

import functools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench.collectives import Schedule, build, known_algorithms, known_ops, refusal
from kernbench.errors import UsageError

Value = object

WORLD_SIZES = st.integers(1, 19)
SIZES = st.integers(0, 60)
ALL = [(op, algorithm) for op in known_ops() for algorithm in known_algorithms(op)]
MOVING = [(op, algorithm) for op, algorithm in ALL if op != "barrier"]


def execute(schedule: Schedule, state: list[list[Value]]) -> list[list[Value]]:
    """Run the schedule on a value per rank and chunk."""
    for step in schedule:
        moves = [
            (src, dst, chunk + place)
            for src, dst, chunk in zip(
                step.src.tolist(), step.dst.tolist(), step.chunk.tolist(), strict=True
            )
            for place in range(step.span)
        ]
        sent = [state[src][chunk] for src, _, chunk in moves]
        for (_, dst, chunk), value in zip(moves, sent, strict=True):
            assert value is not None, "a rank sends what it does not have"
            state[dst][chunk] = (value, state[dst][chunk]) if step.reduce else value
    if not schedule.fold:
        return state
    # Every rank combines the slots in order: the first is what the second receives, and so on.
    return [[functools.reduce(lambda value, slot: (value, slot), slots)] for slots in state]


def plans(op: str, algorithm: str, n: int, size: int, root: int = 0) -> list[Schedule]:
    """Return the plans for n ranks: one, one per size of node, or none where it is refused."""
    nodes = [index for index in range(1, n + 1) if n % index == 0]
    if algorithm not in ("hierarchical", "rail_tree"):
        nodes = [0]
    result = []
    for node in nodes:
        if refusal(op, algorithm, n, node):
            with pytest.raises(UsageError, match=f"{op} by {algorithm} takes"):
                build(op, algorithm, n, size, 4, root, (), node)
        else:
            result.append(build(op, algorithm, n, size, 4, root, (), node))
    return result


def contributions(value: Value) -> list[int]:
    """Return whose contributions a value is made of, in the order in which they were combined."""
    if isinstance(value, tuple):
        return contributions(value[0]) + contributions(value[1])
    assert isinstance(value, int)
    return [value]


@pytest.mark.parametrize("algorithm", known_algorithms("all_reduce"))
@pytest.mark.adr("0008-D2")
@given(n=WORLD_SIZES, size=SIZES)
def test_all_reduce_ends_with_the_same_order_of_all_contributions_on_every_rank(
    algorithm: str, n: int, size: int
) -> None:
    for schedule in plans("all_reduce", algorithm, n, size):
        start: list[list[Value]] = [[rank] * schedule.num_chunks for rank in range(n)]
        if schedule.fold:
            start = [[rank if slot == rank else None for slot in range(n)] for rank in range(n)]
        final = execute(schedule, start)
        for chunk in range(len(final[0])):
            values = [final[rank][chunk] for rank in range(n)]
            assert sorted(contributions(values[0])) == list(range(n))
            assert values == [values[0]] * n


@pytest.mark.parametrize("algorithm", known_algorithms("reduce_scatter"))
@given(n=WORLD_SIZES, size=SIZES)
def test_reduce_scatter_leaves_every_rank_its_own_chunk_of_all(
    algorithm: str, n: int, size: int
) -> None:
    for schedule in plans("reduce_scatter", algorithm, n, size):
        assert schedule.num_chunks == n
        final = execute(schedule, [[rank] * n for rank in range(n)])
        for rank in range(n):
            assert sorted(contributions(final[rank][rank])) == list(range(n))


@pytest.mark.parametrize("algorithm", known_algorithms("all_gather"))
@given(n=WORLD_SIZES, size=SIZES)
def test_all_gather_hands_every_chunk_to_every_rank(algorithm: str, n: int, size: int) -> None:
    for schedule in plans("all_gather", algorithm, n, size):
        assert schedule.num_chunks == n
        start: list[list[Value]] = [
            [chunk if chunk == rank else None for chunk in range(n)] for rank in range(n)
        ]
        assert execute(schedule, start) == [list(range(n))] * n


@pytest.mark.parametrize("algorithm", known_algorithms("broadcast"))
@given(n=WORLD_SIZES, size=st.integers(0, 10**6), data=st.data())
def test_broadcast_reaches_every_rank_from_any_root(
    algorithm: str, n: int, size: int, data: st.DataObject
) -> None:
    root = data.draw(st.integers(0, n - 1))
    schedule = build("broadcast", algorithm, n, size, 4, root)
    k = schedule.num_chunks
    start: list[list[Value]] = [list(range(k)) if rank == root else [None] * k for rank in range(n)]
    assert execute(schedule, start) == [list(range(k))] * n


@pytest.mark.parametrize("algorithm", known_algorithms("reduce"))
@given(n=WORLD_SIZES, size=st.integers(0, 10**6), data=st.data())
def test_reduce_brings_every_contribution_to_any_root(
    algorithm: str, n: int, size: int, data: st.DataObject
) -> None:
    root = data.draw(st.integers(0, n - 1))
    schedule = build("reduce", algorithm, n, size, 4, root)
    final = execute(schedule, [[rank] * schedule.num_chunks for rank in range(n)])
    for value in final[root]:
        assert sorted(contributions(value)) == list(range(n))


@pytest.mark.parametrize("algorithm", known_algorithms("gather"))
@given(n=WORLD_SIZES, size=SIZES, data=st.data())
def test_gather_and_scatter_move_every_part_between_its_rank_and_any_root(
    algorithm: str, n: int, size: int, data: st.DataObject
) -> None:
    root = data.draw(st.integers(0, n - 1))
    whole: list[Value] = list(range(n))
    own: list[list[Value]] = [
        [rank if chunk == rank else None for chunk in range(n)] for rank in range(n)
    ]
    assert execute(build("gather", algorithm, n, size, 4, root), own)[root] == whole
    start: list[list[Value]] = [whole if rank == root else [None] * n for rank in range(n)]
    final = execute(build("scatter", algorithm, n, size, 4, root), start)
    assert [final[rank][rank] for rank in range(n)] == whole


@pytest.mark.parametrize("algorithm", known_algorithms("all_to_all"))
@given(n=WORLD_SIZES, size=SIZES, uneven=st.booleans())
def test_all_to_all_gives_every_rank_its_part_of_every_other(
    algorithm: str, n: int, size: int, uneven: bool
) -> None:
    counts = tuple((s * 7 + d * 3) % 5 for s in range(n) for d in range(n)) if uneven else ()
    schedule = build("all_to_all", algorithm, n, size, 4, 0, counts)
    assert schedule.work_elements == (sum(counts) if uneven else n * size)
    start: list[list[Value]] = [
        [(s, d) if s == rank else None for s in range(n) for d in range(n)] for rank in range(n)
    ]
    final = execute(schedule, start)
    for rank in range(n):
        assert [final[rank][s * n + rank] for s in range(n)] == [(s, rank) for s in range(n)]


@pytest.mark.parametrize("root", [0, 1])
def test_send_recv_moves_the_tensor_to_the_other_rank(root: int) -> None:
    schedule = build("send_recv", "auto", 2, 7, 4, root)
    assert schedule.sent_bytes().tolist() == [28 * (root == 0), 28 * (root == 1)]
    start: list[list[Value]] = [[9 if rank == root else None] for rank in range(2)]
    assert execute(schedule, start) == [[9], [9]]


@given(n=st.integers(1, 70))
def test_after_a_barrier_every_rank_has_heard_of_every_other(n: int) -> None:
    schedule = build("barrier", "auto", n, 0, 1)
    heard = [{rank} for rank in range(n)]
    for step in schedule:
        before = [set(item) for item in heard]
        for src, dst in zip(step.src.tolist(), step.dst.tolist(), strict=True):
            heard[dst] |= before[src]
    assert all(item == set(range(n)) for item in heard)
    assert len(schedule.steps) == (n - 1).bit_length()


@pytest.mark.parametrize(("op", "algorithm"), MOVING)
@pytest.mark.adr("0008-D1")
@given(n=st.integers(2, 19), size=SIZES)
def test_every_plan_keeps_the_rules_of_steps(op: str, algorithm: str, n: int, size: int) -> None:
    for schedule in plans(op, algorithm, 2 if op == "send_recv" else n, size):
        schedule.check()
        for step in schedule.steps:
            pairs = list(zip(step.src.tolist(), step.dst.tolist(), strict=True))
            assert len({src for src, _ in pairs}) == len({dst for _, dst in pairs}) == len(pairs)
            assert {item for pair in pairs for item in pair} <= set(range(schedule.num_ranks))
            assert all(0 <= first <= schedule.num_chunks - step.span for first in step.chunk)


@pytest.mark.parametrize(("op", "algorithm"), [item for item in ALL if item[0] != "send_recv"])
def test_one_rank_needs_no_steps(op: str, algorithm: str) -> None:
    assert build(op, algorithm, 1, 0 if op == "barrier" else 5, 4).steps == ()


@given(n=WORLD_SIZES, size=SIZES)
def test_every_rank_sends_two_times_n_less_one_chunks_in_a_ring_all_reduce(
    n: int, size: int
) -> None:
    schedule = build("all_reduce", "ring", n, size, 4)
    num_sent = np.zeros(n, dtype=int)
    for step in schedule:
        np.add.at(num_sent, step.src, 1)
        assert ((step.src + 1) % n == step.dst).all()
    assert num_sent.tolist() == [2 * (n - 1)] * n


@pytest.mark.parametrize(
    ("op", "algorithm", "passes"),
    [
        ("all_reduce", "ring", 2),
        ("all_reduce", "direct", 2),
        ("all_reduce", "two_shot", 2),
        ("all_reduce", "double_tree", 2),
        ("all_reduce", "bidirectional_ring", 2),
        ("all_reduce", "tree", 2),
        ("reduce", "ring", 1),
        ("reduce", "tree", 1),
        ("all_gather", "ring", 1),
        ("all_gather", "direct", 1),
        ("reduce_scatter", "ring", 1),
        ("reduce_scatter", "direct", 1),
        ("broadcast", "ring", 1),
        ("broadcast", "tree", 1),
    ],
)
@given(n=WORLD_SIZES, size=SIZES)
def test_every_byte_crosses_to_n_less_one_ranks_per_pass(
    op: str, algorithm: str, passes: int, n: int, size: int
) -> None:
    schedule = build(op, algorithm, n, size, 4)
    assert schedule.sent_bytes().sum() == passes * (n - 1) * size * 4


@given(n=WORLD_SIZES, size=SIZES)
def test_ring_chunks_are_reduced_in_the_order_that_starts_after_their_owner(
    n: int, size: int
) -> None:
    schedule = build("reduce_scatter", "ring", n, size, 4)
    final = execute(schedule, [[rank] * n for rank in range(n)])
    for chunk in range(n):
        order = [(chunk + 1 + place) % n for place in range(n)]
        assert contributions(final[chunk][chunk]) == order


def test_a_long_broadcast_is_pipelined() -> None:
    n, chunks = 5, 16
    schedule = build("broadcast", "ring", n, chunks * 128 * 1024, 1)
    assert schedule.num_chunks == chunks
    assert len(schedule.steps) == chunks + n - 2
    assert max(len(step) for step in schedule) == n - 1


def test_a_thousand_ranks_need_no_memory_per_step() -> None:
    schedule = build("all_reduce", "ring", 1024, 1 << 24, 4)
    assert len(schedule.steps) == 2046
    owners = {id(step.chunk.base) for step in schedule} | {id(step.src) for step in schedule}
    assert len(owners) <= 4
