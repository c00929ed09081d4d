"""What libraries keep for a process is each rank's own, although ranks share their modules."""

from __future__ import annotations

import importlib
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from tests.torch_bridge.running import simulated  # noqa: E402

ACCELERATE = """
import os
import torch.distributed as dist

class PartialState:
    _shared_state = {}

    def __init__(self):
        self.__dict__ = self._shared_state
        if not self._shared_state:
            self.rank = int(os.environ["RANK"])

class AcceleratorState:
    _shared_state = {}

class GradientState:
    _shared_state = {}
"""
LOCKING = """
import threading
import time

locks = threading.Lock(), threading.RLock()
seen = []
event = threading.Event()
event.set()
thread = threading.Thread(target=lambda: seen.append("thread"))
thread.start()
thread.join()
cancelled = threading.Timer(5, lambda: seen.append("never"))
cancelled.start()
cancelled.cancel()
threading.Timer(0.5, lambda: seen.append("timer")).start()

def forever():
    while True:
        time.sleep(1)

threading.Thread(target=forever, daemon=True).start()
"""


@pytest.fixture
def libraries(tmp_path: Path) -> Path:
    folder = tmp_path / "site-packages"
    for name, source in (
        ("accelerate/__init__.py", ""),
        ("accelerate/state.py", ACCELERATE),
        ("a_locking_library/__init__.py", LOCKING),
        # All ranks share what has extension modules.
        (f"a_locking_library/_native{EXTENSION_SUFFIXES[0]}", ""),
    ):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
    return folder


@pytest.mark.adr("0095-D1")
@pytest.mark.parametrize("is_imported", [False, True])
def test_classes_that_remember_their_process_remember_each_rank(
    tmp_path: Path, libraries: Path, is_imported: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [str(libraries), *sys.path])
    path = tmp_path / "program.py"
    path.write_text("""
import torch.distributed as dist
from accelerate.state import PartialState

dist.init_process_group("nccl")
rank = dist.get_rank()
first = PartialState()
dist.barrier()
assert first.rank == PartialState().rank == rank
""")
    if is_imported:
        # Installed or not, and without types.
        state = importlib.import_module("accelerate.state")

        state.PartialState._shared_state["rank"] = "of who runs kernbench"
    try:
        simulated(path, nprocs=3)
        state = sys.modules["accelerate.state"].PartialState._shared_state
        assert state == ({"rank": "of who runs kernbench"} if is_imported else {})
    finally:
        for name in [each for each in sys.modules if each.startswith("accel")]:
            del sys.modules[name]


@pytest.mark.adr("0095-D3")
def test_a_rank_may_wait_for_others_while_it_holds_a_librarys_lock(
    tmp_path: Path, libraries: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [str(libraries), *sys.path])
    path = tmp_path / "program.py"
    path.write_text("""
import threading
import torch.distributed as dist
import a_locking_library

dist.init_process_group("nccl")
for lock in a_locking_library.locks:
    with lock:
        dist.barrier()
        seen = []
        others = threading.Thread(target=lambda: seen.append(lock.acquire(timeout=1)))
        others.start()
        others.join()
        assert seen == [False]
    assert lock.acquire(blocking=False)
    lock.release()
condition = threading.Condition(a_locking_library.locks[1])
with condition:
    assert not condition.wait(timeout=1)
own = threading.Lock()
assert isinstance(own, threading.Lock)
""")
    simulated(path, nprocs=2)


@pytest.mark.parametrize("nprocs", [1, 2])
def test_a_shared_library_may_start_threads_and_timers_as_it_is_imported(
    tmp_path: Path, libraries: Path, monkeypatch: pytest.MonkeyPatch, nprocs: int
) -> None:
    monkeypatch.setattr(sys, "path", [str(libraries), *sys.path])
    path = tmp_path / "program.py"
    path.write_text("""
import time
import a_locking_library as library

assert library.event.wait(timeout=1)
assert library.seen == ["thread"]
time.sleep(2)
assert library.seen == ["thread", "timer"]
""")
    sys.modules.pop("a_locking_library", None)
    context = simulated(path, nprocs=nprocs)
    assert context.run.simulation.now_ps >= 2 * 10**12


