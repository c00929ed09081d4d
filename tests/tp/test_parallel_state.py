"""T1: the groups are counted out by hand from Megatron's rule: tensor ranks are neighbours."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench import tp
from kernbench.errors import KernbenchError
from kernbench.runtime_api import RuntimeContext
from tests.tiers import examples


def spawn(world_size, body):
    """Run ``body(torch, rank)`` with a process group but without model parallelism."""
    results = [None] * world_size
    with RuntimeContext(machine="ahbm", ranks=world_size) as torch:

        def worker(rank):
            torch.ahbm.set_device(rank)
            torch.distributed.init_process_group()
            results[rank] = body(torch, rank)

        torch.multiprocessing.spawn(worker, nprocs=world_size)
    return results


def place(_torch, _rank):
    return {
        "tensor": (
            tp.get_tensor_model_parallel_rank(),
            tp.get_tensor_model_parallel_world_size(),
            tp.get_tensor_model_parallel_src_rank(),
        ),
        "data": (
            tp.get_data_parallel_rank(),
            tp.get_data_parallel_world_size(),
            tp.get_data_parallel_src_rank(),
        ),
    }


@pytest.mark.adr("0027-D2")
@examples(12)
@given(tensor_size=st.sampled_from((1, 2, 3, 4)), data_size=st.sampled_from((1, 2, 3)))
def test_tensor_ranks_are_neighbours_and_data_ranks_a_stride_apart(
    on_ranks, tensor_size, data_size
):
    world_size = tensor_size * data_size
    for rank, result in enumerate(on_ranks(world_size, place, tensor_size)):
        replica, position = divmod(rank, tensor_size)
        assert result["tensor"] == (position, tensor_size, rank - position)
        assert result["data"] == (replica, data_size, position)


@pytest.mark.adr("0027-D2")
def test_by_default_the_whole_world_shares_one_model(on_ranks):
    assert [result["tensor"] for result in on_ranks(4, place)] == [
        (rank, 4, 0) for rank in range(4)
    ]


def test_the_groups_reduce_over_their_own_ranks_only(on_ranks):
    def sums(torch, rank):
        result = []
        for group in (tp.get_tensor_model_parallel_group(), tp.get_data_parallel_group()):
            x = torch.full((1,), 10.0**rank, dtype="f32")
            torch.distributed.all_reduce(x, group=group)
            result.append(x.item())
        return result

    assert on_ranks(4, sums, 2) == [[11, 101], [11, 1010], [1100, 101], [1100, 1010]]


@pytest.mark.adr("0027-D2")
def test_the_state_belongs_to_one_rank_of_one_run():
    def only_rank_zero_in_both(torch, rank):
        tp.initialize_model_parallel()
        torch.distributed.barrier()
        if rank:
            tp.destroy_model_parallel()
        torch.distributed.barrier()
        return tp.model_parallel_is_initialized()

    assert spawn(2, only_rank_zero_in_both) == [True, False]
    # The next run starts with none.
    assert spawn(2, lambda _torch, _rank: tp.model_parallel_is_initialized()) == [False, False]


def test_after_destroy_another_size_can_be_set_up():
    def twice(torch, rank):
        tp.initialize_model_parallel(4)
        tp.destroy_model_parallel()
        tp.destroy_model_parallel()
        tp.initialize_model_parallel(2)
        return tp.get_tensor_model_parallel_world_size()

    assert spawn(4, twice) == [2] * 4


@pytest.mark.parametrize(
    "getter",
    [
        tp.get_tensor_model_parallel_group,
        tp.get_tensor_model_parallel_rank,
        tp.get_tensor_model_parallel_world_size,
        tp.get_tensor_model_parallel_src_rank,
        tp.get_data_parallel_group,
        tp.get_data_parallel_rank,
        tp.get_data_parallel_world_size,
        tp.get_data_parallel_src_rank,
        lambda: tp.ColumnParallelLinear(4, 4),
        lambda: tp.RowParallelLinear(4, 4),
        lambda: tp.VocabParallelEmbedding(4, 4),
    ],
)
def test_before_initialisation_the_error_says_what_to_call(getter):
    def body(_torch, _rank):
        assert not tp.model_parallel_is_initialized()
        with pytest.raises(RuntimeError, match=r"not initialized on rank.*initialize_model") as got:
            getter()
        assert isinstance(got.value, KernbenchError)

    spawn(1, body)


@pytest.mark.parametrize(("size", "world_size"), [(3, 4), (8, 4), (0, 2), (-1, 2)])
def test_a_size_that_does_not_divide_the_world_is_refused_with_both_numbers(size, world_size):
    def body(_torch, _rank):
        with pytest.raises(ValueError, match=rf"\({size}\).*world size \({world_size}\)") as got:
            tp.initialize_model_parallel(size)
        assert isinstance(got.value, KernbenchError)

    spawn(world_size, body)


def test_initialising_twice_is_refused():
    def body(_torch, rank):
        tp.initialize_model_parallel(2)
        with pytest.raises(RuntimeError, match=rf"already initialized on rank {rank}.*size 2"):
            tp.initialize_model_parallel(1)

    spawn(2, body)


def test_without_a_process_group_the_error_says_what_to_call():
    with (
        RuntimeContext(machine="ahbm", ranks=1),
        pytest.raises(RuntimeError, match=r"init_process_group\(\) first"),
    ):
        tp.initialize_model_parallel()


def test_outside_of_a_run_there_is_no_state():
    with pytest.raises(KernbenchError, match="no run"):
        tp.model_parallel_is_initialized()


def test_main_is_a_world_of_its_own():
    with RuntimeContext(machine="ahbm", ranks=1) as torch:
        torch.distributed.init_process_group()
        tp.initialize_model_parallel()
        layer = tp.ColumnParallelLinear(2, 2, dtype="f32")
        layer.load_full([[1, 2], [3, 4]])
        assert layer(torch.ones((1, 2), dtype="f32")).tolist() == [[4, 6]]
