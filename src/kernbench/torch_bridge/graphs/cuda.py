"""``torch.cuda.CUDAGraph``, ``torch.cuda.graph`` and their functions."""

from __future__ import annotations

import warnings
from contextlib import suppress
from typing import Any

import torch
import torch.cuda.graphs

from kernbench.outputs import write_text
from kernbench.torch_bridge.base.patches import Patches
from kernbench.torch_bridge.base.refusals import CaptureError
from kernbench.torch_bridge.device import streams
from kernbench.torch_bridge.graphs.capture import Capture, end_all
from kernbench.torch_bridge.graphs.graph import Graph
from kernbench.torch_bridge.graphs.queues import CaptureQueue
from kernbench.torch_bridge.memory import PrivatePool
from kernbench.torch_bridge.processes.process import Process, current

_MODES = ("global", "thread_local", "relaxed")


class CUDAGraph:
    """Operations that were captured on a stream, and are replayed with one launch."""

    _pool: PrivatePool | None = None

    def __init__(self, keep_graph: bool = False) -> None:
        self._capture: Capture | None = None
        self._graph: Graph | None = None

    def __del__(self) -> None:
        self._release()

    def capture_begin(
        self,
        pool: Any = None,
        capture_error_mode: str = "global",
        check_input_liveness: bool = False,
    ) -> None:
        """Capture what is launched on the current stream from now on.

        The graph keeps the memory that it reads, so that nothing in it can dangle.

        Raises:
            CaptureError: The stream is the default one, or a capture is under way.
        """
        process = current()
        if capture_error_mode not in _MODES:
            raise CaptureError(
                "CUDAGraph.capture_begin: capture_error_mode must be one of "
                f"{', '.join(_MODES)}, but got {capture_error_mode!r}"
            )
        if self._graph is not None or self._capture is not None:
            raise CaptureError(
                "CUDAGraph.capture_begin: This CUDAGraph instance already owns a captured graph. "
                "To capture a new graph, create a new instance."
            )
        if process.capture is not None:
            raise CaptureError(
                "CUDAGraph.capture_begin: another capture of this process is under way"
            )
        stream = process.state.stream
        run = process.session.run
        if stream is None or streams.own_queue(stream) is run.devices.sip(stream.sip_id).queue:
            raise CaptureError(
                "CUDAGraph.capture_begin: CUDA graphs must be captured on a non-default stream; "
                "use torch.cuda.graph, or torch.cuda.stream(torch.cuda.Stream()) around it"
            )
        self._pool = _pool_of(process, pool)
        self._pool.num_users += 1
        for memory in self._pool.graphs:
            memory.give_back()
        process.private_pool = self._pool
        self._capture = Capture(process, stream)

    def capture_end(self) -> None:
        """End the capture; from now on the graph can be replayed.

        Raises:
            CaptureError: There is no capture, or it holds what cannot be replayed.
        """
        capture, self._capture = self._capture, None
        if capture is None:
            raise CaptureError("CUDAGraph.capture_end: no capture of this graph is under way")
        try:
            capture.end()
        except CaptureError:
            self._release()
            raise
        self._graph = Graph(current(), capture)
        if self._pool is not None:
            self._pool.graphs.add(capture.memory)
        if not capture.branches.commands:
            warnings.warn(
                "The CUDA Graph is empty. This usually means that the graph was attempted to be "
                "captured on wrong device or stream.",
                stacklevel=2,
            )

    def end_block(self, error: Any) -> None:
        """End the capture of a block, which the program has left by an error, if there is one."""
        if error is None:
            self.capture_end()
        elif self._capture is not None:
            self._capture.refused = self._capture.refused or "the program's error"
            with suppress(CaptureError):
                self.capture_end()

    def instantiate(self) -> None:
        """Accept it: a graph is ready when its capture has ended."""
        self._captured("instantiate")

    def replay(self) -> None:
        """Execute all captured operations again, in the same memory, on the current stream."""
        streams.refuse_in_capture("CUDAGraph.replay")
        self._captured("replay").replay()

    def reset(self) -> None:
        """Drop the captured operations, and release their memory."""
        self._release()

    def pool(self) -> Any:
        """Return the handle of the graph's memory pool."""
        if self._pool is None:
            self._captured("pool")
        assert self._pool is not None
        return self._pool.handle

    def enable_debug_mode(self) -> None:
        """Accept it: what :meth:`debug_dump` writes is always there."""

    def debug_dump(self, debug_path: str) -> None:
        """Write the operations to a file, in Graphviz's DOT language."""
        names = self._captured("debug_dump").names()
        nodes = [f'  {number} [label="{name}"];' for number, name in enumerate(names)]
        edges = [f"  {number} -> {number + 1};" for number in range(len(names) - 1)]
        write_text(debug_path, "\n".join(["digraph operations {", *nodes, *edges, "}", ""]))

    def register_generator_state(self, generator: Any) -> None:
        """Accept it: every generator draws new numbers when its operation is replayed."""

    def _captured(self, called: str) -> Graph:
        if self._graph is None:
            raise CaptureError(
                f"CUDAGraph.{called}: Called CUDAGraph::{called} without a preceding successful "
                "capture."
            )
        return self._graph

    def _release(self) -> None:
        self._graph = None
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.num_users -= 1


