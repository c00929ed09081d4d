"""Which lines of a program a kernel that Inductor wrote computes.

Inductor writes the names of a graph's nodes above each launch, and Dynamo knows the line of each
node. Graphs may come from disk, where an equal one of another program has left them; Dynamo traces
in each process.
"""

from __future__ import annotations

import linecache
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch

from kernbench.torch_bridge.base.patches import Patches

_NODES = re.compile(r"# (?:Topologically Sorted|Unsorted) Source Nodes: \[(.*?)\]")
_MADE_OF = re.compile(r"#\s+(\w+) => (.+)$")
_LAUNCH = re.compile(r"\s*(\w+)\.run\(")
_FRAME = re.compile(r'File "(.+)", line (\d+), in (.+)\n\s*(.*)')
_COMMENT_LINES = 8
"""How far above a launch the names of its nodes are looked for."""
_INDEXING = re.compile(r"^(_unsafe_)?(index|gather|scatter|embedding|take|masked_select)")
"""Operations of ATen whose addresses are data, by how names of their nodes begin."""
_MOST_SHOWN = 3
_OF_TORCH = str(Path(torch.__file__).parent)


class SourceLines:
    """The lines of one run's graphs, by the function that was compiled and the names of nodes."""

    def __init__(self) -> None:
        self._graphs: list[tuple[tuple[Any, ...], dict[str, str]]] = []

    def install(self, patches: Patches) -> None:
        """Keep the lines of each graph that Dynamo hands to a compiler."""
        from torch._dynamo.output_graph import OutputGraph

        patches.wrap(OutputGraph, "call_user_compiler", self._keep)

    def _keep(self, original: Callable[..., Any], output: Any, gm: Any, *args: Any) -> Any:
        traces = {node.name: node.meta.get("stack_trace") for node in gm.graph.nodes}
        known = {name: trace for name, trace in traces.items() if trace}
        self._graphs.append((_key(output.root_tx.f_code), known))
        return original(output, gm, *args)

    def of_launch(self) -> str:
        """Return the lines that the kernel computes which the caller's callers launch.

        Of several, those that index by data, where there are any. Empty: none is known.
        """
        frame: FrameType | None = sys._getframe(1)
        names: list[str] = []
        while frame is not None and not names:
            names = _nodes_launched(frame.f_code.co_filename, frame.f_lineno)
            frame = frame.f_back
        if not names:
            return ""
        traces = self._traces(names, frame)
        shown = dict.fromkeys(
            filter(None, (_line(traces[name]) for name in names if name in traces))
        )
        return "; ".join(list(shown)[:_MOST_SHOWN])

    def _traces(self, names: list[str], frame: FrameType | None) -> dict[str, str]:
        """Return the lines of the latest graph with these nodes: of a function that is running."""
        fitting = [
            (key, traces) for key, traces in reversed(self._graphs) if traces.keys() >= set(names)
        ]
        while frame is not None:
            result = [traces for key, traces in fitting if key == _key(frame.f_code)]
            if result:
                return result[0]
            frame = frame.f_back
        return fitting[0][1] if len(fitting) == 1 else {}


def _key(code: CodeType) -> tuple[Any, ...]:
    """Return what a function and what Dynamo made of it have in common."""
    return code.co_filename, code.co_name, code.co_firstlineno


def _nodes_launched(file: str, line: int) -> list[str]:
    """Return the names of the nodes that a line of Inductor's computes; none if it is no such."""
    lines = linecache.getlines(file)
    launch = _LAUNCH.match(lines[line - 1]) if 0 < line <= len(lines) else None
    if launch is None:
        return []
    above = reversed(lines[max(0, line - 1 - _COMMENT_LINES) : line - 1])
    said = next(filter(None, map(_NODES.search, above)), None)
    if said is None:
        return []
    names = said[1].split(", ")
    made_of = dict(_made_of(lines, launch[1]))
    indexing = [
        name for name in names if any(map(_INDEXING.match, made_of.get(name, "").split(", ")))
    ]
    return indexing or names


def _made_of(lines: list[str], kernel: str) -> Iterator[tuple[str, str]]:
    """Yield the operations that nodes became, from the comment above a kernel."""
    at = next((n for n, line in enumerate(lines) if line.startswith(f"{kernel} = ")), 0)
    for text in reversed(lines[:at]):
        if not text.startswith("#"):
            return
        if result := _MADE_OF.match(text.rstrip()):
            yield result[1], result[2]


def _line(trace: str) -> str:
    """Return the innermost line of a trace that is not PyTorch's."""
    frames = [item for item in _FRAME.findall(trace) if not item[0].startswith(_OF_TORCH)]
    if not frames:
        return ""
    file, line, function, text = frames[-1]
    return f"{file}:{line} in {function}: {text}"
