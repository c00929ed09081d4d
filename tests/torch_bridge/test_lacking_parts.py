"""What supposes a GPU or real processes: it works in simulated time, or is refused by name."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from kernbench.errors import DeadlockError  # noqa: E402
from kernbench.torch_bridge.base.refusals import UnsupportedTorchError  # noqa: E402
from tests.torch_bridge.running import simulated  # noqa: E402

START = """
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
x = torch.ones(4, 4, device="cuda")
"""
REFUSED = {
    "torch.cuda.MemPool()": "torch.cuda.MemPool",
    "torch.cuda.utilization()": "torch.cuda.utilization",
    "torch.cuda.memory._record_memory_history()": "torch.cuda.memory._record_memory_history",
    "torch.cuda.memory_snapshot()": "torch.cuda.memory.memory_snapshot",
    "torch.cuda.current_blas_handle()": "no library of CUDA is there; leave it out",
    "torch.cuda.memory.MemPool()": "torch.cuda.memory.MemPool",
    "torch.cuda.host_memory_stats()": "memory of the host is not modeled",
    "torch.cuda.caching_allocator_enable()": "leave it out, or make a tensor",
    "torch.cuda.set_sync_debug_mode('warn')": "torch.profiler show each wait of the host",
    "torch.cuda.sparse.FloatTensor()": "use torch.sparse_coo_tensor",
    "torch.cuda.cudart().cudaHostRegister(0, 1, 1)": "use PyTorch's own functions",
    "torch._C._cuda_nothing()": "guard it: the error is an AttributeError",
    "torch.library.define('kernbench_own::lacks', '(Tensor x) -> Tensor')\n"
    "torch.ops.kernbench_own.lacks(x)": "register one in Python or Triton: Library(...).impl(",
    "torch.cuda.tunable.enable(True)": "which are not tuned; leave it out",
    "torch.export.export(torch.nn.Linear(4, 4).cuda(), (x,))": "torch.export.export",
    "torch.nn.DataParallel(torch.nn.Linear(4, 4).cuda())(x)": "torch.nn.DataParallel needs threads",
    "dist.rpc.init_rpc('worker0', rank=0, world_size=1)": "torch.distributed.rpc.init_rpc",
    "torch.ops.symm_mem.one_shot_all_reduce(x, 'sum', '0')": "symm_mem.one_shot_all_reduce",
    "torch._fused_dropout(x, 0.5)": "torch.ops.aten._fused_dropout: PyTorch has it for GPUs only",
    "x.__dlpack__()": "Tensor.__dlpack__",
    "mp.Manager().Pool()": "multiprocessing.Pool",
}


@pytest.fixture
def run(tmp_path: Path):
    def run(source: str, **options):
        path = tmp_path / "case.py"
        path.write_text(START + source)
        return simulated(path, **options)

    return run


@pytest.mark.adr("0077-D1")
@pytest.mark.parametrize("call", REFUSED)
def test_a_part_that_devices_lack_is_refused_by_the_name_that_was_called(call: str, run) -> None:
    with pytest.raises(UnsupportedTorchError) as caught:
        run(call)
    assert REFUSED[call] in str(caught.value)


@pytest.mark.adr("0077-D1")
def test_asking_whether_a_part_exists_is_answered(run) -> None:
    run("assert not hasattr(torch._C, '_cuda_jiterator_compile_and_launch_kernel')")
    run("assert isinstance(torch.cuda.CUDAGraph | None, __import__('types').UnionType)")


@pytest.mark.adr("0093-D2")
def test_what_only_a_cuda_build_has_is_hidden_while_a_program_runs(monkeypatch, run) -> None:
    def ask_the_driver(*args: object) -> None:
        raise RuntimeError("Found no NVIDIA driver on your system")

    names = ("_cuda_getCurrentBlasHandle", "_cuda_synchronize", "_cuda_getDeviceCount")
    for name in names:
        monkeypatch.setattr(torch._C, name, ask_the_driver, raising=False)
    monkeypatch.setattr(torch.backends.cudnn, "is_available", lambda: True)
    run(
        f"assert not any(hasattr(torch._C, name) for name in {names})\n"
        "torch.cuda.synchronize()\n"
        "layer = torch.nn.LSTM(4, 4).cuda()\n"
        "assert layer(x[None])[0].shape == (1, 4, 4)\n"
        "assert not torch.backends.cudnn.is_available()\n"
    )
    assert all(getattr(torch._C, name) is ask_the_driver for name in names)
    assert torch.backends.cudnn.is_available()


def test_what_a_device_can_answer_is_answered(run) -> None:
    run(
        "torch.cuda.ipc_collect(); torch.cuda.profiler.start(); torch.cuda.profiler.stop()\n"
        "assert torch.cuda.can_device_access_peer(0, 1)\n"
        "assert not torch.cuda.is_current_stream_capturing()\n"
        "assert torch.cuda.get_allocator_backend() == 'native'\n"
        "stream = torch.cuda.Stream()\n"
        "with torch.cuda.stream(stream):\n"
        "    assert torch.cuda.ExternalStream(stream.cuda_stream) == stream\n"
        "    assert torch.cuda.get_stream_from_external(stream.cuda_stream) == stream\n"
        "from torch.cuda.streams import Event, Stream\n"
        "assert Stream is torch.cuda.Stream and Event is torch.cuda.Event\n"
        "torch.cuda.set_sync_debug_mode('default')\n"
        "assert torch.cuda.get_sync_debug_mode() == 0\n"
        "assert torch.from_dlpack(x).device == x.device\n"
        "with torch.device('cuda'): assert torch.tensor([1]).is_cuda\n"
    )


def test_sparse_and_nested_tensors_of_a_device_run(run) -> None:
    run(
        "y = torch.eye(4, device='cuda').to_sparse() @ x\n"
        "assert y.is_cuda and torch.equal(y, x)\n"
        "parts = [torch.ones(each, 3, device='cuda') for each in (2, 4)]\n"
        "z = torch.nested.nested_tensor(parts, layout=torch.jagged) + 1\n"
        "assert z.is_nested and z.unbind()[1].tolist() == [[2] * 3] * 4\n"
    )


def test_generators_of_a_device_give_the_same_numbers_again(run) -> None:
    run(
        "g = torch.Generator(device='cuda')\n"
        "assert g.device == x.device and isinstance(torch.default_generator, torch.Generator)\n"
        "a, b = (torch.randn(9, generator=g.manual_seed(3), device='cuda') for _ in 'ab')\n"
        "assert torch.equal(a, b) and a.is_cuda\n"
        "torch.cuda.seed(); assert torch.cuda.initial_seed() > 0\n"
    )


def test_a_process_keeps_to_its_fraction_of_a_device(run) -> None:
    with pytest.raises(torch.OutOfMemoryError, match="CUDA out of memory"):
        run(
            "torch.cuda.set_per_process_memory_fraction(0.5)\n"
            "assert torch.cuda.get_per_process_memory_fraction() == 0.5\n"
            "half = torch.cuda.mem_get_info()[1] // 2\n"
            "torch.empty(half // 4, dtype=torch.int8, device='cuda')\n"
            "torch.empty(half, dtype=torch.int8, device='cuda')\n",
            data=False,
        )


def test_splitting_a_group_gives_each_rank_the_group_of_its_ranks(run) -> None:
    run(
        "dist.init_process_group('nccl'); torch.cuda.set_device(dist.get_rank())\n"
        "group = dist.split_group(split_ranks=[[2, 0], [1]])\n"
        "y = torch.ones(2, device='cuda') * dist.get_rank()\n"
        "if dist.get_rank() != 3: dist.all_reduce(y, group=group)\n"
        "else: assert group is None\n"
        "assert y.tolist() == {0: [2, 2], 1: [1, 1], 2: [2, 2], 3: [3, 3]}[dist.get_rank()]\n",
        nprocs=4,
    )


SHARED = """
def work(rank, queue, ready, lock, count, meet):
    torch.cuda.set_device(rank)
    with lock:
        count.value += rank + 1
    meet.wait()
    ready.set() if rank == 0 else ready.wait()
    queue.put((rank, torch.full((2,), rank, device="cuda")))
