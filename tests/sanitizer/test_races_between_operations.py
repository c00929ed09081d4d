"""Operations in no order that touch the same bytes: twins with and without what orders them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kernbench
from kernbench import errors
from tests.sanitizer import buggy_kernels as kernels

N = 64
RACE = errors.DataRaceError


@pytest.fixture
def torch() -> Iterator[Any]:
    with kernbench.RuntimeContext(machine="ahbm", ranks=1, check=True) as run:
        yield run


def line_of(kernel: Any, text: str) -> str:
    lines, start = inspect.getsourcelines(kernel.fn)
    return f"buggy_kernels.py:{start + next(i for i, line in enumerate(lines) if text in line)}"


def here(offset: int = 0) -> str:
    """Return the caller's line, as errors write it."""
    frame = inspect.currentframe()
    assert frame is not None
    assert frame.f_back is not None
    return f"test_races_between_operations.py:{frame.f_back.f_lineno + offset}"


def scale(x: Any, y: Any) -> None:
    kernels.scale[(2,)](x, y, N, BLOCK=32)


Wait = Callable[[Any, Any, Any], object]
WAITS: dict[str, Wait] = {
    "event": lambda torch, first, second: second.wait_event(first.record_event()),
    "wait_stream": lambda torch, first, second: second.wait_stream(first),
    "synchronize": lambda torch, first, second: first.synchronize(),
    "device": lambda torch, first, second: torch.ahbm.synchronize(),
    "host event": lambda torch, first, second: first.record_event().synchronize(),
    "wait": lambda torch, first, second: torch.wait(first.queue.tail),
    "query": lambda torch, first, second: _poll(torch, first),
}


def _poll(torch: Any, stream: Any) -> None:
    while not stream.query():
        torch.run.simulation.sleep(1_000_000)


@pytest.mark.adr("0021-D1")
@pytest.mark.parametrize("how", [None, *WAITS])
def test_streams_that_touch_the_same_bytes_need_an_order(torch: Any, how: str | None) -> None:
    x, y, z = (torch.zeros(N, name=name) for name in "xyz")
    first, second = torch.ahbm.Stream(), torch.ahbm.Stream()
    torch.ahbm.synchronize()
    with torch.ahbm.stream(first):
        scale(x, y)
    if how is not None:
        WAITS[how](torch, first, second)
    with torch.ahbm.stream(second):
        scale(y, z)
        reader = here(-1)
    if how is not None:
        torch.drain()
        return
    with pytest.raises(RACE) as failure:
        torch.drain()
    text = str(failure.value)
    load, store = line_of(kernels.scale, "tl.load"), line_of(kernels.scale, "tl.store")
    assert f"tt.load at {load} (kernel scale, rank 0, stream sip0.2, at test_" in text
    assert f"reads y ({N},) float32+0 (element 0), which tt.store at {store}" in text
    assert "(kernel scale, rank 0, stream sip0.1, at test_" in text
    assert reader.partition(":")[0] in text
    assert "wait_stream()" in text


@pytest.mark.adr("0021-D1")
def test_an_event_orders_what_came_before_it_only(torch: Any) -> None:
    x, y, z = (torch.zeros(N, name=name) for name in "xyz")
    first, second = torch.ahbm.Stream(), torch.ahbm.Stream()
    torch.ahbm.synchronize()
    event = first.record_event()
    with torch.ahbm.stream(first):
        scale(x, y)
    second.wait_event(event)
    with torch.ahbm.stream(second):
        scale(y, z)
    with pytest.raises(RACE):
        torch.drain()


@pytest.mark.adr("0021-D1")
def test_order_is_passed_on_from_stream_to_stream(torch: Any) -> None:
    x, y, z = torch.ones(N), torch.zeros(N), torch.zeros(N)
    first, middle, second = (torch.ahbm.Stream() for _ in range(3))
    torch.ahbm.synchronize()
    with torch.ahbm.stream(first):
        scale(x, y)
    middle.wait_stream(first)
    second.wait_stream(middle)
    with torch.ahbm.stream(second):
        scale(y, z)
        assert z.tolist() == [4] * N


