"""The tools of `kernbench mcp`, called by the client of the protocol's own package."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import pytest

pytest.importorskip("mcp")
from mcp import Client, StdioServerParameters

from kernbench.service import RequestError, build_server, serving

BENCH = """
import numpy as np

def run(torch, n: int = 4096):
    x = torch.zeros(n, dtype="f32", name="x")
    y = x * 2.0
    y.numpy()
"""


def talk(folder: Path, conversation) -> None:
    async def all_of_it() -> None:
        server = StdioServerParameters(
            command=sys.executable, args=["-m", "kernbench", "mcp", "--folder", str(folder)]
        )
        async with Client(server, read_timeout_seconds=240) as client:
            await conversation(client)

    asyncio.run(all_of_it())


def value(result):
    assert not result.is_error, result.content
    return json.loads(result.content[0].text)


def test_a_client_runs_explains_and_compares(tmp_path: Path) -> None:
    async def conversation(client: Client) -> None:
        names = {tool.name for tool in (await client.list_tools()).tools}
        assert names == {"run", "why", "findings", "diff", "plan", "judge"}
        reports = []
        for name, size in (("small", "4096"), ("large", "4194304")):
            ran = await client.call_tool(
                "run",
                {"program": BENCH.replace("4096", size), "name": name, "machine": "h100-sxm"},
            )
            reports.append(value(ran)["report"])
        why = value(await client.call_tool("why", {"run": "large"}))
        assert sum(item["time_ns"] for item in why["spent"]) == pytest.approx(why["time_ns"])
        assert why["time_ns"] == reports[1]["time_ns"]
        diff = value(await client.call_tool("diff", {"before": "small", "after": "large"}))
        assert diff["difference_ns"] == pytest.approx(reports[1]["time_ns"] - reports[0]["time_ns"])

    talk(tmp_path, conversation)


MISTAKES = [
    ("why", {"run": "nothing"}, "no run 'nothing'; kept: none"),
    ("why", {"run": "../x"}, "is no name of a run"),
    ("run", {"program": "missing.py", "name": "a"}, "no file"),
    ("run", {"program": "def run(torch):\n    1 / 0\n", "name": "a"}, "ZeroDivisionError"),
    ("run", {"program": BENCH, "name": "a", "machine": "h1000"}, "h1000"),
    ("plan", {"model": "no-such", "machine": "h100-sxm", "devices": 8}, "no-such"),
    ("run", {"program": BENCH}, "name"),
]


def test_a_mistake_is_an_answer(tmp_path: Path) -> None:
    async def conversation() -> None:
        with serving(tmp_path, workers=1, timeout_s=100) as tools:
            async with Client(build_server(tools)) as client:
                for tool, arguments, says in MISTAKES:
                    result = await client.call_tool(tool, arguments)
                    assert result.is_error
                    assert says in result.content[0].text

    asyncio.run(conversation())


def test_what_takes_too_long_is_ended_with_all_its_processes(tmp_path: Path) -> None:
    endless = "import time\n\ndef run(torch):\n    while True:\n        pass\n"
    with (
        serving(tmp_path, workers=1, timeout_s=3) as tools,
        pytest.raises(RequestError, match="3 s"),
    ):
        tools.run(endless, "endless")