if __name__ == "__main__":
    queue, count = mp.get_context("spawn").SimpleQueue(), mp.Value("i", 0)
    mp.spawn(work, (queue, mp.Event(), mp.Lock(), count, mp.Barrier(2)), 2)
    found = dict(queue.get() for _ in range(2))
    assert count.value == 3 and found[1].tolist() == [1, 1] and str(found[1].device) == "cuda:1"
"""


@pytest.mark.adr("0077-D3")
def test_ranks_share_queues_and_locks_with_what_spawned_them(run) -> None:
    run(SHARED)


MANAGED = """
import sys, threading
def use(manager, number):
    # With one process, with those that it starts, and under real Python.
    queue, done, names = manager.Queue(maxsize=2), manager.dict(zero=0), manager.list([1])
    lock, ended = manager.Lock(), manager.Event()
    value, place = manager.Value("i", 3), manager.Namespace(x=1)
    numbers = manager.Array("d", [1.5, 2])
    def take():
        while (item := queue.get()) is not None:
            with lock:
                done[item] = done.get("zero") + item
                names.append(item)
                value.value += 1
        ended.set()
    thread = threading.Thread(target=take)
    thread.start()
    for item in [*range(number), None]:
        queue.put(item)
    assert ended.wait(60)
    thread.join()
    place.y, numbers[0] = number, 4.5
    return [
        sorted(done.keys(), key=str), [*done.values()], [*names], len(names), value.value,
        place.x + place.y, [*numbers], queue.empty(), done.copy(),
    ]