@pytest.mark.adr("0021-D2")
@pytest.mark.parametrize("columns", [8, 9])
def test_only_shared_bytes_race(torch: Any, columns: int) -> None:
    """Two streams write columns of one matrix: ranges overlap, elements do not until the ninth."""
    x = torch.zeros(4, 16, name="x")
    torch.ahbm.synchronize()
    for first, count in ((0, columns), (8, 8)):
        with torch.ahbm.stream(torch.ahbm.Stream()):
            kernels.set_columns[(1,)](x, first, count, 16, ROWS=4, BLOCK=16)
    if columns == 8:
        assert x.shape == (4, 16)
        torch.drain()
    else:
        with pytest.raises(RACE, match=r"x \(4, 16\) float32\+32 \(element 8\)"):
            torch.drain()


@pytest.mark.adr("0021-D2")
@pytest.mark.parametrize("shared", [False, True])
def test_addresses_that_are_data_race_where_they_meet(torch: Any, shared: bool) -> None:
    x = torch.zeros(100, name="x")
    even = torch.from_numpy(np.arange(0, 100, 2))
    odd = torch.from_numpy(np.arange(1, 101, 2) - (np.arange(50) == 7) * int(shared))
    torch.ahbm.synchronize()
    for index in (even, odd):
        with torch.ahbm.stream(torch.ahbm.Stream()):
            kernels.set_rows[(1,)](x, index, 50, BLOCK=64)
    if not shared:
        torch.drain()
    else:
        with pytest.raises(RACE, match=r"element 14"):
            torch.drain()


@pytest.mark.adr("0021-D2")
@pytest.mark.parametrize(
    ("first", "second", "races"),
    [
        ("read", "read", False),
        ("atomic", "atomic", False),
        ("read", "write", True),
        ("write", "write", True),
        ("atomic", "read", True),
        ("write", "atomic", True),
    ],
)
def test_reads_do_not_race_and_atomics_do_not(
    torch: Any, first: str, second: str, races: bool
) -> None:
    x, *others = (torch.zeros(N) for _ in range(5))
    torch.ahbm.synchronize()
    for how in (first, second):
        with torch.ahbm.stream(torch.ahbm.Stream()):
            if how == "atomic":
                kernels.count[(1,)](x, BLOCK=N)
            elif how == "read":
                scale(x, others.pop())
            else:
                scale(others.pop(), x)
    if races:
        with pytest.raises(RACE):
            torch.drain()
    else:
        torch.drain()


@pytest.mark.adr("0021-D3")
@pytest.mark.parametrize("waits", [False, True])
def test_a_fill_is_on_the_stream_that_was_current(torch: Any, waits: bool) -> None:
    x = torch.zeros(N, name="x")
    where = here(-1)
    side = torch.ahbm.Stream()
    if waits:
        side.wait_stream(torch.ahbm.current_stream())
    with torch.ahbm.stream(side):
        scale(x, torch.empty(N))
    if waits:
        torch.drain()
    else:
        with pytest.raises(RACE) as failure:
            torch.drain()
        assert f"fill (rank 0, stream sip0, at {where})" in str(failure.value)


@pytest.mark.adr("0021-D3")
def test_a_copy_from_the_host_is_there_when_the_call_returns(torch: Any) -> None:
    x = torch.from_numpy(np.ones(N, np.float32))
    with torch.ahbm.stream(torch.ahbm.Stream()):
        y = torch.empty(N)
        scale(x, y)
        np.testing.assert_array_equal(y.numpy(), np.full(N, 2))


@pytest.mark.adr("0021-D3")
@pytest.mark.parametrize("waits", [False, True])
def test_a_host_read_is_a_copy_on_the_current_stream(torch: Any, waits: bool) -> None:
    x, y = torch.from_numpy(np.ones(N, np.float32)), torch.empty(N, name="y")
    side = torch.ahbm.Stream()
    with torch.ahbm.stream(side):
        scale(x, y)
    # Looking on orders nothing, and is no race.
    assert "2." in repr(y)
    if waits:
        side.synchronize()
        assert y.numpy()[0] == 2
        return
    with pytest.raises(RACE) as failure:
        y.numpy()
    text = str(failure.value)
    assert "copy_to_host (rank 0, stream sip0, at test_races_between_operations.py" in text
    assert line_of(kernels.scale, "tl.store") in text


@pytest.mark.parametrize("waits", [False, True])
def test_a_copy_into_a_tensor_must_wait_for_its_readers(torch: Any, waits: bool) -> None:
    x = torch.from_numpy(np.ones(N, np.float32))
    side = torch.ahbm.Stream()
    with torch.ahbm.stream(side):
        scale(x, torch.empty(N))
    if waits:
        torch.ahbm.current_stream().wait_stream(side)
    x.copy_(np.zeros(N, np.float32))
    if waits:
        torch.drain()
    else:
        with pytest.raises(RACE, match="copy_from_host"):
            torch.drain()


