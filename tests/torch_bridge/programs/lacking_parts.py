"""What supposes a GPU or real processes: it works, or is refused by name.

python lacking_parts.py CASE [ARGUMENTS]
"""

import inspect
import io
import sys
import time
import types

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.cuda.streams import Event, Stream
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.parallel import DistributedDataParallel as DDP

from kernbench.torch_bridge.base.refusals import UnsupportedTorchError

x = torch.ones(4, 4, device="cuda")


def _line_of_several() -> int:
    return sys._getframe(1).f_lineno - 1


REFUSED = [
    (lambda: torch.cuda.MemPool(), "torch.cuda.MemPool"),
    (lambda: torch.cuda.utilization(), "torch.cuda.utilization"),
    (lambda: torch.cuda.current_blas_handle(), "CUDA's libraries are not available; leave it out"),
    (lambda: torch.cuda.memory.MemPool(), "torch.cuda.memory.MemPool"),
    (lambda: torch.cuda.host_memory_stats(), "host memory is not modeled"),
    (lambda: torch.cuda.caching_allocator_enable(), "leave it out, or make a tensor"),
    (
        lambda: torch.cuda.set_sync_debug_mode("warn"),
        "torch.profiler show each wait of the host",
    ),
    (lambda: torch.cuda.sparse.FloatTensor(), "use torch.sparse_coo_tensor"),
    (lambda: torch.cuda.cudart().cudaHostRegister(0, 1, 1), "use PyTorch's own functions"),
    (lambda: torch._C._cuda_nothing(), "guard it: the error is an AttributeError"),
    (lambda: torch.cuda.tunable.enable(True), "which are not tuned; leave it out"),
    (
        lambda: torch.export.draft_export(torch.nn.Linear(4, 4).cuda(), (x,)),
        "torch.export.draft_export",
    ),
    (
        lambda: torch.nn.DataParallel(torch.nn.Linear(4, 4).cuda(), [0, 1]),
        f"torch.nn.DataParallel on 2 devices, at lacking_parts.py:{_line_of_several()}: ",
    ),
    (
        lambda: torch.nn.parallel.data_parallel(torch.nn.Linear(4, 4).cuda(), x, [0, 1]),
        "torch.nn.DataParallel needs CUDA's threads",
    ),
    (
        lambda: dist.rpc.init_rpc("worker0", rank=0, world_size=1),
        "torch.distributed.rpc.init_rpc",
    ),
    (
        lambda: torch.ops.symm_mem.nvshmem_broadcast(x, 0, "0"),
        "symm_mem.nvshmem_broadcast",
    ),
    (lambda: x.__dlpack__(), "Tensor.__dlpack__"),
]


def a_part_that_devices_lack_is_refused_by_the_name_that_was_called() -> None:
    for call, said in REFUSED:
        with pytest.raises(UnsupportedTorchError) as raised:
            call()
        assert said in str(raised.value)


def an_operator_without_a_kernel_is_refused() -> None:
    torch.library.define("kernbench_own::lacks", "(Tensor x) -> Tensor")
    torch.ops.kernbench_own.lacks(x)


def an_operation_of_gpus_only_is_refused() -> None:
    torch._fused_dropout(x, 0.5)


def asking_whether_a_part_exists_is_answered() -> None:
    assert not hasattr(torch._C, "_cuda_jiterator_compile_and_launch_kernel")
    assert isinstance(torch.cuda.CUDAGraph | None, types.UnionType)


def waiting_for_what_nobody_puts_in_a_queue_ends_at_once() -> None:
    mp.Queue().get()


def masked_tensors_say_where_they_are() -> None:
    assert torch.masked.masked_tensor(x, x > 0).device == x.device


def what_only_a_cuda_build_has_is_hidden_while_a_program_runs(*names: str) -> None:
    assert not any(hasattr(torch._C, name) for name in names)
    torch.cuda.synchronize()
    layer = torch.nn.LSTM(4, 4).cuda()
    assert layer(x[None])[0].shape == (1, 4, 4)
    assert not torch.backends.cudnn.is_acceptable(x)