"""


@pytest.mark.adr("0077-D3")
def test_a_manager_serves_the_threads_of_a_rank_as_a_real_one_does(run, tmp_path: Path) -> None:
    work = (
        "with mp.get_context('spawn').Manager() as manager: found = use(manager, 5)\n"
        "with open(sys.argv[1] if sys.argv[1:] else out, 'w') as file: print(found, file=file)\n"
    )
    path = tmp_path / "real.py"
    path.write_text(
        f"import torch.multiprocessing as mp\n{MANAGED}\nif __name__ == '__main__':\n"
        + "".join(f"    {line}\n" for line in work.splitlines())
    )
    real = [sys.executable, str(path), f"{tmp_path}/real"]
    subprocess.run(real, check=True, timeout=100)
    run(f"{MANAGED}\nout = {str(tmp_path / 'simulated')!r}\n{work}")
    assert (tmp_path / "simulated").read_text() == (tmp_path / "real").read_text()


@pytest.mark.adr("0077-D3")
def test_ranks_share_what_a_manager_of_their_parent_serves(run) -> None:
    run(
        """
def work(rank, manager, table, names, value, place, numbers):
    table[rank] = names, "own"
    names.append(rank)
    numbers[rank] = rank + 1
    if rank == 1:
        value.value, place.who = 7, rank
if __name__ == "__main__":
    manager = mp.Manager()
    shared = manager.dict(), manager.list(), manager.Value("i", 0), manager.Namespace()
    numbers = manager.Array("i", [0, 0])
    mp.spawn(work, (manager, *shared, numbers), 2)
    table, names, value, place = shared
    assert sorted(table) == sorted(names) == [0, 1] and value.value == 7 and place.who == 1
    assert list(numbers) == [1, 2]
"""
    )


@pytest.mark.adr("0077-D3")
def test_waiting_for_what_nobody_puts_in_a_queue_ends_at_once(run) -> None:
    with pytest.raises(DeadlockError):
        run("mp.Queue().get()")


def test_a_loader_is_made_again_from_its_signature_and_attributes(run) -> None:
    # As Lightning does, to give it another sampler.
    run(
        START
        + """
import inspect
loader = torch.utils.data.DataLoader(torch.arange(6), batch_size=3, num_workers=2)
names = inspect.signature(type(loader).__init__).parameters.keys() & vars(loader).keys()
assert "batch_size" not in vars(loader) or "batch_size" in names
given = {name: getattr(loader, name) for name in names - {"batch_sampler"}}
again = torch.utils.data.DataLoader(**{**given, "multiprocessing_context": None})
assert [each.tolist() for each in again] == [[0, 1, 2], [3, 4, 5]]
"""
    )


def test_fsdp1_takes_the_number_of_a_device(run) -> None:
    run(
        """
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank)
for asked in (rank, torch.cuda.current_device(), torch.device("cuda")):
    model = FSDP(torch.nn.Linear(4, 2), device_id=asked)
    assert model.compute_device == torch.device("cuda", rank)
    model(torch.ones(2, 4, device="cuda")).sum().backward()
    assert all(each.grad.device.index == rank for each in model.parameters())
