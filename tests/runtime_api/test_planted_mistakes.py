"""One rank of four makes a mistake in a collective: the error names that rank and its line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench.errors import CollectiveMismatchError, KernbenchError
from kernbench.runtime_api import RuntimeContext, SpawnException
from tests.tiers import examples


class Rank:
    """What a case is given: one rank of four, of which ``p`` makes the mistake."""

    def __init__(self, torch: Any, rank: int, planted: int) -> None:
        self.torch, self.dist = torch, torch.distributed
        self.r, self.p, self.bad = rank, planted, rank == planted
        self.peer, self.other = rank ^ 1, (planted + 1) % 4
        self.x, self.o = torch.ones(8), torch.zeros(8)

    def tensors(self, count: int, size: int = 8) -> list[Any]:
        return [self.torch.zeros(size) for _ in range(count)]

    def pair(self, to: Any) -> None:
        if self.r % 2 == self.p % 2:
            self.dist.send(self.x, to if self.bad else self.peer)
        else:
            self.dist.recv(self.x, self.peer)

    def splits(self, wrong: Any) -> None:
        self.dist.all_to_all_single(self.o, self.x, [2] * 4, wrong if self.bad else [2] * 4)


Case = Callable[[Rank], object]

OWN: dict[str, Case] = {
    "send": lambda a: a.pair(9),
    "send text": lambda a: a.pair("a"),
    "send list": lambda a: a.pair([1]),
    "send to itself": lambda a: a.pair(a.r),
    "broadcast": lambda a: a.dist.broadcast(a.x, 9 if a.bad else 0),
    "broadcast list": lambda a: a.dist.broadcast(a.x, [0] if a.bad else 0),
    "no tensor": lambda a: a.dist.all_reduce(None if a.bad else a.x),
    "reduction": lambda a: a.dist.all_reduce(a.x, "maxx" if a.bad else "sum"),
    "group": lambda a: a.dist.all_reduce(a.x, group="a" if a.bad else None),
    "not in the group": lambda a: a.dist.all_reduce(
        a.x, group=a.dist.new_group([i for i in range(4) if i != a.p])
    ),
    "ranks": lambda a: a.dist.new_group([0, 9] if a.bad else [0, 1]),
    "no ranks": lambda a: a.dist.new_group(3 if a.bad else [0, 1]),
    "all_gather list": lambda a: a.dist.all_gather(a.tensors(3 if a.bad else 4), a.x),
    "all_gather no list": lambda a: a.dist.all_gather(5 if a.bad else a.tensors(4), a.x),
    "all_gather shapes": lambda a: a.dist.all_gather(a.tensors(4, 5 if a.bad else 8), a.x),
    "all_gather whole": lambda a: a.dist.all_gather_into_tensor(
        a.torch.zeros(30 if a.bad else 32), a.x
    ),
    "reduce_scatter list": lambda a: a.dist.reduce_scatter(a.o, [a.x] * (3 if a.bad else 4)),
    "splits add up": lambda a: a.splits([3, 2, 2, 2]),
    "splits for each": lambda a: a.splits([2, 2, 4]),
    "splits of text": lambda a: a.splits(["a"] * 4),
    "splits of floats": lambda a: a.splits([2.0] * 4),
    "all_to_all dtype": lambda a: a.dist.all_to_all_single(
        a.o.to("f16") if a.bad else a.o, a.x, [2] * 4, [2] * 4
    ),
    "all_to_all list": lambda a: a.dist.all_to_all(
        a.tensors(4, 2), a.tensors(3 if a.bad else 4, 2)
    ),
    "gather list": lambda a: a.dist.gather(a.x, a.tensors(3) if a.bad else None, a.p),
    "no gather list": lambda a: a.dist.gather(a.x, None, a.p),
    "scatter list": lambda a: a.dist.scatter(a.o, a.tensors(3) if a.bad else None, a.p),
    "scatter root": lambda a: a.dist.scatter(
        a.o, a.tensors(4) if a.r == a.other else None, 9 if a.bad else a.other
    ),
}

ODD: dict[str, Case] = {
    "shape": lambda a: a.dist.all_reduce(a.torch.ones(5) if a.bad else a.x),
    "dtype": lambda a: a.dist.all_reduce(a.x.to("f16") if a.bad else a.x),
    "root": lambda a: a.dist.broadcast(a.x, 1 if a.bad else 0),
    "kind": lambda a: a.dist.all_reduce(a.x) if a.bad else a.dist.broadcast(a.x, 0),
    "algorithm": lambda a: a.dist.all_reduce(a.x, algorithm="tree" if a.bad else "ring"),
    "no rendezvous": lambda a: (a.bad or rendezvous(a), a.dist.barrier()),
}

EXCHANGES: dict[str, Case] = {
    "sent": lambda a: a.splits([3, 1, 2, 2]),
    "taken": lambda a: a.dist.all_to_all_single(
        a.o, a.x, [3, 1, 2, 2] if a.bad else [2] * 4, [2] * 4
    ),
    "sent without": lambda a: a.dist.all_to_all_single(
        a.o, a.x, *(([2] * 4, [3, 1, 2, 2]) if a.bad else ())
    ),
    "rows": lambda a: a.dist.all_to_all_single(*a.tensors(2, 4 if a.bad else 8)),
    "lists": lambda a: a.dist.all_to_all(a.tensors(4, 2), a.tensors(4, 3 if a.bad else 2)),
}


def rendezvous(a: Rank) -> Any:
    memory = a.dist.symmetric_memory
    return memory.rendezvous(memory.empty(64, dtype="f32"))


def run(case: Case, planted: int) -> None:
    with RuntimeContext(ranks=4) as torch:

        def worker(rank: int) -> None:
            torch.ahbm.set_device(rank)
            torch.distributed.init_process_group()
            case(Rank(torch, rank, planted))

        torch.multiprocessing.spawn(worker, nprocs=4)


def errors_of(case: Case, planted: int) -> dict[int, Exception]:
    with pytest.raises(SpawnException) as caught:
        run(case, planted)
    return dict(caught.value.errors)


@pytest.mark.adr("0121-D1")
@examples(40)
@given(name=st.sampled_from([*OWN]), planted=st.integers(0, 3))
def test_a_call_that_is_wrong_by_itself_ends_its_own_rank(name: str, planted: int) -> None:
    errors = errors_of(OWN[name], planted)
    assert list(errors) == [planted]
    assert isinstance(errors[planted], KernbenchError)


@pytest.mark.adr("0121-D2")
@pytest.mark.adr("0121-D4")
@pytest.mark.parametrize("planted", [0, 3])
@pytest.mark.parametrize("name", ODD)
def test_a_call_that_differs_from_the_others_is_named(name: str, planted: int) -> None:
    for error in errors_of(ODD[name], planted).values():
        assert isinstance(error, CollectiveMismatchError)
        assert f"that of rank {planted} from the others'" in str(error)
        assert str(error).count("test_planted_mistakes.py:") == 4


@pytest.mark.adr("0121-D3")
@pytest.mark.parametrize("planted", [0, 3])
@pytest.mark.parametrize("name", EXCHANGES)
def test_parts_that_do_not_fit_are_those_of_the_rank_that_all_pairs_share(
    name: str, planted: int
) -> None:
    for error in errors_of(EXCHANGES[name], planted).values():
        assert isinstance(error, CollectiveMismatchError)
        assert f"what rank {planted} asks for fits none" in str(error)


@pytest.mark.adr("0121-D3")
def test_splits_that_are_left_out_meet_equal_ones() -> None:
    def case(a: Rank) -> None:
        arange = a.torch.arange(8).to("f32") + 10 * a.r
        a.dist.all_to_all_single(a.o, arange, *(([2] * 4, [2] * 4) if a.bad else ()))
        expected = [10 * source + 2 * a.r + i for source in range(4) for i in range(2)]
        assert a.o.tolist() == expected

    run(case, planted=1)


def test_a_group_that_ranks_make_of_others_names_who_was_first_and_where() -> None:
    def case(a: Rank) -> None:
        a.dist.new_group([0, 2] if a.bad else [0, 1])

    (error, *_) = errors_of(case, planted=0).values()
    assert "where rank 0, at test_planted_mistakes.py:" in str(error)
    assert "asked for [0, 2]" in str(error)
