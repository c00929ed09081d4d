"""The tools of a service: commands by the names and arguments that a client gives."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import wraps
from importlib import metadata
from typing import Annotated, Any

from pydantic import Field

from kernbench.errors import KernbenchError, UsageError
from kernbench.judging import DEFAULT_MACHINES, JudgePool
from kernbench.service.requests import Workspace

_Source = Annotated[str, Field(description="Source text, or a path on the service's machine.")]
_Machine = Annotated[str, Field(description="A preset, NAME:DEVICES, or a YAML file.")]
_Run = Annotated[str, Field(description="The name that a run is kept under.")]
_Changes = Annotated[
    dict[str, str] | None,
    Field(description='Keys of the machine to change: {"sip.cube.hbm_bandwidth_gbps": "2x"}.'),
]
INSTRUCTIONS = """\
kernbench runs Triton kernels and PyTorch programs on modeled accelerators, without one: right
numbers, modeled time and the reasons for it. run keeps a run under a name; why, findings and diff
explain kept runs; plan splits a model over devices; judge says whether a kernel is right, how fast
it probably is, and why."""


class Tools:
    """What a service does, a method a tool; all return what the command writes as JSON."""

    def __init__(self, workspace: Workspace, judges: JudgePool) -> None:
        self._workspace, self._judges = workspace, judges

    def all(self) -> Mapping[str, Callable[..., Any]]:
        """Return the tools by name."""
        return {
            call.__name__: call
            for call in (self.run, self.why, self.findings, self.diff, self.plan, self.judge)
        }

    def run(
        self,
        program: _Source,
        name: _Run,
        machine: _Machine = "h100-sxm",
        ranks: int = 1,
        data: bool = True,
        arguments: list[str] | None = None,
        changes: _Changes = None,
    ) -> dict[str, Any]:
        """Run a bench, a script or a PyTorch program, keep it as a run, and return its report."""
        path = self._workspace.source(program)
        options = ["--save", os.fspath(self._workspace.run_file(name)), "--machine", machine]
        options += ["--data" if data else "--no-data"]
        if ranks != 1:
            is_bench = "def run(torch" in path.read_text(encoding="utf-8", errors="replace")
            options += ["--ranks" if is_bench else "--nproc-per-node", str(ranks)]
        for key, value in (changes or {}).items():
            options += ["--set", f"{key}={value}"]
        report = self._workspace.ask("run", *options, os.fspath(path), *(arguments or ()))
        return {"run": name, "report": report}

    def why(self, run: _Run) -> dict[str, Any]:
        """Say where the time of a kept run went, by resource, kernel and critical path."""
        return self._of_run("why", run)

    def findings(self, run: _Run) -> dict[str, Any]:
        """Rank what holds a kept run up, by the gain that runs without it have shown."""
        return self._of_run("findings", run)

    def diff(self, before: _Run, after: _Run) -> dict[str, Any]:
        """Say why one kept run takes longer than another, by parts that add up."""
        kept = [os.fspath(self._workspace.kept(name)) for name in (before, after)]
        answer: dict[str, Any] = self._workspace.ask("diff", *kept)
        return answer

    def plan(
        self,
        model: Annotated[str, Field(description="A known model, or the path of a config.json.")],
        machine: _Machine,
        devices: int,
        serve: bool = False,
        batch: int | None = None,
        seq: int = 4096,
        run: Annotated[
            int, Field(description="Of how many of the best layouts the programs are run.")
        ] = 4,
    ) -> dict[str, Any]:
        """Rank the ways of splitting a model over devices, by modeled time."""
        options = ["--model", model, "--machine", machine, "--devices", str(devices)]
        options += ["--serve" if serve else "--train", "--seq", str(seq), "--run", str(run)]
        options += [] if batch is None else ["--batch", str(batch)]
        answer: dict[str, Any] = self._workspace.ask("plan", *options)
        return answer

    def judge(
        self,
        candidate: _Source,
        task: _Source,
        machines: Annotated[list[str] | None, Field(description="By default h100-sxm.")] = None,
    ) -> dict[str, Any]:
        """Judge a candidate kernel against a task: right or wrong, how fast, why."""
        paths = (self._workspace.source(name) for name in (candidate, task))
        return self._judges.judge(*paths, machines=machines or DEFAULT_MACHINES).to_dict()

    def _of_run(self, command: str, run: str) -> dict[str, Any]:
        answer: dict[str, Any] = self._workspace.ask(command, os.fspath(self._workspace.kept(run)))
        return answer


def build_server(tools: Tools) -> Any:
    """Return an MCP server of these tools.

    Raises:
        UsageError: The package mcp is not installed.
    """
    try:
        from mcp.server import MCPServer
        from mcp.server.mcpserver.exceptions import ToolError
    except ImportError:
        raise UsageError('this needs the package mcp: pip install "kernbench[mcp]"') from None
    server = MCPServer(
        "kernbench",
        instructions=INSTRUCTIONS,
        version=metadata.version("kernbench"),
        log_level="WARNING",
    )

    def said(tool: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(tool)
        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                return tool(*args, **kwargs)
            except KernbenchError as error:
                raise ToolError(str(error)) from None

        return call

    for name, item in tools.all().items():
        server.tool(name=name)(said(item))
    return server