""",
        nprocs=2,
    )


@pytest.mark.parametrize("data", [True, False])
def test_pinned_memory_says_so_wherever_it_is_asked_for(run, data: bool) -> None:
    run(
        START
        + """
host = torch.tensor([1.0, 2.0])
for made in (
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
    assert made.is_pinned() and made.untyped_storage().is_pinned() and made[1:].is_pinned()
    assert made.device.type == "cpu" and made.pin_memory() is made
    assert not (made + 1).is_pinned() and not made.cuda(non_blocking=True).is_pinned()
    torch.cuda.synchronize()
    assert made.tolist() == [1.0, 2.0] or not WITH_DATA
pinned = host.pin_memory()
host += 1  # A copy, as on CUDA.
assert pinned.tolist() == [1.0, 2.0]
strided = torch.arange(6.0).view(2, 3).T.pin_memory()
assert strided.stride() == (1, 3) and strided.is_pinned() and strided[2].tolist() == [2.0, 5.0]
assert not any(each.is_pinned() for each in (host, x, x.cpu(), torch.empty(2)))
weight = torch.ones(2, requires_grad=True)
weight.pin_memory().sum().backward()
assert weight.grad.tolist() == [1.0, 1.0]
for wrong in (
    lambda: x.pin_memory(),
    lambda: torch.empty(2, device="cuda", pin_memory=True),
    lambda: torch.empty_like(x, pin_memory=True),
    lambda: torch.tensor([1.0], device="cuda", pin_memory=True),
):
    try:
        wrong()
    except RuntimeError as error:
        assert "nly dense CPU tensors" in str(error), error
    else:
        raise AssertionError("a device's memory cannot be pinned")
import time
big = torch.ones(1 << 20, device="cuda")
torch.cuda.synchronize()
began = time.perf_counter()
copy = big.to("cpu", non_blocking=True)
launched = time.perf_counter()
torch.cuda.synchronize()
assert 10 * (launched - began) < time.perf_counter() - began
for number in (0, 2):
    loader = torch.utils.data.DataLoader(
        [(torch.ones(2), {"y": 3.0})] * 4, batch_size=2, pin_memory=True, num_workers=number
    )
    assert loader.pin_memory
    for inputs, others in loader:
        assert inputs.is_pinned() and others["y"].is_pinned()
""".replace("WITH_DATA", str(data)),
        data=data,
    )


@pytest.mark.parametrize("data", [True, False])
def test_gradients_that_show_ddps_buckets_are_on_the_device(run, data: bool) -> None:
    run(
        """
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank)
model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.Linear(256, 256)).cuda()
before = torch.cuda.memory_allocated()
model = DDP(model, gradient_as_bucket_view=True)
made = torch.cuda.memory_allocated() - before
assert sum(4 * each.numel() for each in model.parameters()) <= made < 1.1 * before, (made, before)
for step in range(3):
    model(torch.ones(4, 256, device="cuda")).sum().backward()
    for each in model.parameters():
        assert each.grad.device == torch.device("cuda", rank)
        dist.all_reduce(each.grad)
    assert torch.cuda.memory_allocated() < 2.5 * before
x = torch.zeros(2, device="cuda")
assert x.copy_(2, non_blocking=True).is_cuda and x.tolist() in ([2.0, 2.0], [0.0, 0.0])
""",
        nprocs=2,
        data=data,
    )


@pytest.mark.parametrize("data", [True, False])
def test_functions_may_say_where_storages_are_loaded(run, data: bool) -> None:
    run(
        f"""