@pytest.mark.adr("0095-D1")
def test_hooks_of_all_modules_are_hooks_of_one_ranks_modules(tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text("""
import torch
import torch.distributed as dist
from torch.nn.modules.module import register_module_forward_hook

dist.init_process_group("nccl")
rank, seen = dist.get_rank(), []
model = torch.nn.Linear(2, 2)
if rank == 0:
    hook = register_module_forward_hook(lambda module, given, made: seen.append(module))
dist.barrier()
model(torch.ones(2))
dist.barrier()
if rank == 0:
    hook.remove()
model(torch.ones(2))
assert seen == ([model] if rank == 0 else [])
""")
    simulated(path, nprocs=2)
    assert not torch.nn.modules.module._global_forward_hooks


@pytest.mark.adr("0095-D1")
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_fsdp1_saves_and_loads_sharded_states_of_several_ranks(tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text("""
import sys
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, StateDictType

dist.init_process_group("nccl")
torch.cuda.set_device(dist.get_rank())
torch.manual_seed(0)
model = FSDP(torch.nn.Linear(8, 6).cuda(), use_orig_params=True)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)

def state():
    with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):
        return {"model": model.state_dict(), "optim": FSDP.optim_state_dict(model, optimizer)}

def step():
    model(torch.ones(2, 8, device="cuda")).square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    return [each.detach().clone() for each in model.parameters()]

before = step()
saved = state()
for each in saved["model"].values():
    assert each.device == torch.device("cuda", dist.get_rank()) and not each.is_meta
dcp.save(saved, checkpoint_id=sys.argv[1])
after = step()
assert any(not torch.equal(a, b) for a, b in zip(before, after))
found = state()
dcp.load(found, checkpoint_id=sys.argv[1])
with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):
    model.load_state_dict(found["model"])
    optimizer.load_state_dict(FSDP.optim_state_dict_to_load(model, optimizer, found["optim"]))
assert all(torch.equal(a, b) for a, b in zip(before, model.parameters()))
assert all(torch.equal(a, b) for a, b in zip(after, step()))
""")
    simulated(path, tmp_path / "checkpoint", nprocs=2)


LOGGING = """
import logging, os, sys
import torch.distributed as dist
rank = int(os.environ.get("RANK", sys.argv[2]))
def meet():
    if "RANK" in os.environ:
        dist.barrier()
if "RANK" in os.environ:
    dist.init_process_group("gloo")
place = f"{sys.argv[1]}/{'simulated' if 'RANK' in os.environ else 'real'} {rank}"
said = open(place, "w")
logging.basicConfig(
    stream=said, force=True, level=logging.INFO if rank == 0 else logging.ERROR,
    format=f"{rank} %(levelname)s %(name)s %(message)s",
)
log, other = logging.getLogger("of.the.program"), logging.getLogger("another")
for level in range(3):
    log.info("first %d", level)
    log.error("second %d", level)
    meet()
other.propagate = rank == 1
other.addFilter(lambda record: rank < 2)
log.setLevel(logging.ERROR if rank == 0 else logging.DEBUG)
meet()
for each in (log, other):
    each.debug("third"); each.info("fourth"); each.error("fifth %s", each.isEnabledFor(20))
meet()
if rank == 2:
    logging.disable(logging.ERROR)
meet()
log.error("sixth")
log.disabled = rank == 1
meet()
log.critical("seventh")
meet()
logging.getLogger().handlers.clear()
said.close()
"""


@pytest.mark.adr("0095-D4")
def test_loggers_are_each_ranks_own_as_in_real_processes(tmp_path: Path) -> None:
    import logging
    import subprocess

    path = tmp_path / "program.py"
    path.write_text(LOGGING)
    for rank in range(3):
        command = [sys.executable, str(path), str(tmp_path), str(rank)]
        subprocess.run(command, check=True, stderr=subprocess.DEVNULL, timeout=60)
    names = ("level", "propagate", "disabled", "handlers", "filters")
    loggers = [logging.getLogger(name) for name in (None, "of.the.program", "another")]
    before = [[str(getattr(each, name)) for name in names] for each in loggers]
    simulated(path, tmp_path, "", nprocs=3)
    for rank in range(3):
        expected = (tmp_path / f"real {rank}").read_text()
        assert expected
        assert (tmp_path / f"simulated {rank}").read_text() == expected
    assert [[str(getattr(each, name)) for name in names] for each in loggers] == before
    assert logging.root.manager.disable == 0
