"""What a program registers for its end is called in its rank, while there are devices."""

from __future__ import annotations

import atexit
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from tests.torch_bridge.running import simulated  # noqa: E402

ENDS = """
import atexit, functools, os, sys, tempfile, threading, time, weakref
import torch  # It has finalizers itself, which decides when those of others are called.

out = open(sys.argv[1] + os.environ.get("RANK", "0"), "w")
said = []
say = lambda what: print(what, file=out, flush=True)

class Kept:
    pass

kept = Kept()
atexit.register(say, "registered early")
weakref.finalize(kept, say, "finalizer 1")
weakref.finalize(kept, say, "finalizer 2")
weakref.finalize(kept, say, "not at the end").atexit = False
early = Kept()
weakref.finalize(early, say, "as it dies")
del early

@atexit.register
def decorated():
    say("decorated")
    atexit.register(say, "registered meanwhile")

def broken(what):
    raise ValueError(what)

atexit.register(broken, "printed, and no more")
atexit.register(sys.exit, 3)
atexit.register(say, "unregistered")
atexit.register(functools.partial(say, "a partial"))
unregistered = lambda: say("never")
atexit.register(unregistered)
atexit.register(unregistered)
atexit.unregister(unregistered)
atexit.register(weakref.finalize(kept, broken, "of a finalizer").detach)
threading._register_atexit(say, "before threads")
threading._register_atexit(say, "first of all")

def late():
    time.sleep(0.01)
    say("a thread")

threading.Thread(target=late).start()
say("the end of the program")
"""


@pytest.mark.adr("0114-D1")
@pytest.mark.parametrize("end", ["", "sys.exit(0)", "raise ValueError('the program')"])
def test_handlers_are_called_in_the_order_of_real_python(
    tmp_path: Path, end: str, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "program.py"
    path.write_text(ENDS + end)
    real = subprocess.run(
        [sys.executable, str(path), f"{tmp_path}/real"], capture_output=True, text=True, timeout=60
    )
    expected = (tmp_path / "real0").read_text()
    assert "finalizer 2\nfinalizer 1\n" in expected
    before = atexit._ncallbacks()
    try:
        simulated(path, f"{tmp_path}/simulated")
    except (SystemExit, ValueError):
        assert end
    if "raise" in end:
        # A rank that ends by an error ends at once, but for its handlers.
        gone = ("first of all", "before threads", "a thread")
        expected = "".join(
            each for each in expected.splitlines(keepends=True) if each.strip() not in gone
        )
    assert (tmp_path / "simulated0").read_text() == expected
    printed = capfd.readouterr().err
    for each in ("ValueError: printed, and no more", "SystemExit: 3"):
        assert each in real.stderr
        assert each in printed
    assert "kernbench" not in printed
    assert atexit._ncallbacks() == before


DEVICES = """
import atexit, os, sys
import torch
import torch.distributed as dist

rank = int(os.environ["RANK"])
dist.init_process_group("nccl")
torch.cuda.set_device(rank)
x = torch.full((4,), float(rank), device="cuda")

def bye():
    dist.all_reduce(x)
    torch.cuda.synchronize()
    with open(sys.argv[1] + str(rank), "w") as file:
        file.write(f"{x.sum().item()} {os.environ['RANK']} {torch.cuda.current_device()}")
    dist.destroy_process_group()

atexit.register(bye)
"""


@pytest.mark.adr("0114-D1")
def test_handlers_find_their_rank_its_devices_and_the_other_ranks(tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text(DEVICES)
    simulated(path, f"{tmp_path}/found", nprocs=3)
    found = [(tmp_path / f"found{rank}").read_text() for rank in range(3)]
    assert found == [f"{4.0 * sum(range(3))} {rank} {rank}" for rank in range(3)]


@pytest.mark.adr("0114-D2")
def test_ranks_that_others_end_call_no_handlers(tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text(
        """
import atexit, os, pathlib, sys
import torch.distributed as dist

rank = int(os.environ["RANK"])
dist.init_process_group("gloo")
atexit.register(lambda: pathlib.Path(f"{sys.argv[1]}{rank}").touch())
if rank == 2:
    os._exit(3)
if rank == 1:
    raise ValueError("of rank 1")
dist.barrier()
"""
    )
    with pytest.raises(ExceptionGroup, match=r"ranks 1 .* 2 .* failed"):
        simulated(path, f"{tmp_path}/called", nprocs=3)
    assert [each.name for each in tmp_path.glob("called*")] == ["called1"]
