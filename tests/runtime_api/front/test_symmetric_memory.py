"""Symmetric memory: what the host sees of it, and which mistakes are named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from kernbench.errors import BadPointerError, KernbenchError, OutOfBoundsError, UsageError
from kernbench.runtime_api import RuntimeContext
from tests.runtime_api import symmetric_kernels as kernels


def on_ranks(count: int, body: Callable[[Any, int], None], **options: Any) -> Any:
    """Run ``body(torch, rank)`` on ranks that are in a group; return the run."""
    with RuntimeContext(ranks=count, **options) as torch:

        def main(rank: int) -> None:
            torch.ahbm.set_device(rank)
            torch.distributed.init_process_group()
            body(torch, rank)

        torch.multiprocessing.spawn(main, nprocs=count)
    return torch


def error_of(count: int, body: Callable[[Any, int], None], **options: Any) -> KernbenchError:
    """Return the first error of a program that fails."""
    with pytest.raises(ExceptionGroup) as caught:
        on_ranks(count, body, **options)
    first = caught.value.exceptions[0]
    assert isinstance(first, KernbenchError)
    return first


@pytest.mark.adr("0032-D1")
def test_every_rank_knows_the_addresses_of_all() -> None:
    seen: dict[int, list[int]] = {}

    def body(torch: Any, rank: int) -> None:
        symmetric = torch.distributed.symmetric_memory
        x = symmetric.empty(8, dtype=torch.float32)
        shared = symmetric.rendezvous(x)
        assert (shared.rank, shared.world_size, shared.buffer_size) == (rank, 3, 32)
        assert shared.buffer_ptrs[rank] == x.data_ptr()
        assert shared.buffer_ptrs_dev.tolist() == shared.buffer_ptrs
        assert shared.signal_pad_ptrs_dev.tolist() == shared.signal_pad_ptrs
        assert shared.get_signal_pad(rank, (4,)).tolist() == [0, 0, 0, 0]
        x.copy_(np.full(8, rank, np.float32))
        torch.ahbm.synchronize()
        shared.barrier()
        torch.ahbm.synchronize()
        for peer in range(3):
            view = shared.get_buffer(peer, (2, 2), torch.float32, storage_offset=4)
            assert view.data_ptr() == shared.buffer_ptrs[peer] + 16
            assert view.tolist() == [[peer, peer], [peer, peer]]
        seen[rank] = shared.buffer_ptrs

    on_ranks(3, body)
    assert seen[0] == seen[1] == seen[2]
    assert len(set(seen[0])) == 3


@pytest.mark.adr("0032-D1")
def test_torch_calls_the_module_by_another_name() -> None:
    with RuntimeContext() as torch:
        assert torch.distributed._symmetric_memory is torch.distributed.symmetric_memory


@pytest.mark.adr("0032-D1")
def test_a_tensor_that_is_not_symmetric_has_no_rendezvous() -> None:
    def body(torch: Any, rank: int) -> None:
        torch.distributed.symmetric_memory.rendezvous(torch.zeros(4, name="weights"))

    error = error_of(2, body)
    assert isinstance(error, UsageError)
    assert "weights (4,) float32 is not symmetric memory; allocate it with" in str(error)


@pytest.mark.adr("0032-D1")
def test_ranks_that_bring_different_sizes_are_named() -> None:
    def body(torch: Any, rank: int) -> None:
        symmetric = torch.distributed.symmetric_memory
        symmetric.rendezvous(symmetric.empty(4 + rank, dtype=torch.float32))

    assert "but got 16 bytes on rank 0, 20 bytes on rank 1" in str(error_of(2, body))


def test_a_buffer_that_is_larger_than_the_memory_is_refused() -> None:
    def body(torch: Any, rank: int) -> None:
        symmetric = torch.distributed.symmetric_memory
        shared = symmetric.rendezvous(symmetric.empty(4, dtype=torch.float32, name="x"))
        with pytest.raises(UsageError, match="rank must be from 0 to 1, but got 2"):
            shared.get_buffer(2, (4,), torch.float32)
        with pytest.raises(UsageError, match="ends at byte 20, but x of rank 1 is 16 bytes"):
            shared.get_buffer(1, (4,), torch.float32, storage_offset=1)

    on_ranks(2, body)


def add_from(torch: Any, other: Any) -> Any:
    out = torch.zeros(4)
    kernels.sum_of_arguments[(1,)]((torch.ones(4), other), out, 4, WORLD=2, B=4)
    return out


@pytest.mark.adr("0032-D1")
@pytest.mark.parametrize("is_symmetric", [False, True])
def test_a_peers_tensor_that_was_not_shared_is_refused_by_name(is_symmetric: bool) -> None:
    tensors: dict[int, Any] = {}

    def body(torch: Any, rank: int) -> None:
        make = torch.distributed.symmetric_memory.empty if is_symmetric else torch.empty
        tensors[rank] = make(4, dtype=torch.float32, name="theirs")
        torch.distributed.barrier()
        if rank == 0:
            add_from(torch, tensors[1])

    error = error_of(2, body)
    assert isinstance(error, BadPointerError)
    assert "of kernel sum_of_arguments: theirs (4,) float32 lies on SIP 1, but rank 0" in str(error)
    fix = "must call torch.distributed.symmetric_memory.rendezvous" if is_symmetric else "only thr"
    assert fix in str(error)


@pytest.mark.adr("0032-D1")
def test_a_loaded_address_of_a_peers_own_tensor_is_refused_at_the_line() -> None:
    tensors: dict[int, Any] = {}

    def body(torch: Any, rank: int) -> None:
        symmetric = torch.distributed.symmetric_memory
        symmetric.rendezvous(symmetric.empty(4, dtype=torch.float32))
        tensors[rank] = torch.empty(4, name="theirs")
        torch.distributed.barrier()
        if rank == 0:
            where = torch.tensor([tensors[1].data_ptr()], dtype=torch.int64)
            out = torch.zeros(1)
            kernels.load_far[(1,)](where, 0, 2, out)
            out.tolist()

    error = error_of(2, body)
    assert isinstance(error, BadPointerError)
    assert "tt.load at symmetric_kernels.py:" in str(error)
    assert "which lies in theirs (4,) float32 of SIP 1; kernels reach other SIPs only" in str(error)


@pytest.mark.adr("0032-D1")
def test_a_group_shares_with_its_own_ranks_only() -> None:
    tensors: dict[int, Any] = {}

    def body(torch: Any, rank: int) -> None:
        symmetric = torch.distributed.symmetric_memory
        groups = [torch.distributed.new_group([0, 1]), torch.distributed.new_group([2, 3])]
        mine = groups[rank // 2]
        tensors[rank] = symmetric.empty(4, dtype=torch.float32)
        shared = symmetric.rendezvous(tensors[rank], mine)
        assert (shared.rank, shared.world_size) == (rank % 2, 2)
        torch.distributed.barrier()
        if rank == 0:
            add_from(torch, tensors[2])

    assert "rank 2 has shared it with the ranks on SIPs 2, 3 only" in str(error_of(4, body))


@pytest.mark.adr("0032-D1")
@pytest.mark.parametrize("by_address", [False, True])
def test_an_access_that_leaves_a_peers_tensor_names_it(by_address: bool) -> None:
    def body(torch: Any, rank: int) -> None:
        symmetric = torch.distributed.symmetric_memory
        shared = symmetric.rendezvous(symmetric.empty(4, dtype=torch.float32, name="x"))
        if rank == 0:
            out = torch.zeros(8)
            if by_address:
                kernels.load_far[(1,)](shared.buffer_ptrs_dev, 1, 4, out)
            else:
                theirs = shared.get_buffer(1, (4,), torch.float32)
                kernels.sum_of_arguments[(1,)]((out, theirs), out, 8, WORLD=2, B=8)
            out.tolist()
        torch.distributed.barrier()

    error = error_of(2, body)
    expected = BadPointerError | OutOfBoundsError if by_address else OutOfBoundsError
    assert isinstance(error, expected)
    assert "symmetric_kernels.py:" in str(error)
    assert "rank 0" in str(error) or by_address


def test_a_benchmark_of_a_kernel_that_talks_is_refused() -> None:
    def body(torch: Any, rank: int) -> None:
        symmetric = torch.distributed.symmetric_memory
        x = symmetric.empty(4, dtype=torch.float32)
        shared = symmetric.rendezvous(x)
        if rank == 0:
            with pytest.raises(
                UsageError, match=r"kernel sum_of_arguments communicates with other SIPs"
            ):
                torch.launcher.benchmark_ms(
                    lambda: add_from(torch, shared.get_buffer(1, (4,), torch.float32))
                )

    on_ranks(2, body)
