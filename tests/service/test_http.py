"""The service over HTTP, asked as a client on the network asks it."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("mcp")
pytest.importorskip("torch")

TASK = """
import torch

def reference(x):
    return torch.softmax(x, -1)

def inputs(size, seed):
    torch.manual_seed(seed)
    return (torch.randn(size["rows"], size["columns"], device="cuda"),)

sizes = [{"rows": 64, "columns": 256}]
"""
RIGHT = """
import torch
import triton
import triton.language as tl

@triton.jit
def kernel(x, y, n, B: tl.constexpr):
    at = tl.arange(0, B)
    row = tl.program_id(0)
    v = tl.load(x + row * n + at, mask=at < n, other=float("-inf"))
    v = tl.exp(v - tl.max(v, 0))
    tl.store(y + row * n + at, v / tl.sum(v, 0), mask=at < n)

def solve(x):
    x = x.contiguous()
    y = torch.empty_like(x)
    rows, n = x.shape
    kernel[(rows,)](x, y, n, B=triton.next_power_of_2(n))
    return y
"""
WRONG = RIGHT.replace("v / tl.sum(v, 0)", "v / n")


@contextlib.contextmanager
def service(*options: str) -> Iterator[str]:
    line = [sys.executable, "-m", "kernbench", "judge", "--serve", "--port", "0", *options]
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        assert re.fullmatch(r"http://127.0.0.1:[0-9]+", address), address
        try:
            yield address
        finally:
            process.terminate()
            assert process.wait(60) in (0, -15, 143, 130)


def ask(address: str, path: str, body: Any = None, expect: int = 200) -> Any:
    data = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(address + path, data)
    try:
        with urllib.request.urlopen(request, timeout=300) as response:
            status, text = response.status, response.read()
    except urllib.error.HTTPError as error:
        status, text = error.code, error.read()
    assert status == expect, text
    return json.loads(text)


def test_an_episode_a_job_mistakes_and_a_port_in_use() -> None:
    with service() as address:
        assert ask(address, "/health") == {"status": "healthy"}
        begun = ask(address, "/reset", {"task": TASK})
        assert (begun["reward"], begun["done"]) == (None, False)
        episode = begun["observation"]["episode_id"]
        for source, outcomes, low in (
            (WRONG, {"wrong"}, 0.0),
            (RIGHT, {"right", "right and fast enough"}, 0.5),
        ):
            step = ask(address, "/step", {"episode_id": episode, "action": {"candidate": source}})
            assert step["observation"]["verdict"]["outcome"] in outcomes
            assert step["reward"] >= low
            assert step["reward"] == 0 or low
        state = ask(address, f"/state?episode_id={episode}")
        assert state["step_count"] == 2
        assert state["outcomes"][0] == "wrong"
        job = ask(
            address, "/jobs", {"tool": "judge", "arguments": {"candidate": RIGHT, "task": TASK}}
        )
        until = time.monotonic() + 240
        while (answer := ask(address, f"/jobs?job={job['job']}"))["status"] in (
            "waiting",
            "running",
        ):
            assert time.monotonic() < until
            time.sleep(0.1)
        assert answer["answer"]["schema"].startswith("kernbench.judge/")
        for path, body, status, says in (
            ("/reset", b" " * (5 << 20), 413, "more than 4,194,304 bytes"),
            ("/step", {"episode_id": "?"}, 400, "no episode"),
            ("/step", {"episode_id": episode}, 400, "needs an action"),
            ("/step", {"episode_id": episode, "action": {"candidate": 3}}, 400, "is a text"),
            ("/reset", {}, 400, "task is a text"),
            ("/reset", b"{", 400, "no JSON"),
            ("/reset", b"[" * 100_000, 400, "no JSON"),
            ("/reset", b"[]", 400, "an object"),
            ("/reset", b" " * (5 << 20), 413, "more than"),
            ("/jobs", {"tool": "rm"}, 400, "known: run"),
            ("/jobs?job=x", None, 400, "no job"),
        ):
            assert says in ask(address, path, body, status)["error"]
        no_task = ask(address, "/reset", {"task": "x = 1\ny = 2\n"})["observation"]["episode_id"]
        answer = ask(address, "/step", {"episode_id": no_task, "action": {"candidate": RIGHT}}, 400)
        assert "task" in answer["error"]

        line = [sys.executable, "-m", "kernbench", "judge", "--serve", "--port"]
        second = subprocess.run(
            [*line, address.split(":")[-1]], capture_output=True, text=True, timeout=120
        )
        assert second.returncode == 2
        assert "cannot serve at" in second.stderr
