"""Forms of the tables that benchmarks of kernels publish, beside those that users write."""

from __future__ import annotations

from dataclasses import replace

from kernbench.accuracy.rows import FORMS as OF_USERS
from kernbench.accuracy.rows import Category, Form

TTFT = "first token"
"""The operation of rows of the time to it, which lines of serving have beside a further token's."""
_SERVING = next(form for form in OF_USERS if form.category is Category.SERVING)

FORMS = (
    replace(_SERVING, also=(replace(_SERVING, op=f"={TTFT}", time=("ttft_s",)),)),
    Form(
        category=Category.PROGRAMS,
        columns=("level", "problem", "mean_ms"),
        op="problem",
        dtype="=float32",
        device="hardware",
        source="=kernelbench",
        time=("mean_ms",),
        together=("level", "problem"),
        shown=("level", "problem", "config", "folder", "commit"),
    ),
    Form(
        category=Category.PROGRAMS,
        columns=("part", "op", "input_size"),
        op="op",
        dtype="=",
        device="=A100-SXM4-80GB",
        source="=tritonbench",
        time=("ms",),
        together=("part", "op"),
        shown=("part", "op", "input_size"),
    ),
    Form(
        category=Category.PROGRAMS,
        columns=("branch", "kernel", "params"),
        op="kernel",
        dtype="=",
        device="=MI300X",
        source="=geak",
        time=("ms",),
        together=("kernel",),
        may_lack_time=True,
        shown=("branch", "kernel", "params"),
    ),
    Form(
        category=Category.PROGRAMS,
        columns=("run_id", "problem", "label"),
        op="problem",
        device="gpu",
        # Its peak of memory says which H100, its src/hardware which RTX PRO 6000.
        boards={"h100": "H100-PCIe-80GB", "rtxpro6000": "RTX PRO 6000 Blackwell Workstation"},
        source="=kernelbench.com",
        time=("ms",),
        together=("problem", "label"),
        shown=("run_id", "label"),
    ),
    *OF_USERS,
)