def what_a_device_can_answer_is_answered() -> None:
    own = torch.nn.Linear(4, 4).cuda()
    assert torch.equal(torch.nn.DataParallel(own, [0])(x.cpu()), own(x))
    torch.cuda.ipc_collect()
    torch.cuda.profiler.start()
    torch.cuda.profiler.stop()
    assert torch.cuda.can_device_access_peer(0, 1)
    assert torch.backends.cudnn.is_available()
    assert torch.backends.cudnn.version() > 90000
    major, minor = torch.cuda.get_device_capability()
    assert f"sm_{major}{minor}" in torch.cuda.get_arch_list()
    assert f"compute_{major}{minor}" in torch.cuda.get_gencode_flags()
    properties = torch.cuda.get_device_properties(0)
    assert properties.L2_cache_size >= 0
    assert len(str(properties.uuid)) == 36
    assert properties.uuid != torch.cuda.get_device_properties(1).uuid
    assert not torch.cuda.is_current_stream_capturing()
    assert torch.cuda.get_allocator_backend() == "native"
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        assert torch.cuda.ExternalStream(stream.cuda_stream) == stream
        assert torch.cuda.get_stream_from_external(stream.cuda_stream) == stream
    # Of another library, which has only its handle.
    assert torch.cuda.ExternalStream(stream.cuda_stream) == stream
    assert Stream is torch.cuda.Stream
    assert Event is torch.cuda.Event
    torch.cuda.set_sync_debug_mode("default")
    assert torch.cuda.get_sync_debug_mode() == 0
    assert torch.from_dlpack(x).device == x.device
    with torch.device("cuda"):
        assert torch.tensor([1]).is_cuda


def sparse_and_nested_tensors_of_a_device_run() -> None:
    y = torch.eye(4, device="cuda").to_sparse() @ x
    assert y.is_cuda
    assert torch.equal(y, x)
    parts = [torch.ones(number, 3, device="cuda") for number in (2, 4)]
    z = torch.nested.nested_tensor(parts, layout=torch.jagged) + 1
    assert z.is_nested
    assert z.unbind()[1].tolist() == [[2] * 3] * 4


def generators_of_a_device_give_the_same_numbers_again() -> None:
    g = torch.Generator(device="cuda")
    assert g.device == x.device
    assert isinstance(torch.default_generator, torch.Generator)
    a, b = (torch.randn(9, generator=g.manual_seed(3), device="cuda") for _ in "ab")
    assert torch.equal(a, b)
    assert a.is_cuda
    torch.cuda.seed()
    assert torch.cuda.initial_seed() > 0


