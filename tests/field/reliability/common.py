"""What the programs of this folder share: a bench of many launches, and commands that are watched."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

BENCH = """\
import triton, triton.language as tl
@triton.jit
def inc(x, B: tl.constexpr):
    o = tl.arange(0, B); tl.store(x + o, tl.load(x + o) + 1)
def run(torch, n: int = 20000):
    x = torch.zeros(64)
    for i in range(n):
        inc[(1,)](x, B=64)
"""


def write_bench() -> None:
    """Write ``many.py`` into the current folder."""
    Path("many.py").write_text(BENCH)


def kernbench(*arguments: str, seconds: float = 120, **environment: str) -> tuple[int, str]:
    """Run a command to its end; return its status and what it printed on both streams.

    A command that does not end in time is killed, and its status is 124.
    """
    try:
        done = subprocess.run(
            ["kernbench", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=seconds,
            env=os.environ | environment,
        )
    except subprocess.TimeoutExpired as late:
        return 124, (late.stdout or b"").decode()
    return done.returncode, done.stdout


def kill_when(ready: Callable[[], bool], with_signal: signal.Signals, *arguments: str) -> int:
    """Start a command, send it a signal once it is ready for that, and return its status."""
    process = subprocess.Popen(
        ["kernbench", *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    while process.poll() is None and not ready():
        time.sleep(0.002)
    process.send_signal(with_signal)
    return process.wait()


def claim(what: str, holds: bool, value: object = "") -> None:
    """Print whether something holds that the runner looks for."""
    print(f"{'holds' if holds else 'FAILS'}: {what} {value if not holds else ''}".rstrip())
