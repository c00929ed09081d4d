from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench import dtypes
from kernbench.collectives import Schedule, build, known_algorithms, refusal
from kernbench.errors import InternalError, KernbenchError, UnknownNameError, UsageError
from kernbench.replay import run_collective
from kernbench.replay.run import run_steps
from tests.tiers import daily, examples

Array = npt.NDArray[Any]

WORLD_SIZES = daily(1, 3, 6, 8, of=(1, 2, 3, 4, 5, 6, 7, 8, 9, 16))
"""Every day none to talk to, an odd number, one that is no power of two, and one that is."""
NUMPY_REDUCE: dict[str, Callable[[list[Array]], Array]] = {
    "sum": lambda inputs: np.sum(inputs, axis=0),
    "avg": lambda inputs: np.mean(inputs, axis=0),
    "prod": lambda inputs: np.prod(inputs, axis=0),
    "max": lambda inputs: np.max(inputs, axis=0),
    "min": lambda inputs: np.min(inputs, axis=0),
}
BIT_OPS = ("band", "bor", "bxor")
DTYPES = [item.numpy for item in dtypes.ALL]


def sizes(n: int) -> list[int]:
    return sorted({0, 1, n - 1, n, n + 1, 13, 61, 257})


def inputs_of(n: int, size: int, dtype: npt.DTypeLike, seed: int = 0) -> list[Array]:
    """Return an array per rank; products of 16 of them stay in range, sums are inexact."""
    rng = np.random.default_rng((seed, n, size))
    return [rng.uniform(0.5, 1.5, size).astype(dtype) for _ in range(n)]


def plan_for(op: str, algorithm: str, n: int, size: int, itemsize: int) -> Schedule:
    """Return the algorithm's plan, or the ring's where it cannot serve n ranks."""
    ranks_per_node = next((index for index in range(2, n) if n % index == 0), 0)
    if refusal(op, algorithm, n, ranks_per_node):
        algorithm = "ring"
    return build(op, algorithm, n, size, itemsize, 0, (), ranks_per_node)


def bits(array: Array) -> bytes:
    return array.tobytes()


@pytest.mark.parametrize("n", WORLD_SIZES)
@pytest.mark.parametrize("reduce_op", daily("sum", "avg", "max", of=NUMPY_REDUCE))
@pytest.mark.parametrize("algorithm", known_algorithms("all_reduce"))
def test_all_reduce_equals_numpy_on_every_rank(algorithm: str, reduce_op: str, n: int) -> None:
    for size in sizes(n):
        inputs = inputs_of(n, size, np.float64)
        works = [item.copy() for item in inputs]
        schedule = plan_for("all_reduce", algorithm, n, size, 8)
        run_collective(schedule, reduce_op, works)
        np.testing.assert_allclose(works[0], NUMPY_REDUCE[reduce_op](inputs), rtol=1e-14)
        assert len({bits(work) for work in works}) == 1


@pytest.mark.parametrize("n", WORLD_SIZES)
@pytest.mark.parametrize("algorithm", known_algorithms("reduce_scatter"))
def test_reduce_scatter_leaves_each_rank_its_chunk(algorithm: str, n: int) -> None:
    for size in sizes(n):
        schedule = plan_for("reduce_scatter", algorithm, n, size, 4)
        inputs = [item.astype(np.int32) for item in inputs_of(n, size, np.float64)]
        works = [item.copy() for item in inputs]
        run_collective(schedule, "sum", works)
        for work, low, high in zip(
            works, schedule.chunk_bounds, schedule.chunk_bounds[1:], strict=False
        ):
            assert (work[low:high] == np.sum(inputs, axis=0)[low:high]).all()