def a_process_keeps_to_its_fraction_of_a_device() -> None:
    torch.cuda.set_per_process_memory_fraction(0.5)
    assert torch.cuda.get_per_process_memory_fraction() == 0.5
    half = torch.cuda.mem_get_info()[1] // 2
    torch.empty(half // 4, dtype=torch.int8, device="cuda")
    torch.empty(half, dtype=torch.int8, device="cuda")


def splitting_a_group_gives_each_rank_the_group_of_its_ranks() -> None:
    dist.init_process_group("nccl")
    torch.cuda.set_device(dist.get_rank())
    group = dist.split_group(split_ranks=[[2, 0], [1]])
    y = torch.ones(2, device="cuda") * dist.get_rank()
    if dist.get_rank() != 3:
        dist.all_reduce(y, group=group)
    else:
        assert group is None
    assert y.tolist() == {0: [2, 2], 1: [1, 1], 2: [2, 2], 3: [3, 3]}[dist.get_rank()]


def share(rank, queue, ready, lock, count, meet):
    torch.cuda.set_device(rank)
    with lock:
        count.value += rank + 1
    meet.wait()
    ready.set() if rank == 0 else ready.wait()
    queue.put((rank, torch.full((2,), rank, device="cuda")))


def ranks_share_queues_and_locks_with_what_spawned_them() -> None:
    queue, count = mp.get_context("spawn").SimpleQueue(), mp.Value("i", 0)
    mp.spawn(share, (queue, mp.Event(), mp.Lock(), count, mp.Barrier(2)), 2)
    queues = dict(queue.get() for _ in range(2))
    assert count.value == 3
    assert queues[1].tolist() == [1, 1]
    assert str(queues[1].device) == "cuda:1"


def use_manager(rank, manager, table, names, value, place, numbers):
    table[rank] = names, "own"
    names.append(rank)
    numbers[rank] = rank + 1
    if rank == 1:
        value.value, place.who = 7, rank


def ranks_share_what_a_manager_of_their_parent_serves() -> None:
    manager = mp.Manager()
    shared = manager.dict(), manager.list(), manager.Value("i", 0), manager.Namespace()
    numbers = manager.Array("i", [0, 0])
    mp.spawn(use_manager, (manager, *shared, numbers), 2)
    table, names, value, place = shared
    assert sorted(table) == sorted(names) == [0, 1]
    assert value.value == 7
    assert place.who == 1
    assert list(numbers) == [1, 2]


def a_loader_is_made_again_from_its_signature_and_attributes() -> None:
    """As Lightning does, to give it another sampler."""
    loader = torch.utils.data.DataLoader(torch.arange(6), batch_size=3, num_workers=2)
    names = inspect.signature(type(loader).__init__).parameters.keys() & vars(loader).keys()
    assert "batch_size" not in vars(loader) or "batch_size" in names
    value = {name: getattr(loader, name) for name in names - {"batch_sampler"}}
    again = torch.utils.data.DataLoader(**{**value, "multiprocessing_context": None})
    assert [item.tolist() for item in again] == [[0, 1, 2], [3, 4, 5]]


def fsdp1_takes_the_number_of_a_device() -> None:
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

    dist.init_process_group("nccl")
    rank = dist.get_rank()
    torch.cuda.set_device(rank)
    for asked in (rank, torch.cuda.current_device(), torch.device("cuda")):
        model = FSDP(torch.nn.Linear(4, 2), device_id=asked)
        assert model.compute_device == torch.device("cuda", rank)
        model(torch.ones(2, 4, device="cuda")).sum().backward()
        assert all(parameter.grad.device.index == rank for parameter in model.parameters())


def pinned_memory_says_so_wherever_it_is_asked_for(data: str) -> None:
    host = torch.tensor([1.0, 2.0])
    for result in (
        torch.tensor([1.0, 2.0], pin_memory=True),
        torch.ones(2).new_tensor([1.0, 2.0], pin_memory=True),
        torch.empty(2, pin_memory=True).copy_(torch.arange(1.0, 3.0)),
        torch.empty_like(host, pin_memory=True).copy_(host),
        torch.arange(1.0, 3.0, pin_memory=True),
        torch.cuda.FloatTensor([1.0, 2.0]).cpu().pin_memory(),
        host.pin_memory(),
        host.pin_memory().untyped_storage().pin_memory().__class__ and host.pin_memory()[0:],
        host.cuda().to("cpu", non_blocking=True),
    ):
        assert result.is_pinned()
        assert result.untyped_storage().is_pinned()
        assert result[1:].is_pinned()
        assert result.device.type == "cpu"
        assert result.pin_memory() is result
        assert not (result + 1).is_pinned()
        assert not result.cuda(non_blocking=True).is_pinned()
        torch.cuda.synchronize()
        assert result.tolist() == [1.0, 2.0] or data != "data"
    pinned = host.pin_memory()
    host += 1  # A copy, as on CUDA.
    assert pinned.tolist() == [1.0, 2.0]
    # C++ pins what it reads the data into, and then moves it.
    moved = torch.tensor([1.0], device="cuda", pin_memory=True)
    assert moved.device.type == "cuda"
    assert not moved.is_pinned()
    strided = torch.arange(6.0).view(2, 3).T.pin_memory()
    assert strided.stride() == (1, 3)
    assert strided.is_pinned()
    assert strided[2].tolist() == [2.0, 5.0]
    assert not any(item.is_pinned() for item in (host, x, x.cpu(), torch.empty(2)))
    weight = torch.ones(2, requires_grad=True)
    weight.pin_memory().sum().backward()
    assert weight.grad.tolist() == [1.0, 1.0]
    for wrong in (
        lambda: x.pin_memory(),
        lambda: torch.empty(2, device="cuda", pin_memory=True),
        lambda: torch.empty_like(x, pin_memory=True),
    ):
        with pytest.raises(RuntimeError) as raised:
            wrong()
        assert "nly dense CPU tensors" in str(raised.value)
    big = torch.ones(1 << 20, device="cuda")
    torch.cuda.synchronize()
    began = time.perf_counter()
    big.to("cpu", non_blocking=True)
    launched = time.perf_counter()
    torch.cuda.synchronize()
    assert 10 * (launched - began) < time.perf_counter() - began
    # Into memory that is there, too, but if that is pageable CUDA comes back after the copy.
    for is_pinned in (True, False):
        tensor = torch.empty(1 << 20, pin_memory=is_pinned)
        began = time.perf_counter()
        tensor.copy_(big, non_blocking=True)
        launched = time.perf_counter()
        torch.cuda.synchronize()
        assert (10 * (launched - began) < time.perf_counter() - began) is is_pinned
    for number in (0, 2):
        loader = torch.utils.data.DataLoader(
            [(torch.ones(2), {"y": 3.0})] * 4, batch_size=2, pin_memory=True, num_workers=number
        )
        assert loader.pin_memory
        for inputs, others in loader:
            assert inputs.is_pinned()
            assert others["y"].is_pinned()


def gradients_that_show_ddps_buckets_are_on_the_device() -> None:
    dist.init_process_group("nccl")
    rank = dist.get_rank()
    torch.cuda.set_device(rank)
    model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.Linear(256, 256)).cuda()
    before = torch.cuda.memory_allocated()
    model = DDP(model, gradient_as_bucket_view=True)
    tensor = torch.cuda.memory_allocated() - before
    assert (
        sum(4 * parameter.numel() for parameter in model.parameters()) <= tensor < 1.1 * before
    ), (
        tensor,
        before,
    )
    for _ in range(3):
        model(torch.ones(4, 256, device="cuda")).sum().backward()
        for parameter in model.parameters():
            assert parameter.grad.device == torch.device("cuda", rank)
            dist.all_reduce(parameter.grad)
        assert torch.cuda.memory_allocated() < 2.5 * before
    x = torch.zeros(2, device="cuda")
    assert x.copy_(2, non_blocking=True).is_cuda
    assert x.tolist() in ([2.0, 2.0], [0.0, 0.0])


