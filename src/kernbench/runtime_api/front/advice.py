"""Notes on errors that Python, numpy and PyTorch raise in a run: what to do about them."""

from __future__ import annotations

import difflib
from types import ModuleType
from typing import Any

from kernbench.errors import KernbenchError, is_host_exhausted
from kernbench.runtime_api.launches.kernel_engine import KernelEngine
from kernbench.runtime_api.tensors.operators import PYTORCH

NEAR = 0.75
"""The least similarity of a misspelt name and a suggestion."""


def advise(error: BaseException, engine: KernelEngine, has_data: bool) -> None:
    """Add notes on what to do to an error that leaves a run, or to each of a group."""
    if isinstance(error, BaseExceptionGroup):
        for exception in error.exceptions:
            advise(exception, engine, has_data)
    elif isinstance(error, AssertionError):
        _explain_difference(error, engine)
    elif isinstance(error, KernbenchError):
        return
    elif isinstance(error, AttributeError):
        _name_instead(error)
    elif is_host_exhausted(error):
        text = "the memory of this machine is exhausted"
        if has_data:
            text += (
                "; a run without data (--no-data, RuntimeContext(data=False)) takes none for "
                "tensors of devices, and models time alone"
            )
        error.add_note(text)


def near(name: str, owner: Any) -> str:
    """Return ": did you mean ...?" with the similar names of an object, or "" if there are none."""
    names = [name for name in dir(owner) if not name.startswith("_")]
    close = difflib.get_close_matches(name, names, cutoff=NEAR)
    return f": did you mean {' or '.join(close)}?" if close else ""


def _explain_difference(error: AssertionError, engine: KernelEngine) -> None:
    """Note on a failed check which products were not computed in float32."""
    if not engine.rounded:
        return
    where = ", ".join(f"{name} at {line}" for name, line in sorted(engine.rounded.items()))
    error.add_note(
        f"float32 products of {where} are tf32 or the like, as their input_precision says "
        '(Triton\'s default is "tf32"); input_precision="ieee" in the kernel, or tf32="ieee" '
        "(--tf32 ieee) for the run, computes them in float32"
    )


def _name_instead(error: AttributeError) -> None:
    """Note which name may have been meant, if the object without it is kernbench's own."""
    owner, name = error.obj, error.name
    kind = owner if isinstance(owner, type | ModuleType) else type(owner)
    module = kind.__name__ if isinstance(kind, ModuleType) else kind.__module__
    if not isinstance(name, str) or module.partition(".")[0] != "kernbench":
        return
    text = f"{kind.__name__} is kernbench's own{near(name, owner)}"
    if isinstance(owner, ModuleType) and not text.endswith("?"):
        return
    if not module.startswith("kernbench.torch_bridge"):
        text += f"{'' if text.endswith('?') else ';'} {PYTORCH}"
    elif not text.endswith("?"):
        text += ", and has what simulated devices have; leave it out, or guard it with hasattr()"
    error.add_note(text)
