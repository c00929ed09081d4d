"""Commands in processes of their own, forked off one that has imported what they all import.

Python takes one to three seconds to import what a command needs, which is more than most commands
of tests take. A server for each kind of command imports it once and forks: ``python -m
tests.forked MODULE...`` reads commands from its standard input, one a line. What a test shows of
the first imports of a process, or of signals, needs a new interpreter.
"""

from __future__ import annotations

import atexit
import json
import os
import runpy
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from threading import Timer
from types import ModuleType
from typing import IO, Any

BENCHES = ("kernbench.cli.app", "kernbench.ops", "kernbench.triton_backend", "kernbench.report")
"""What a bench needs."""
PYTORCH = (*BENCHES, "kernbench.torch_bridge.front.programs", "torch._dynamo")
"""What a PyTorch program needs: an optimizer imports what traces for the compiler."""
COMPILER = (*PYTORCH, "torch._inductor.compile_fx")
"""What one needs that compiles, and says nothing of first imports."""
PYTEST = (*BENCHES, "_hypothesis_pytestplugin", "hypothesis", "xdist.plugin")
"""What a session of tests needs."""


def run_forked(
    *command: str,
    imports: tuple[str, ...] = BENCHES,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float = 120,
) -> subprocess.CompletedProcess[str]:
    """Run ``python -m MODULE ARGS`` where ``imports`` are imported, and return what it printed."""
    with tempfile.TemporaryDirectory() as folder:
        files = [str(Path(folder) / name) for name in ("out", "err")]
        asked = [command, str(cwd or Path.cwd()), dict(os.environ if env is None else env), *files]
        server = _server(imports)
        assert server.stdin is not None
        assert server.stdout is not None
        late = Timer(timeout, server.kill)
        late.start()
        server.stdin.write(json.dumps(asked) + "\n")
        server.stdin.flush()
        answer = server.stdout.readline()
        late.cancel()
        out, err = (Path(file).read_text() for file in files)
    if not answer:
        _server.cache_clear()
        raise subprocess.TimeoutExpired(command, timeout, out, err)
    return subprocess.CompletedProcess(command, json.loads(answer), out, err)


@cache
def _server(imports: tuple[str, ...]) -> subprocess.Popen[str]:
    server = subprocess.Popen(
        [sys.executable, "-m", "tests.forked", *imports],
        cwd=Path(__file__).parents[1],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    atexit.register(server.communicate)
    return server


def serve(requests: IO[str], answers: IO[str]) -> None:
    """Run each command, in order, and answer by its exit status."""
    for line in requests:
        child = os.fork()
        if child == 0:
            _work(*json.loads(line))
        _, status = os.waitpid(child, 0)
        answers.write(f"{os.waitstatus_to_exitcode(status)}\n")
        answers.flush()


def _work(command: list[str], cwd: str, env: dict[str, str], *files: str) -> None:
    """Be the process of a command; does not return."""
    status: Any = 1
    try:
        for number, file in enumerate(files, start=1):
            os.dup2(os.open(file, os.O_CREAT | os.O_WRONLY), number)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.environ.clear()
        os.environ.update(env)
        os.chdir(cwd)
        sys.path[0] = cwd
        sys.argv = command
        runpy.run_module(command[0], run_name="__main__", alter_sys=True)
        status = 0
    except SystemExit as end:
        status = end.code or 0
    except BaseException:
        traceback.print_exc()
    finally:
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            if not stream.closed:
                stream.flush()
        os._exit(status)


def _search_modules() -> None:
    """Search modules for registries once: half of what starting a PyTorch program takes."""
    from kernbench.torch_bridge.assigned import registries

    for module in list(sys.modules.values()):
        if isinstance(module, ModuleType) and not registries.is_machinery(module.__name__):
            registries.registries_of(module)


if __name__ == "__main__":
    for item in sys.argv[1:]:
        import_module(item)
    if set(PYTORCH) <= set(sys.argv):
        _search_modules()
    serve(sys.stdin, os.fdopen(os.dup(1), "w"))