def functions_may_say_where_storages_are_loaded(data: str) -> None:
    file = io.BytesIO()
    torch.save({"host": torch.arange(4.0), "device": torch.ones(2).cuda()}, file)
    cases = {
        "cuda:1 cuda:1": lambda storage, place: storage.cuda(1),
        "cuda:0 cuda:0": lambda storage, place: storage.to(device="cuda"),
        "cpu cuda:0": lambda storage, place: storage if place == "cpu" else None,
    }
    for places, move in cases.items():
        file.seek(0)
        tensor = torch.load(file, map_location=move)
        assert " ".join(str(item.device) for item in tensor.values()) == places
        if data == "data":
            assert tensor["host"].tolist() == [0, 1, 2, 3]
            assert tensor["device"].tolist() == [1, 1]
        assert (tensor["device"] + 1).device == tensor["device"].device
    storage = torch.arange(3, dtype=torch.uint8, device="cuda").untyped_storage()
    assert storage.cuda(0) is storage
    if data == "data":
        assert storage.cpu().tolist() == storage.cuda(1).cpu().tolist() == [0, 1, 2]


def tensors_of_several_shapes_compute_as_on_the_host() -> None:
    torch.manual_seed(0)
    parts = [torch.randn(size, 6) for size in (2, 3)]
    layer = torch.nn.Linear(6, 4)

    def outputs(place):
        nested = torch.nested.nested_tensor(parts, device=place)
        result = layer.to(place)(nested), torch.softmax(nested, -1), (nested + nested).relu()
        assert all(item.device.type == place for item in result)
        return [torch.nested.to_padded_tensor(item, 0.0) for item in result]

    expected = outputs("cpu")
    for output, own in zip(outputs("cuda"), expected, strict=True):
        assert output.is_cuda
        torch.testing.assert_close(output.cpu(), own)


def streams_and_events_of_any_device_are_the_simulated_ones() -> None:
    begin, end = (torch.Event(device, enable_timing=True) for device in ("cuda", None))
    stream = torch.Stream(device="cuda:0")
    stream.wait_stream(torch.accelerator.current_stream())
    begin.record()
    with stream:
        x @ x
        assert torch.accelerator.current_stream() == stream
        end.record()
    end.synchronize()
    assert end.query()
    assert begin.elapsed_time(end) > 0
    for item in (stream, torch.Stream(), torch.cuda.current_stream()):
        assert isinstance(item, torch.Stream)
        assert item.device == x.device
    assert isinstance(torch.cuda.Event(), torch.Event)
    assert not isinstance(x, torch.Stream)


def each_fast_attention_of_cuda_may_be_asked_for() -> None:
    q = torch.randn(2, 4, 16, 8, device="cuda")
    half = q.half()
    attend = torch.nn.functional.scaled_dot_product_attention
    with sdpa_kernel(SDPBackend.MATH):
        expected = attend(q, q, q, is_causal=True)
        assert not torch.backends.cuda.flash_sdp_enabled()
    for kind in ("EFFICIENT", "CUDNN", "FLASH"):
        with sdpa_kernel(getattr(SDPBackend, f"{kind}_ATTENTION")):
            assert torch.backends.cuda.flash_sdp_enabled() == (kind == "FLASH")
            result = attend(half, half, half, is_causal=True)
            torch.testing.assert_close(result.float(), expected, atol=2e-3, rtol=2e-3)
            if kind == "EFFICIENT":
                torch.testing.assert_close(attend(q, q, q, is_causal=True), expected)
    torch.backends.cuda.enable_cudnn_sdp(False)
    torch.backends.cuda.enable_math_sdp(False)


def what_is_asked_of_any_accelerator_is_what_cuda_says() -> None:
    memory = torch.accelerator
    assert memory.get_memory_info() == memory.get_memory_info(0) == torch.cuda.mem_get_info()
    torch.ones(4, 4, device="cuda")
    assert memory.memory_stats()["allocation.all.allocated"] == 2
    memory.reset_accumulated_memory_stats()
    assert memory.memory_stats()["allocation.all.allocated"] < 2
    memory.empty_host_cache()
    assert x.is_cuda
    assert not x.is_cpu
    assert not x.is_meta
    assert x.cpu().is_cpu


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
