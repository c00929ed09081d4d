"""One rank of four makes a mistake in a collective: the error names that rank and its line."""

from __future__ import annotations

import warnings

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from kernbench.clock import raised_at  # noqa: E402
from kernbench.errors import CollectiveMismatchError, KernbenchError  # noqa: E402
from kernbench.runtime_api import SpawnException  # noqa: E402
from tests.tiers import examples  # noqa: E402
from tests.torch_bridge.running import simulated  # noqa: E402

PLACE = "mistake.py:1"

OWN = {
    "send": "dist.send(x, 9 if bad else peer) if r % 2 == p % 2 else dist.recv(x, peer)",
    "send before": "dist.send(x, -3 if bad else peer) if r % 2 == p % 2 else dist.recv(x, peer)",
    "send text": "dist.send(x, 'a' if bad else peer) if r % 2 == p % 2 else dist.recv(x, peer)",
    "receive": "dist.recv(x, 9 if bad else peer) if r % 2 == p % 2 else dist.send(x, peer)",
    "isend": "(dist.isend(x, 4 if bad else peer) if r % 2 == p % 2 else "
    "dist.irecv(x, peer)).wait()",
    "batch": "[w.wait() for w in dist.batch_isend_irecv([dist.P2POp(dist.isend, x, 9 if bad else "
    "(r + 1) % n), dist.P2POp(dist.irecv, o, (r - 1) % n)])]",
    "broadcast": "dist.broadcast(x, 9 if bad else 0)",
    "broadcast before": "dist.broadcast(x, -1 if bad else 0)",
    "reduce": "dist.reduce(x, 9 if bad else 0)",
    "gather": "dist.gather(x, [T(8)] * 4 if r == other else None, 9 if bad else other)",
    "scatter": "dist.scatter(o, [x] * 4 if r == other else None, 9 if bad else other)",
    "objects": "dist.broadcast_object_list([r], 9 if bad else 0)",
    "all_gather list": "dist.all_gather([T(8) for _ in range(3 if bad else 4)], x)",
    "all_gather shapes": "dist.all_gather([T(5 if bad else 8) for _ in range(4)], x)",
    "all_gather whole": "dist.all_gather_into_tensor(T(30 if bad else 32), x)",
    "reduce_scatter list": "dist.reduce_scatter(o, [x] * (3 if bad else 4))",
    "reduce_scatter shape": "dist.reduce_scatter(T(5 if bad else 8), [x] * 4)",
    "reduce_scatter whole": "dist.reduce_scatter_tensor(T(2), T(9 if bad else 8))",
    "splits add up": "dist.all_to_all_single(o, x, [2] * 4, [3, 2, 2, 2] if bad else [2] * 4)",
    "splits for each": "dist.all_to_all_single(o, x, [2] * 4, [2, 2, 4] if bad else [2] * 4)",
    "splits below 0": "dist.all_to_all_single(o, x, [2] * 4, [-2, 4, 4, 2] if bad else [2] * 4)",
    "no splits": "dist.all_to_all_single(T(6 if bad else 8), T(6 if bad else 8))",
    "all_to_all list": "dist.all_to_all([T(2) for _ in range(4)], [T(2)] * (3 if bad else 4))",
    "gather list": "dist.gather(x, [T(8) for _ in range(3)] if bad else None, p)",
    "gather shapes": "dist.gather(x, [T(5) for _ in range(4)] if bad else None, p)",
    "scatter list": "dist.scatter(o, [x] * 3 if bad else None, p)",
    "scatter shapes": "dist.scatter(o, [T(5)] * 4 if bad else None, p)",
    "scatter objects": "dist.scatter_object_list([None], [1] * 3 if bad else None, p)",
    "bits": "dist.all_reduce(x.int(), op=dist.ReduceOp.BAND if bad else dist.ReduceOp.MAX)",
    "short": "dist.broadcast(x.short() if bad else x.int(), 0)",
    "mean": "dist.all_reduce(x > 0 if bad else x, op=dist.ReduceOp.AVG)",
}
"""What is wrong whatever the others call."""

OF_PYTORCH = {
    "itself": "dist.send(x, r if bad else peer) if r % 2 == p % 2 else dist.recv(x, peer)",
    "no tensor": "dist.all_reduce(None if bad else x)",
    "no list to gather to": "dist.gather(x, None, p)",
    "a list of no root": "dist.gather(x, [T(8)] * 4 if r in (p, other) else None, other)",
    "no list to scatter": "dist.scatter(o, None, p)",
    "dtypes of a list": "dist.all_to_all([T(2)] * 4, "
    "[T(2, dtype=torch.int32 if bad else None)] * 4)",
    "no group": "dist.all_reduce(x, group='nope' if bad else None)",
    "a rank of no group": "g = dist.new_group([i for i in range(4) if i != other]); "
    "r != other and dist.broadcast(x, other if bad else (p + 2) % 4, group=g)",
    "ranks of a group": "dist.new_group([0, 9] if bad else [0, 1])",
}
"""What PyTorch itself refuses, in that rank."""