def ranks(worker: Callable[[int, Any], None], count: int = 2) -> None:
    """Run a worker on every rank, then everything that is on record."""
    with kernbench.RuntimeContext(machine="ahbm", ranks=count, check=True) as torch:

        def body(rank: int) -> None:
            torch.distributed.init_process_group()
            worker(rank, torch)

        torch.multiprocessing.spawn(body, nprocs=count)


def race_of(run: Callable[[], None]) -> str:
    """Return what the race says that a run ends with, on whichever rank."""
    with pytest.raises((RACE, BaseExceptionGroup)) as failure:
        run()
    error: BaseException = failure.value
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, RACE), error
    return str(error)


@pytest.mark.adr("0021-D4")
@pytest.mark.parametrize("waits", [False, True])
def test_a_collective_takes_what_its_own_stream_has_made(waits: bool) -> None:
    def worker(rank: int, torch: Any) -> None:
        x, y = torch.ones(N), torch.empty(N, name="y")
        side = torch.ahbm.Stream()
        side.wait_stream(torch.ahbm.current_stream())
        with torch.ahbm.stream(side):
            scale(x, y)
        if waits:
            torch.ahbm.current_stream().wait_stream(side)
        torch.distributed.all_reduce(y)
        assert y.numpy()[0] == 4

    if waits:
        ranks(worker)
        return
    text = race_of(lambda: ranks(worker))
    assert "all_reduce #1 on group world (rank 0, at test_races" in text
    assert "kernel scale, rank 0, stream sip0.1" in text


@pytest.mark.adr("0021-D4")
@pytest.mark.parametrize("waits", [False, True])
def test_collectives_of_two_groups_in_flight_on_one_tensor_race(waits: bool) -> None:
    def worker(rank: int, torch: Any) -> None:
        dist = torch.distributed
        other = dist.new_group([0, 1])
        x = torch.ones(N, name="x")
        first = dist.all_reduce(x, async_op=True)
        if waits:
            first.wait()
        second = dist.all_reduce(x, group=other, async_op=True)
        first.wait()
        second.wait()

    if waits:
        ranks(worker)
    else:
        text = race_of(lambda: ranks(worker))
        assert "all_reduce #1 on group world" in text
        assert "all_reduce #1 on group 1 of ranks 0,1" in text


def test_after_wait_the_result_is_for_any_stream() -> None:
    def worker(rank: int, torch: Any) -> None:
        x = torch.ones(N)
        torch.distributed.all_reduce(x, async_op=True).wait()
        with torch.ahbm.stream(torch.ahbm.Stream()):
            y = torch.empty(N)
            scale(x, y)
            assert y.tolist() == [4] * N

    ranks(worker)


@pytest.mark.adr("0021-D4")
@pytest.mark.parametrize("same_stream", [False, True])
def test_a_wait_that_does_not_block_is_for_the_current_stream(same_stream: bool) -> None:
    def worker(rank: int, torch: Any) -> None:
        torch.distributed.destroy_process_group()
        torch.distributed.init_process_group(blocking_wait=False)
        x, y = torch.ones(N, name="x"), torch.empty(N)
        side = torch.ahbm.Stream()
        torch.ahbm.synchronize()
        torch.distributed.all_reduce(x, async_op=True).wait()
        with torch.ahbm.stream(None if same_stream else side):
            scale(x, y)
            if same_stream:
                assert y.numpy()[0] == 4

    if same_stream:
        ranks(worker)
    else:
        text = race_of(lambda: ranks(worker))
        assert "all_reduce #1 on group world" in text
        assert line_of(kernels.scale, "tl.load") in text


Order = Callable[[int, Any, Any], object]
BETWEEN_RANKS: dict[str, tuple[Order, bool]] = {
    "nothing": (lambda rank, dist, x: None, True),
    "barrier": (lambda rank, dist, x: dist.barrier(), False),
    "all_reduce": (lambda rank, dist, x: dist.all_reduce(x), False),
    "broadcast of the writer": (lambda rank, dist, x: dist.broadcast(x, src=1), False),
    "broadcast of the reader": (lambda rank, dist, x: dist.broadcast(x, src=0), True),
    "reduce to the reader": (lambda rank, dist, x: dist.reduce(x, dst=0), False),
    "reduce to the writer": (lambda rank, dist, x: dist.reduce(x, dst=1), True),
    "send": (lambda rank, dist, x: dist.send(x, 0) if rank else dist.recv(x, 1), False),
    "receive": (lambda rank, dist, x: dist.recv(x, 0) if rank else dist.send(x, 1), True),
}


