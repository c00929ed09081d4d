"""Op logs made by hand, for tests of what reads them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from kernbench.commands import Engine
from kernbench.op_log import HostSpan, Instance, OpLog, Template


def kernel(
    name: str = "matmul", duration_ps: int = 1_000_000, flops: int = 6_000, **fields: Any
) -> Template:
    """A kernel of three rows: 3 000 bytes in, a GEMM, 1 000 bytes out."""
    third = duration_ps // 3
    rows = {
        "engine": np.array(["dma_in", "gemm", "dma_out"]),
        "kind": np.array(["dma_read", "gemm", "dma_write"]),
        "pe_first": np.array([0, 0, 0]),
        "pe_count": np.array([4, 4, 4]),
        "program_count": np.array([8, 8, 8]),
        "count": np.array([16, 8, 8]),
        "start_ps": np.array([0, third, 2 * third]),
        "end_ps": np.array([2 * third, 2 * third, duration_ps]),
        "bytes": np.array([3_000, 0, 1_000]),
        "flops": np.array([0, flops, 0]),
        "src_space": np.array(["hbm", "tcm", "tcm"]),
        "dst_space": np.array(["tcm", "tcm", "hbm"]),
        "src_param": np.array([0, -1, -1]),
        "dst_param": np.array([-1, -1, 1]),
        "file": np.array(["k.py", "k.py", "k.py"]),
        "line": np.array([7, 9, 11]),
    }
    settings: dict[str, Any] = {
        "name": name,
        "kind": "kernel",
        "algorithm": "",
        "duration_ps": duration_ps,
        "flops": flops,
        "hbm_bytes": 4_000,
        "engine_busy_ps": {Engine.GEMM: third},
        "message_bytes": 0,
        "make_rows": lambda: rows,
    }
    return Template(**(settings | fields))


def ring(num_ranks: int, step_ps: int = 100_000, chunk_bytes: int = 512) -> Template:
    """A ring all-gather: rank r sends to r + 1 over link r, in ``num_ranks - 1`` steps."""
    num_steps = num_ranks - 1
    step, rank = (grid.ravel() for grid in np.mgrid[0:num_steps, 0:num_ranks])
    rows = {
        "engine": np.array("link"),
        "kind": np.array("send"),
        "rank": rank,
        "peer": (rank + 1) % num_ranks,
        "link": rank,
        "step": step,
        "chunk": (rank - step) % num_ranks,
        "start_ps": step * step_ps,
        "end_ps": (step + 1) * step_ps,
        "bytes": np.full(len(step), chunk_bytes),
        "src_space": np.array("hbm"),
        "dst_space": np.array("link"),
    }
    return Template(
        name="all_gather",
        kind="collective",
        algorithm="ring",
        duration_ps=num_steps * step_ps,
        flops=0,
        hbm_bytes=num_ranks * num_steps * chunk_bytes,
        engine_busy_ps={Engine.LINK: num_steps * step_ps},
        message_bytes=num_ranks * chunk_bytes,
        make_rows=lambda: rows,
    )


class LogBuilder:
    """Appends launches one after the other; launch ids count from 0."""

    def __init__(self) -> None:
        self.log = OpLog()

    def launch(self, template: Template, rank: int, start_ps: int) -> Instance:
        """A launch on the SIP numbered like the rank, which takes the host 500 ns before it."""
        instance = Instance(
            template=template,
            launch_id=len(self.log),
            ranks=(rank,),
            sips=(rank,),
            starts_ps=(start_ps,),
            ends_ps=(start_ps + template.duration_ps,),
            stream="compute",
            addresses=(4096, 8192),
        )
        self.log.append(instance)
        begin = max(start_ps - 500_000, 0)
        span = HostSpan(rank, "launch", template.name, begin, start_ps)
        self.log.host_spans.append(span)
        return instance

    def collective(self, template: Template, ranks: Sequence[int], starts: Sequence[int]) -> None:
        """A collective whose ranks arrive at ``starts`` and end together."""
        end_ps = max(starts) + template.duration_ps
        instance = Instance(
            template=template,
            launch_id=len(self.log),
            ranks=tuple(ranks),
            sips=tuple(ranks),
            starts_ps=tuple(starts),
            ends_ps=(end_ps,) * len(ranks),
            stream="comm",
        )
        self.log.append(instance)


def small_log() -> OpLog:
    """Two kernels on each of two ranks, and an all-gather that half overlaps the second."""
    builder = LogBuilder()
    matmul, gelu = kernel(), kernel("gelu", 300_000, 80)
    for rank in (0, 1):
        builder.launch(matmul, rank, 500_000)
    builder.collective(ring(2), (0, 1), (1_400_000, 1_450_000))
    for rank in (0, 1):
        builder.launch(gelu, rank, 1_500_000)
    builder.log.host_spans.append(HostSpan(0, "wait", "all_gather", 1_600_000, 1_800_000))
    return builder.log