ODD = {
    "shape": "dist.all_reduce(T(5) if bad else x)",
    "dtype": "dist.all_reduce(x.half() if bad else x)",
    "reduction": "dist.reduce(x, 0, op=dist.ReduceOp.MAX if bad else dist.ReduceOp.SUM)",
    "root": "dist.broadcast(x, 1 if bad else 0)",
    "kind": "dist.all_reduce(x) if bad else dist.broadcast(x, 0)",
    "all_gather": "dist.all_gather([T(5 if bad else 8) for _ in range(4)], T(5 if bad else 8))",
    "one of a list": "dist.all_gather([T(5 if bad and i == peer else 8) for i in range(4)], x)",
    "one to scatter": "dist.reduce_scatter(o, [T(5 if bad and i == peer else 8) "
    "for i in range(4)])",
    "gather": "dist.gather(T(5) if bad else x, [T(8)] * 4 if r == other else None, other)",
    "scatter": "dist.scatter(T(5) if bad else o, [x] * 4 if r == other else None, other)",
    "objects": "dist.broadcast_object_list([r] * (2 if bad else 1), other)",
    "kinds of objects": "dist.broadcast_object_list([r], 0) if bad else "
    "dist.all_gather_object([None] * 4, r)",
    "dtype of all_to_all": "dist.all_to_all_single(*(t.int() if bad else t for t in (o, x)))",
    "coalesced": "with dist._coalescing_manager(async_ops=False): "
    "dist.all_reduce(T(5) if bad else x); dist.all_reduce(o)",
}
"""What differs from the others' calls."""

EXCHANGES = {
    "sent": "dist.all_to_all_single(o, x, [2] * 4, [3, 1, 2, 2] if bad else [2] * 4)",
    "sent without": "dist.all_to_all_single(o, x, *(([2] * 4, [3, 1, 2, 2]) if bad else ()))",
    "taken": "dist.all_to_all_single(o, x, [3, 1, 2, 2] if bad else [2] * 4, [2] * 4)",
    "rows": "dist.all_to_all_single(T(4 if bad else 8), T(4 if bad else 8))",
    "one side": "dist.all_to_all_single(T(4 if bad else 8), x)",
    "row": "dist.all_to_all_single(*(T(8, 3 if bad else 2) for _ in range(2)), [2] * 4, [2] * 4)",
    "lists": "dist.all_to_all([T(2) for _ in range(4)], [T(3 if bad else 2) for _ in range(4)])",
}
"""What is sent or taken that does not fit the others."""


def errors_of(source: str, planted: int, backend: str) -> dict[int, Exception]:
    """Return the error of each rank that one ended."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(SpawnException) as caught:
            simulated("planted.py", backend, planted, source, nprocs=4)
    return dict(caught.value.errors)


@pytest.mark.adr("0121-D1")
@examples(15)
@given(
    name=st.sampled_from([*OWN, *OF_PYTORCH]),
    planted=st.integers(0, 3),
    backend=st.sampled_from(["nccl", "gloo"]),
)
def test_a_call_that_is_wrong_by_itself_ends_its_own_rank(
    name: str, planted: int, backend: str
) -> None:
    # Gloo has bitwise operations.
    assume((name, backend) != ("bits", "gloo"))
    errors = errors_of(OWN.get(name) or OF_PYTORCH[name], planted, backend)
    assert list(errors) == [planted]
    assert str(raised_at(errors[planted])) == PLACE
    assert isinstance(errors[planted], KernbenchError) == (name in OWN)


@pytest.mark.adr("0121-D2")
@examples(10)
@given(
    name=st.sampled_from([*ODD]),
    planted=st.integers(0, 3),
    backend=st.sampled_from(["nccl", "gloo"]),
)
def test_a_call_that_differs_from_the_others_is_named(
    name: str, planted: int, backend: str
) -> None:
    for error in errors_of(ODD[name], planted, backend).values():
        assert isinstance(error, CollectiveMismatchError)
        assert f"that of rank {planted} from the others'" in str(error)
        assert str(error).count(PLACE) == 4


@pytest.mark.adr("0121-D3")
@examples(8)
@given(
    name=st.sampled_from([*EXCHANGES]),
    planted=st.integers(0, 3),
    backend=st.sampled_from(["nccl", "gloo"]),
)
def test_parts_that_do_not_fit_are_those_of_the_rank_that_all_pairs_share(
    name: str, planted: int, backend: str
) -> None:
    for error in errors_of(EXCHANGES[name], planted, backend).values():
        assert isinstance(error, CollectiveMismatchError)
        assert f"what rank {planted} asks for fits none" in str(error)
        assert str(error).count(PLACE) == 4


@pytest.mark.adr("0121-D3")
def test_splits_that_are_left_out_meet_equal_ones_and_shapes_may_differ() -> None:
    simulated("fitting_exchanges.py", nprocs=4)


@pytest.mark.adr("0121-D5")
def test_what_pytorch_does_not_compute_lists_every_call() -> None:
    source = "dist.all_gather([T(4, 2) for _ in range(4)], T(8))"
    for error in errors_of(source, 0, "nccl").values():
        assert isinstance(error, CollectiveMismatchError)
        assert "do not fit each other (" in str(error)
        assert str(error).count(PLACE) == 4