@pytest.mark.adr("0021-D4")
@pytest.mark.parametrize("how", BETWEEN_RANKS)
def test_ranks_are_ordered_by_what_they_tell_each_other(how: str) -> None:
    order, races = BETWEEN_RANKS[how]
    shared: dict[int, Any] = {}

    def worker(rank: int, torch: Any) -> None:
        y = shared[rank] = torch.zeros(N, name="y")
        x = torch.ones(N)
        torch.distributed.barrier()
        if rank == 1:
            scale(x, y)
        order(rank, torch.distributed, x)
        torch.ahbm.synchronize()
        if rank == 0:
            torch.zeros(N).copy_(shared[1])

    if races:
        assert "kernel scale, rank 1" in race_of(lambda: ranks(worker))
    else:
        ranks(worker)


def test_spawn_comes_after_main_and_main_after_its_join() -> None:
    with kernbench.RuntimeContext(machine="ahbm", ranks=1, check=True) as torch:
        x, y = torch.ones(N), torch.zeros(N)
        torch.ahbm.synchronize()

        def worker(rank: int) -> None:
            side = torch.ahbm.Stream()
            with torch.ahbm.stream(side):
                scale(x, y)
            side.synchronize()

        torch.multiprocessing.spawn(worker, nprocs=1)
        assert y.numpy()[0] == 2


ACTIONS = st.one_of(
    st.tuples(st.just("run"), st.integers(0, 2), st.integers(0, 2), st.integers(0, 2)),
    st.tuples(st.just("event"), st.integers(0, 2), st.integers(0, 1)),
    st.tuples(st.just("wait"), st.integers(0, 2), st.integers(0, 1)),
    st.tuples(st.just("synchronize"), st.integers(0, 2)),
)


@pytest.mark.slow
@pytest.mark.adr("0021-D1")
@given(st.lists(ACTIONS, min_size=2, max_size=12))
def test_a_program_of_streams_races_if_the_graph_of_its_order_says_so(actions: Any) -> None:
    """The oracle draws the edges and asks for a path between every two launches that conflict."""
    edges: set[tuple[int, int]] = set()
    newest: dict[Any, int] = {}
    """Per stream, event and host the node that it stands for."""
    launches: list[tuple[int, int, int]] = []

    def node(*after: Any) -> int:
        number = len(edges) + 1000 * len(launches) + len(newest) + next(numbers)
        edges.update((newest[item], number) for item in after if item in newest)
        return number

    numbers = iter(range(10**6, 10**7))
    with kernbench.RuntimeContext(machine="ahbm", ranks=1, check=True) as torch:
        tensors = [torch.zeros(N) for _ in range(3)]
        streams = [torch.ahbm.Stream() for _ in range(3)]
        events = [torch.ahbm.Event() for _ in range(2)]
        torch.ahbm.synchronize()
        for action in actions:
            if action[0] == "run":
                _, stream, source, target = action
                with torch.ahbm.stream(streams[stream]):
                    scale(tensors[source], tensors[target])
                at = newest[stream] = node(stream, "host")
                launches.append((at, source, target))
            elif action[0] == "event":
                streams[action[1]].record_event(events[action[2]])
                newest["event", action[2]] = node(action[1], "host")
            elif action[0] == "wait":
                streams[action[1]].wait_event(events[action[2]])
                newest[action[1]] = node(action[1], ("event", action[2]))
            else:
                streams[action[1]].synchronize()
                newest["host"] = node("host", action[1])
        try:
            torch.drain()
            raced = False
        except RACE:
            raced = True
    expected = any(
        (t in (s2, t2) or t2 == s) and not _is_path(edges, a, b)
        for i, (a, s, t) in enumerate(launches)
        for b, s2, t2 in launches[i + 1 :]
    )
    assert raced == expected


def _is_path(edges: set[tuple[int, int]], start: int, end: int) -> bool:
    reached, pending = {start}, [start]
    while pending:
        at = pending.pop()
        for a, b in edges:
            if a == at and b not in reached:
                reached.add(b)
                pending.append(b)
    return end in reached
