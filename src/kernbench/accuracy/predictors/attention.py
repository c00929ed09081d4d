"""Attention: the kernels that PyTorch, or the library that a row names, launches for one call."""

from __future__ import annotations

from kernbench.accuracy.rows import Answer, Machines, Ran, Row
from kernbench.errors import KernbenchError
from kernbench.hardware import Machine, load_library
from kernbench.library_kernels import (
    CUDNN_FIRST,
    AttentionProblem,
    LibraryKernel,
    attention_kernels,
    flash_backward_launches,
    flash_launches,
    times_of,
)

_LIBRARIES = {
    "cudnn": "cudnn", "v4": "flash4", "fa4": "flash4", "flash4": "flash4", "v3": "flash3",
    "fa3": "flash3", "tlx": "flash3", "flash3": "flash3", "v2": "flash2", "fa2": "flash2",
    "flash2": "flash2", "efficient": "efficient",
}  # fmt: skip
"""What an implementation's name has in it, and whose kernels those are."""
_OF_PYTORCH = ("", "sdpa", "torch", "pytorch")
"""Implementations that are what PyTorch chooses."""
_DTYPES = {
    "bf16": ("bfloat16", 2), "fp16": ("float16", 2), "fp32": ("tf32", 4),
    "fp8": ("float8_e4m3fn", 1),
}  # fmt: skip
"""What the matrix engine multiplies, and bytes of an element."""


class AttentionPredictor:
    """Predicts one call of attention, forward, backward or both."""

    def __init__(self, machines: Machines) -> None:
        self._machines = machines

    def predict(self, row: Row) -> Answer:
        """Return the modeled time of the call that the row measured."""
        machine = self._machines.machine_of(row.device)
        try:
            launches = launches_of(row, machine)
            library = load_library(machine.spec.kernel_library or "")
            times = times_of(launches, machine.sip, library, queued=True)
        except KernbenchError as error:
            return Answer(None, str(error).split(";")[0])
        how = " + ".join(dict.fromkeys(launch.name for launch in launches))
        return Answer(sum(time.total_us for time in times), how=how, ran=Ran.LIBRARY)


def launches_of(row: Row, machine: Machine, dtype: str | None = None) -> tuple[LibraryKernel, ...]:
    """Return what the call that a row measured launches, in its dtype or another.

    Raises:
        KernbenchError: The machine's library has no such kernels, or the row names no pass or
            dtype that they have.
    """
    known = attention_kernels(machine.spec.kernel_library or "")
    impl = row.fields.get("impl", "").lower()
    named = [library for text, library in _LIBRARIES.items() if text in impl]
    dtype = dtype or row.dtype
    if dtype not in _DTYPES:
        raise KernbenchError(f"no attention in {dtype} (known: {', '.join(_DTYPES)})")
    if not named and impl not in _OF_PYTORCH:
        raise KernbenchError(f"no attention of {impl} (known: {', '.join(_LIBRARIES)})")
    first = "cudnn" if machine.spec.cuda_architecture in CUDNN_FIRST else "flash2"
    library = named[0] if named else "efficient" if dtype == "fp32" else first
    problem = _problem(row, *_DTYPES[dtype])
    launches: list[LibraryKernel] = []
    for text in ("forward", "backward"):
        if not any(part.strip().startswith(text[0]) for part in row.op.lower().split("+")):
            continue
        kernel = known.get(f"{library}_{text}")
        if kernel is None:
            raise KernbenchError(f"no kernel for {text} of {impl or library} on {machine.name}")
        if text == "backward":
            launches += flash_backward_launches(problem, kernel)
        else:
            launches += flash_launches(problem, kernel, machine.sip.num_pes)
    if not launches:
        raise KernbenchError(f"{row.op} is neither a forward nor a backward pass")
    return tuple(launches)


def _problem(row: Row, dtype: str, width: int) -> AttentionProblem:
    window = row.fields.get("window", "0") not in ("", "0")
    return AttentionProblem(
        batch=row.integer("batch"),
        q_len=row.integer("q_len"),
        kv_len=row.integer("kv_len"),
        heads=row.integer("heads"),
        kv_heads=row.integer("kv_heads"),
        head_dim=row.integer("head_dim"),
        causal=row.fields.get("causal") == "yes",
        window=row.integer("window") if window else 0,
        dtype=dtype,
        q_bytes=width,
        kv_bytes=width,
    )