@pytest.mark.parametrize("n", WORLD_SIZES)
@pytest.mark.parametrize("algorithm", known_algorithms("all_gather"))
def test_all_gather_joins_the_chunks(algorithm: str, n: int) -> None:
    for size in sizes(n):
        schedule = plan_for("all_gather", algorithm, n, size, 4)
        whole = inputs_of(1, size, np.float32)[0]
        works = [np.full(size, np.nan, np.float32) for _ in range(n)]
        for work, low, high in zip(
            works, schedule.chunk_bounds, schedule.chunk_bounds[1:], strict=False
        ):
            work[low:high] = whole[low:high]
        run_collective(schedule, "", works)
        assert all(bits(work) == bits(whole) for work in works)


@pytest.mark.parametrize("n", WORLD_SIZES)
@pytest.mark.parametrize("algorithm", known_algorithms("broadcast"))
def test_broadcast_copies_the_root(algorithm: str, n: int) -> None:
    for root in {0, n // 2, n - 1}:
        works = inputs_of(n, 61, np.float16)
        expected = works[root].copy()
        run_collective(build("broadcast", algorithm, n, 61, 2, root), "", works)
        assert all(bits(work) == bits(expected) for work in works)


@pytest.mark.parametrize("n", WORLD_SIZES)
@pytest.mark.parametrize("algorithm", known_algorithms("reduce"))
def test_reduce_gives_the_root_what_numpy_gives(algorithm: str, n: int) -> None:
    for root in {0, n // 2, n - 1}:
        inputs = inputs_of(n, 61, np.float64)
        works = [item.copy() for item in inputs]
        run_collective(build("reduce", algorithm, n, 61, 8, root), "avg", works)
        np.testing.assert_allclose(works[root], np.mean(inputs, axis=0), rtol=1e-14)


@pytest.mark.parametrize("n", WORLD_SIZES)
@pytest.mark.parametrize("algorithm", known_algorithms("gather"))
def test_gather_and_scatter_move_the_parts(algorithm: str, n: int) -> None:
    for size, root in ((13, 0), (16 * n, n - 1)):
        whole = inputs_of(1, size, np.float32)[0]
        gather = build("gather", algorithm, n, size, 4, root)
        works = [np.full(size, np.nan, np.float32) for _ in range(n)]
        cuts = gather.chunk_bounds
        for rank, work in enumerate(works):
            work[cuts[rank] : cuts[rank + 1]] = whole[cuts[rank] : cuts[rank + 1]]
        run_collective(gather, "", works)
        assert bits(works[root]) == bits(whole)
        works = [whole.copy() if rank == root else np.zeros_like(whole) for rank in range(n)]
        run_collective(build("scatter", algorithm, n, size, 4, root), "", works)
        for rank, work in enumerate(works):
            own = slice(cuts[rank], cuts[rank + 1])
            assert bits(work[own]) == bits(whole[own])


@pytest.mark.parametrize("uneven", [False, True])
@pytest.mark.parametrize("n", WORLD_SIZES)
@pytest.mark.parametrize("algorithm", known_algorithms("all_to_all"))
def test_all_to_all_transposes_the_parts(algorithm: str, n: int, uneven: bool) -> None:
    counts = tuple((s * 7 + d * 3) % 5 for s in range(n) for d in range(n)) if uneven else ()
    schedule = build("all_to_all", algorithm, n, 2 * n + 1, 4, 0, counts)
    cuts = schedule.chunk_bounds
    whole = inputs_of(1, schedule.work_elements, np.float32)[0]
    works = [np.full_like(whole, np.nan) for _ in range(n)]
    for rank, work in enumerate(works):
        own = slice(cuts[rank * n], cuts[(rank + 1) * n])
        work[own] = whole[own]
    run_collective(schedule, "", works)
    for rank, work in enumerate(works):
        for src in range(n):
            part = slice(cuts[src * n + rank], cuts[src * n + rank + 1])
            assert bits(work[part]) == bits(whole[part])


def test_send_recv_copies_and_a_barrier_moves_nothing() -> None:
    works = inputs_of(2, 9, np.float32)
    sent = works[1].copy()
    run_collective(build("send_recv", "auto", 2, 9, 4, root=1), "", works)
    assert bits(works[0]) == bits(works[1]) == bits(sent)
    run_collective(build("barrier", "auto", 2, 0, 1), "", [np.zeros(0), np.zeros(0)])


@pytest.mark.parametrize("reduce_op", BIT_OPS)
@pytest.mark.parametrize("dtype", [np.int8, np.uint16, np.int64, np.bool_])
def test_bit_operations_equal_numpy(reduce_op: str, dtype: type) -> None:
    rng = np.random.default_rng(0)
    inputs: list[Array] = [rng.integers(0, 2**7, 29).astype(dtype) for _ in range(5)]
    works = [item.copy() for item in inputs]
    run_collective(build("all_reduce", "ring", 5, 29, works[0].itemsize), reduce_op, works)
    operation = {"band": np.bitwise_and, "bor": np.bitwise_or, "bxor": np.bitwise_xor}[reduce_op]
    assert all((work == operation.reduce(inputs, axis=0)).all() for work in works)


@examples(150)
@pytest.mark.adr("0008-D3")
@given(
    op=st.sampled_from(["all_reduce", "reduce_scatter", "reduce"]),
    reduce_op=st.sampled_from(("sum", "avg", "prod", "max", "min", "band", "bor", "bxor")),
    dtype=st.sampled_from(DTYPES),
    n=st.integers(1, 11),
    size=st.integers(0, 70),
    strip_bytes=st.sampled_from([8, 24, 1 << 18]),
    data=st.data(),
)
def test_reductions_in_few_operations_have_the_bits_of_the_steps(
    op: str,
    reduce_op: str,
    dtype: np.dtype[Any],
    n: int,
    size: int,
    strip_bytes: int,
    data: st.DataObject,
) -> None:
    """Any bytes are data: infinities, NaNs and zeros of both signs included."""
    algorithm = data.draw(st.sampled_from(known_algorithms(op)))
    schedule = plan_for(op, algorithm, n, size, dtype.itemsize)
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    high = 2 if dtype == np.bool_ else 256
    works = [rng.integers(0, high, size * dtype.itemsize, np.uint8).view(dtype) for _ in range(n)]
    if data.draw(st.booleans()) and dtype != np.bool_:
        works = [rng.choice(np.array([0.0, -0.0, 1.0, 2.0]), size).astype(dtype) for _ in range(n)]
    literal = [work.copy() for work in works]
    with pytest.MonkeyPatch.context() as patch, np.errstate(all="ignore"):
        patch.setattr("kernbench.replay.reduction_order._STRIP_BYTES", strip_bytes)
        try:
            run_collective(schedule, reduce_op, works)
        except UsageError:
            return
        run_steps(schedule, reduce_op, literal)
    for rank, (work, expected) in enumerate(zip(works, literal, strict=True)):
        own = slice(0, size)
        if op == "reduce_scatter":
            own = slice(schedule.chunk_bounds[rank], schedule.chunk_bounds[rank + 1])
        if op != "reduce" or rank == schedule.root:
            assert bits(work[own]) == bits(expected[own])


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("n", [2, 5, 8])
@pytest.mark.adr("0008-D3")
def test_half_types_are_added_in_float32_and_rounded_at_every_step(dtype: Any, n: int) -> None:
    size = 3 * n + 1
    schedule = build("all_reduce", "ring", n, size, 2)
    inputs = inputs_of(n, size, dtype)
    works = [item.copy() for item in inputs]
    run_collective(schedule, "sum", works)
    for chunk in range(n):
        part = slice(schedule.chunk_bounds[chunk], schedule.chunk_bounds[chunk + 1])
        order = [inputs[(chunk + 1 + place) % n][part] for place in range(n)]
        expected = reduce(
            lambda a, b: (a.astype(np.float32) + b.astype(np.float32)).astype(dtype), order
        )
        assert bits(works[0][part]) == bits(expected)
    exact = np.sum(inputs, axis=0, dtype=np.float64) if n > 2 else None
    # Rounding at every step shows: a sum kept in float32 would be closer.
    assert exact is None or (works[0].astype(np.float64) != exact.astype(dtype)).any()


@pytest.mark.adr("0008-D3")
def test_an_average_divides_the_rounded_sum_once() -> None:
    works = inputs_of(3, 40, np.float16)
    sums = [work.copy() for work in works]
    schedule = build("all_reduce", "ring", 3, 40, 2)
    run_collective(schedule, "sum", sums)
    run_collective(schedule, "avg", works)
    expected = (sums[0].astype(np.float32) / np.float32(3)).astype(np.float16)
    assert all(bits(work) == bits(expected) for work in works)


@pytest.mark.parametrize(
    ("dtype", "values", "average"),
    [
        (np.int32, [-7, 0, 0], -2),
        (np.int32, [7, 0, 0], 2),
        (np.int8, [3, 3, 3], 3),
        (np.uint64, [2**63, 2**62, 0], 2**62),
        (np.int64, [-(2**63), 0, 0], -(2**63 // 3)),
    ],
)
def test_an_integer_average_truncates_towards_zero(
    dtype: type, values: list[int], average: int
) -> None:
    works: list[Array] = [np.array([value], dtype) for value in values]
    run_collective(build("all_reduce", "ring", 3, 1, works[0].itemsize), "avg", works)
    assert [int(work[0]) for work in works] == [average] * 3


def test_integer_sums_wrap_and_float_sums_overflow_without_a_warning() -> None:
    works = [np.array([100], np.int8) for _ in range(2)]
    run_collective(build("all_reduce", "ring", 2, 1, 1), "sum", works)
    assert works[0][0] == -56
    halves = [np.array([60_000], np.float16) for _ in range(2)]
    run_collective(build("all_reduce", "ring", 2, 1, 2), "sum", halves)
    assert np.isposinf(halves[1][0])


@pytest.mark.parametrize("reduce_op", ["max", "min"])
def test_max_and_min_hand_a_nan_on(reduce_op: str) -> None:
    works = [np.array([value, 1], np.float32) for value in (1, np.nan, 2)]
    run_collective(build("all_reduce", "ring", 3, 2, 4), reduce_op, works)
    assert all(np.isnan(work[0]) and work[1] == 1 for work in works)


def test_one_rank_keeps_its_data() -> None:
    (work,) = inputs_of(1, 5, np.float32)
    before = bits(work)
    run_collective(build("all_reduce", "ring", 1, 5, 4), "avg", [work])
    assert bits(work) == before


@pytest.mark.parametrize(
    ("reduce_op", "dtype", "error", "message"),
    [
        ("mean", np.float32, UnknownNameError, "unknown reduce op 'mean'"),
        ("bxor", np.float32, UsageError, "bxor needs integers, but the tensor is float32"),
        ("avg", np.bool_, UsageError, "avg needs numbers, but the tensor is bool"),
    ],
)
def test_a_reduction_that_the_dtype_does_not_have_is_refused(
    reduce_op: str, dtype: type, error: type[KernbenchError], message: str
) -> None:
    works: list[Array] = [np.zeros(4, dtype) for _ in range(2)]
    with pytest.raises(error, match=message):
        run_collective(build("all_reduce", "ring", 2, 4, works[0].itemsize), reduce_op, works)


@pytest.mark.parametrize(
    "works",
    [
        [np.zeros(4, np.float32)],
        [np.zeros(4, np.float32), np.zeros(5, np.float32)],
        [np.zeros(4, np.float32), np.zeros(4, np.int32)],
    ],
)
def test_arrays_that_do_not_fit_the_plan_are_an_internal_error(works: list[Array]) -> None:
    with pytest.raises(InternalError, match="all_reduce of 2 ranks and 4 elements was given"):
        run_collective(build("all_reduce", "ring", 2, 4, 4), "sum", works)