class AcceleratorGraph(CUDAGraph):
    """``torch.accelerator.Graph``: captures what is launched within its block."""

    def __init__(
        self, keep_graph: bool = False, *, pool: Any = None, capture_error_mode: str = "default"
    ) -> None:
        super().__init__(keep_graph)
        self.graph_pool = pool
        self.capture_error_mode = capture_error_mode

    def capture_begin(self, *unused: Any) -> None:
        """Capture what is launched on the current stream from now on.

        Raises:
            CaptureError: The stream is the default one, or a capture is under way.
        """
        mode = self.capture_error_mode
        super().capture_begin(self.graph_pool, "global" if mode == "default" else mode)

    def __enter__(self) -> None:
        streams.synchronize()
        torch.cuda.empty_cache()
        self.capture_begin()

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        self.end_block(error)


class CaptureContext:
    """``torch.cuda.graph``: captures what is launched within its block, on a side stream."""

    def __init__(
        self,
        cuda_graph: CUDAGraph,
        pool: Any = None,
        stream: streams.Stream | None = None,
        capture_error_mode: str = "global",
        enable_annotations: bool = False,
        check_input_liveness: bool = False,
    ) -> None:
        if not isinstance(cuda_graph, CUDAGraph):
            raise CaptureError(
                f"torch.cuda.graph takes a torch.cuda.CUDAGraph, but got {cuda_graph!r}"
            )
        if not isinstance(stream, streams.Stream | None):
            raise TypeError(
                f"graph(): argument 'stream' must be Stream or None, not {type(stream).__name__}"
            )
        self.cuda_graph = cuda_graph
        self.pool = pool
        self.capture_stream = stream
        self.capture_error_mode = capture_error_mode

    def __enter__(self) -> None:
        streams.synchronize()
        torch.cuda.empty_cache()
        process = current()
        if self.capture_stream is None:
            if process.capture_stream is None:
                process.capture_stream = streams.Stream()
            self.capture_stream = process.capture_stream
        self.stream_ctx = streams.StreamContext(self.capture_stream)
        self.stream_ctx.__enter__()
        try:
            self.cuda_graph.capture_begin(self.pool, self.capture_error_mode)
        except CaptureError:
            self.stream_ctx.__exit__()
            raise

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        try:
            self.cuda_graph.end_block(error)
        finally:
            self.stream_ctx.__exit__()


def graph_pool_handle() -> Any:
    """Return a name for a memory pool that graphs may share."""
    return _new_pool(current()).handle


def _new_pool(process: Process) -> PrivatePool:
    pool = PrivatePool(handle=(0, len(process.graph_pools) + 1))
    process.graph_pools[pool.handle] = pool
    return pool


def _pool_of(process: Process, handle: Any) -> PrivatePool:
    if handle is None:
        return _new_pool(process)
    pool = process.graph_pools.get(handle)
    if pool is None:
        raise CaptureError(
            f"pool={handle!r} is not a pool of graphs; pass torch.cuda.graph_pool_handle(), or "
            "pool() of another CUDAGraph"
        )
    return pool


def is_current_stream_capturing() -> bool:
    """Return whether the current stream is captured for a graph."""
    return isinstance(current().session.run.current_stream().queue, CaptureQueue)


def install(patches: Patches) -> None:
    """Let programs capture graphs; captures that a program leaves open end with it."""
    patches.on_close(end_all)
    parts = {
        "CUDAGraph": CUDAGraph,
        "graph": CaptureContext,
        "graph_pool_handle": graph_pool_handle,
        "is_current_stream_capturing": is_current_stream_capturing,
    }
    for owner in (torch.cuda, torch.cuda.graphs):
        patches.set_all(owner, parts)
    if hasattr(torch.accelerator, "Graph"):
        # Since PyTorch 2.13.
        patches.set(torch.accelerator, "Graph", AcceleratorGraph)
