"""Runs PyTorch programs in real processes with gloo, for results to compare with.

A server imports PyTorch once, which takes longer than the programs, and forks the processes of each
run: ``python -m tests.torch_bridge.forked`` reads runs from its standard input, one a line.
"""

from __future__ import annotations

import json
import os
import runpy
import socket
import sys
import tempfile
import traceback
from pathlib import Path
from typing import IO, Any


def serve(requests: IO[str], answers: IO[str]) -> None:
    """Answer each run, in order, by an empty line, or by what a process wrote when it failed."""
    import torch._dynamo  # Optimizers do: each process would.
    import torch.distributed.checkpoint
    import torch.distributed.fsdp
    import torch.distributed.tensor.parallel
    import torch.nn.parallel
    import torch.optim

    assert torch.distributed.is_gloo_available()
    for line in requests:
        program, args, nprocs = json.loads(line)
        answers.write(json.dumps(_run(program, args, nprocs)) + "\n")
        answers.flush()


def _run(program: str, args: list[str], nprocs: int) -> str:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = str(free.getsockname()[1])
    with tempfile.TemporaryDirectory() as folder:
        said = [Path(folder) / f"rank{rank}" for rank in range(nprocs)]
        children = []
        for rank in range(nprocs):
            child = os.fork()
            if child == 0:
                _work(program, args, rank, nprocs, port, said[rank])
            children.append(child)
        # The one that fails first may leave the others waiting for ever.
        failed = False
        while children:
            child, status = os.wait()
            children.remove(child)
            if status and not failed:
                failed = True
                for item in children:
                    os.kill(item, 9)
        texts = [path.read_text() for path in said] if failed else []
    return "\n".join(text[-4000:] for text in texts if "Traceback" in text) or (
        "a process was killed" if failed else ""
    )


def _work(program: str, args: list[str], rank: int, nprocs: int, port: str, said: Path) -> None:
    """Be one process of a run; does not return."""
    status = 1
    try:
        output = os.open(said, os.O_CREAT | os.O_WRONLY)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.environ.update(
            RANK=str(rank),
            LOCAL_RANK=str(rank),
            WORLD_SIZE=str(nprocs),
            LOCAL_WORLD_SIZE=str(nprocs),
            MASTER_ADDR="localhost",
            MASTER_PORT=port,
        )
        sys.argv = [program, *args]
        _spawn_by_fork()
        runpy.run_path(program, run_name="__main__")
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _spawn_by_fork() -> None:
    """Let ``mp.spawn`` fork as well: its new interpreters would import PyTorch again."""
    import torch.multiprocessing as mp

    def spawn(fn: Any, args: Any = (), nprocs: int = 1, join: bool = True) -> Any:
        return mp.start_processes(fn, args, nprocs, join, start_method="fork")

    mp.spawn = spawn


if __name__ == "__main__":
    answers = os.fdopen(os.dup(1), "w")
    serve(sys.stdin, answers)