import io
file = io.BytesIO()
torch.save({{"host": torch.arange(4.0), "device": torch.ones(2).cuda()}}, file)
cases = {{
    "cuda:1 cuda:1": lambda storage, place: storage.cuda(1),
    "cuda:0 cuda:0": lambda storage, place: storage.to(device="cuda"),
    "cpu cuda:0": lambda storage, place: storage if place == "cpu" else None,
}}
for places, move in cases.items():
    file.seek(0)
    found = torch.load(file, map_location=move)
    assert " ".join(str(each.device) for each in found.values()) == places
    if {data}:
        assert found["host"].tolist() == [0, 1, 2, 3] and found["device"].tolist() == [1, 1]
    assert (found["device"] + 1).device == found["device"].device
storage = torch.arange(3, dtype=torch.uint8, device="cuda").untyped_storage()
assert storage.cuda(0) is storage
if {data}:
    assert storage.cpu().tolist() == storage.cuda(1).cpu().tolist() == [0, 1, 2]
""",
        data=data,
    )


def test_tensors_of_several_shapes_compute_as_on_the_host(run) -> None:
    run(
        """
torch.manual_seed(0)
parts = [torch.randn(size, 6) for size in (2, 3)]
layer = torch.nn.Linear(6, 4)
def outputs(place):
    nested = torch.nested.nested_tensor(parts, device=place)
    made = layer.to(place)(nested), torch.softmax(nested, -1), (nested + nested).relu()
    assert all(each.device.type == place for each in made)
    return [torch.nested.to_padded_tensor(each, 0.0) for each in made]
expected = outputs("cpu")
for found, own in zip(outputs("cuda"), expected, strict=True):
    assert found.is_cuda
    torch.testing.assert_close(found.cpu(), own)
"""
    )


def test_masked_tensors_say_where_they_are(run) -> None:
    run("assert torch.masked.masked_tensor(x, x > 0).device == x.device")


def test_streams_and_events_of_any_device_are_the_simulated_ones(run) -> None:
    run(
        """
begin, end = (torch.Event(device, enable_timing=True) for device in ("cuda", None))
stream = torch.Stream(device="cuda:0")
begin.record()
with stream:
    x @ x
    assert torch.accelerator.current_stream() == stream
    end.record()
end.synchronize()
assert end.query() and begin.elapsed_time(end) > 0
for each in (stream, torch.Stream(), torch.cuda.current_stream()):
    assert isinstance(each, torch.Stream) and each.device == x.device
assert isinstance(torch.cuda.Event(), torch.Event) and not isinstance(x, torch.Stream)
"""
    )


def test_each_fast_attention_of_cuda_may_be_asked_for(run) -> None:
    flags = [getattr(torch.backends.cuda, f"{kind}_sdp_enabled")() for kind in ("flash", "cudnn")]
    context = run(
        """
from torch.nn.attention import SDPBackend, sdpa_kernel
q = torch.randn(2, 4, 16, 8, device="cuda")
attend = torch.nn.functional.scaled_dot_product_attention
with sdpa_kernel(SDPBackend.MATH):
    expected = attend(q, q, q, is_causal=True)
    assert not torch.backends.cuda.flash_sdp_enabled()
for kind in ("EFFICIENT", "CUDNN", "FLASH"):
    with sdpa_kernel(getattr(SDPBackend, f"{kind}_ATTENTION")):
        assert torch.backends.cuda.flash_sdp_enabled() == (kind == "FLASH")
        torch.testing.assert_close(attend(q, q, q, is_causal=True), expected)
torch.backends.cuda.enable_cudnn_sdp(False)
"""
    )
    names = [each.template.name for each in context.op_log.instances]
    assert names.count("aten._scaled_dot_product_flash_attention") == 3
    assert flags == [
        getattr(torch.backends.cuda, f"{kind}_sdp_enabled")() for kind in ("flash", "cudnn")
    ]


def test_what_is_asked_of_any_accelerator_is_what_cuda_says(run) -> None:
    run(
        """
memory = torch.accelerator
assert memory.get_memory_info() == memory.get_memory_info(0) == torch.cuda.mem_get_info()
torch.ones(4, 4, device="cuda")
assert memory.memory_stats()["allocation.all.allocated"] == 2
memory.reset_accumulated_memory_stats()
assert memory.memory_stats()["allocation.all.allocated"] < 2
memory.empty_host_cache()
assert x.is_cuda and not x.is_cpu and not x.is_meta and x.cpu().is_cpu
"""
    )
