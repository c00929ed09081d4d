"""Host-read barriers (T5): each entry point, and that there is no other."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

from kernbench.errors import InternalError, NoDataError, UsageError
from kernbench.memory import Buffer
from kernbench.runtime_api import HOST_READS, RuntimeContext, Tensor
from kernbench.runtime_api.front import testing
from kernbench.runtime_api.tensors import host_read, tensor_reads, tensor_writes
from tests.runtime_api.runtime_kernels import add_one

VALUES = [2.0] * 4

ENTRIES = {
    "numpy": lambda t: t.numpy().tolist() == VALUES,
    "cpu": lambda t: t.cpu().numpy().tolist() == VALUES,
    "data": lambda t: t.data.tolist() == VALUES,
    "__getitem__": lambda t: t[np.array([0, 1, 2, 3])].numpy().tolist() == VALUES,
    "__repr__": lambda t: (
        repr(t) == "tensor([2., 2., 2., 2.], dtype=torch.float32, device='ahbm:0')"
    ),
    "item": lambda t: t[1].item() == 2.0,
    "tolist": lambda t: t.tolist() == VALUES,
    "copy_": lambda t: t.context.empty(4, device="ahbm:1").copy_(t).tolist() == VALUES,
    "assert_close": lambda t: t.context.testing.assert_close(t, VALUES) is None,
}


def pending(torch: RuntimeContext) -> Tensor:
    """Return a tensor whose kernel has been launched but has not run."""
    x, out = torch.ones(4), torch.empty(4)
    add_one[(1,)](x, out, 4, BLOCK=4)
    return out


@pytest.mark.adr("0027-D0.5")
@pytest.mark.parametrize("entry", sorted(HOST_READS))
def test_each_host_read_waits_for_the_kernel_and_replays_it(entry: str) -> None:
    with RuntimeContext(ranks=2) as torch:
        tensor = pending(torch)
        assert not tensor.buffer.last_writer.done
        assert ENTRIES[entry](tensor)
        assert tensor.buffer.last_writer.done
        assert len(torch.run.replay_queue) == 0


@pytest.mark.adr("0027-D0.5")
@pytest.mark.parametrize("read", [float, int, bool, np.asarray, lambda t: [0] * 3 + [t]])
def test_what_goes_through_another_host_read_waits_too(read) -> None:
    with RuntimeContext(ranks=1) as torch:
        tensor = pending(torch)
        result = read(tensor[0])
        if not isinstance(result, list):
            assert result == read(2.0)


def look_at_every_method(monkeypatch: pytest.MonkeyPatch) -> tuple[set[str], set[str], set[str]]:
    """Call every public method of Tensor.

    Returns which entries of the barrier were used, which methods brought device bytes to the host
    beside it, and which methods could be called.
    """
    entries: list[str] = []
    offenders: list[str] = []
    inside = [0]
    in_class: Any = Buffer.bytes
    real_read, real_bytes = host_read.read, in_class.fget

    def read(tensor: Tensor, entry: str):
        entries.append(entry)
        inside[0] += 1
        try:
            return real_read(tensor, entry)
        finally:
            inside[0] -= 1

    def bytes_of(buffer: Buffer):
        if not inside[0]:
            offenders.append(current[0])
        return real_bytes(buffer)

    for module in (tensor_reads, tensor_writes, testing):
        monkeypatch.setattr(module, "read", read)
    monkeypatch.setattr(Buffer, "bytes", property(bytes_of))
    current = [""]
    called = set()
    names = [
        name
        for name in dir(Tensor)
        if name not in dir(object) or name in {"__repr__", "__str__", "__eq__", "__hash__"}
    ]
    with RuntimeContext(ranks=2) as torch:
        for name in names:
            if name.startswith("_") and not name.startswith("__"):
                continue
            matrix, other = torch.ones(2, 2), torch.ones(2, 2)
            current[0] = name
            attribute = getattr(Tensor, name)
            if not callable(attribute):
                getattr(matrix, name)
                called.add(name)
                continue
            for arguments in ([], [other], [0], [0, 0], [0, 1, 1], [(2, 2)], [0, 1], [1]):
                if name in {"__init__", "show", "__init_subclass__"}:
                    break
                try:
                    getattr(matrix, name)(*arguments)
                except (TypeError, ValueError, IndexError, AttributeError, LookupError):
                    continue
                called.add(name)
    return set(entries), set(offenders), called


@pytest.mark.adr("0027-D0.5")
@pytest.mark.unchecked("finds readers by their use of bytes")
def test_the_set_of_host_reads_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    entries, offenders, called = look_at_every_method(monkeypatch)
    assert entries <= HOST_READS
    assert not offenders, f"these read device bytes without being a host read: {offenders}"
    assert {"numpy", "reshape", "copy_", "fill_", "clone", "__add__", "__matmul__"} <= called


@pytest.mark.adr("0027-D0.5")
@pytest.mark.unchecked("finds readers by their use of bytes")
def test_a_new_reader_without_registration_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def peek(tensor: Tensor) -> float:
        return float(tensor.buffer.bytes.sum())

    monkeypatch.setattr(Tensor, "peek", peek, raising=False)
    assert look_at_every_method(monkeypatch)[1] == {"peek"}


@pytest.mark.adr("0027-D0.5")
def test_an_entry_that_is_not_registered_is_refused() -> None:
    with RuntimeContext(ranks=1) as torch, pytest.raises(InternalError, match="not a registered"):
        host_read.read(torch.ones(2), "peek")


@pytest.mark.adr("0027-D0.5")
def test_every_caller_of_the_barrier_gives_a_registered_name() -> None:
    source = "".join(inspect.getsource(module) for module in (tensor_reads, tensor_writes, testing))
    words = {part.split('"')[1] for part in source.split("read(")[1:] if '"' in part.split(")")[0]}
    assert words == HOST_READS


@pytest.mark.adr("0027-D0.5")
def test_the_target_of_copy_has_no_barrier() -> None:
    with RuntimeContext(ranks=1) as torch:
        tensor = pending(torch)
        tensor.copy_(np.zeros(4))
        assert not tensor.buffer.last_writer.done
        assert tensor.tolist() == [0.0] * 4


@pytest.mark.adr("0027-D0.5")
def test_reading_does_not_wait_for_a_collective_of_others() -> None:
    """Rank 0 reads its own tensor while a collective it started lacks rank 1."""
    seen = []

    def worker(rank: int, torch: RuntimeContext) -> None:
        torch.distributed.init_process_group()
        mine = torch.full((4,), float(rank))
        if rank == 0:
            work: Any = torch.distributed.all_reduce(torch.ones(4), async_op=True)
            seen.append(mine.tolist())
            torch.distributed.barrier()
            work.wait()
        else:
            torch.distributed.all_reduce(torch.ones(4))
            torch.distributed.barrier()

    with RuntimeContext(ranks=2) as torch:
        torch.multiprocessing.spawn(worker, args=(torch,), nprocs=2)
    assert seen == [[0.0] * 4]


@pytest.mark.adr("0027-D0.5")
def test_reading_the_target_of_a_collective_before_its_wait_names_it() -> None:
    def worker(rank: int, torch: RuntimeContext) -> None:
        torch.distributed.init_process_group()
        x = torch.ones(4)
        work: Any = torch.distributed.all_reduce(x, async_op=True)
        with pytest.raises(UsageError, match="in use by all_reduce #1 on group world"):
            x.numpy()
        with pytest.raises(UsageError, match="in use by all_reduce #1"):
            x.fill_(3)
        with pytest.raises(UsageError, match=r"argument x of kernel add_one: .* in use by all_red"):
            add_one[(1,)](x, torch.empty(4), 4, BLOCK=4)
        assert "no data" in repr(x)
        work.wait()
        assert x.tolist() == [2.0] * 4

    with RuntimeContext(ranks=2) as torch:
        torch.multiprocessing.spawn(worker, args=(torch,), nprocs=2)


def test_parts_of_a_buffer_that_a_collective_does_not_use_are_free() -> None:
    def worker(rank: int, torch: RuntimeContext) -> None:
        torch.distributed.init_process_group()
        flat = torch.ones(8)
        works: list[Any] = [
            torch.distributed.all_reduce(part, async_op=True) for part in flat.chunk(2)
        ]
        works[0].wait()
        assert flat[:4].tolist() == [2.0] * 4
        with pytest.raises(UsageError, match="all_reduce #2"):
            flat[4:].numpy()
        works[1].wait()
        assert flat.tolist() == [2.0] * 8

    with RuntimeContext(ranks=2) as torch:
        torch.multiprocessing.spawn(worker, args=(torch,), nprocs=2)


@pytest.mark.adr("0002-D4")
@pytest.mark.parametrize("entry", sorted(HOST_READS - {"copy_", "__repr__"}))
def test_without_data_every_host_read_says_so(entry: str) -> None:
    with RuntimeContext(ranks=2, data=False) as torch:
        tensor = torch.ones(4)
        with pytest.raises(NoDataError, match=r"tensor1 .* float32 needs data"):
            ENTRIES[entry](tensor)
        assert repr(tensor) == "tensor(shape=(4,), dtype=torch.float32, device='ahbm:0', no data)"


@pytest.mark.adr("0002-D4")
def test_without_data_a_copy_to_another_sip_still_takes_its_time() -> None:
    times = []
    for data in (False, True):
        with RuntimeContext(ranks=2, data=data) as torch:
            torch.empty(4, device="ahbm:1").copy_(torch.ones(4))
            torch.drain()
            times.append([(i.template.name, i.starts_ps) for i in torch.op_log.instances])
    assert times[0] == times[1]


def test_what_a_read_returns_is_a_copy() -> None:
    with RuntimeContext(ranks=1) as torch:
        x = torch.ones(3)
        for array in (x.numpy(), x.data):
            array[:] = 9
        assert x.tolist() == [1.0] * 3


@pytest.mark.adr("0002-D5")
def test_a_read_takes_the_time_of_a_copy_and_looking_on_takes_none() -> None:
    with RuntimeContext(ranks=1) as torch:
        x = torch.ones(1000)
        torch.drain()
        before = torch.run.simulation.now_ps
        repr(x)
        torch.testing.assert_close(x, x)
        assert torch.run.simulation.now_ps == before
        x.numpy()
        sip = torch.machine.sip
        taken = sip.host_launch_ps + sip.host_copy_ps(4000)
        assert torch.run.simulation.now_ps == before + taken


def test_an_error_found_by_replay_is_raised_at_every_later_read() -> None:
    def broken() -> None:
        raise ZeroDivisionError("in the data")

    with RuntimeContext(ranks=1) as torch:
        x = torch.ones(3)
        torch.run.replay_queue.push(
            torch.run.simulation.handle("kernel k on SIP 0 (rank 0)"), broken
        )
        for _ in range(2):
            with pytest.raises(ZeroDivisionError) as caught:
                x.numpy()
        assert caught.value.__notes__ == [
            "found when the data of kernel k on SIP 0 (rank 0) was computed"
        ]
