"""What to do about errors that Python, numpy and PyTorch raise in a run, as notes on them."""

from __future__ import annotations

import difflib
from types import ModuleType
from typing import TYPE_CHECKING, Any

from kernbench.errors import KernbenchError

if TYPE_CHECKING:
    from kernbench.runtime_api.launches.kernel_engine import KernelEngine

NEAR = 0.75
"""So alike are a name and what may have been meant."""
TORCHRUN = "programs that need PyTorch's own run with kernbench torchrun FILE"


def advise(error: BaseException, engine: KernelEngine, has_data: bool) -> None:
    """Say what to do about an error that leaves a run, and about each of a group."""
    if isinstance(error, BaseExceptionGroup):
        for each in error.exceptions:
            advise(each, engine, has_data)
    elif isinstance(error, AssertionError):
        _explain_difference(error, engine)
    elif isinstance(error, KernbenchError):
        return
    elif isinstance(error, AttributeError):
        _name_instead(error)
    elif isinstance(error, MemoryError) or "DefaultCPUAllocator" in _words(error):
        text = "the memory of this machine is exhausted"
        if has_data:
            text += (
                "; a run without data (--no-data, RuntimeContext(data=False)) takes none for "
                "tensors of devices, and models time alone"
            )
        error.add_note(text)


def near(name: str, owner: Any) -> str:
    """Return the end of a message that asks for the names of an object that are alike, if any."""
    names = [each for each in dir(owner) if not each.startswith("_")]
    close = difflib.get_close_matches(name, names, cutoff=NEAR)
    return f": did you mean {' or '.join(close)}?" if close else ""


def _explain_difference(error: AssertionError, engine: KernelEngine) -> None:
    """Tell a check that failed about products that were not computed in float32."""
    if not engine.rounded:
        return
    where = ", ".join(f"{name} at {line}" for name, line in sorted(engine.rounded.items()))
    error.add_note(
        f"float32 products of {where} are tf32 or the like, as their input_precision says "
        '(Triton\'s default is "tf32"); input_precision="ieee" in the kernel, or tf32="ieee" '
        "(--tf32 ieee) for the run, computes them in float32"
    )


def _name_instead(error: AttributeError) -> None:
    """Say what a name may have been meant for, and where there is more, if the owner is ours."""
    owner, name = error.obj, error.name
    kind = owner if isinstance(owner, type | ModuleType) else type(owner)
    module = kind.__name__ if isinstance(kind, ModuleType) else kind.__module__
    if not isinstance(name, str) or module.partition(".")[0] != "kernbench":
        return
    text = f"{kind.__name__} is kernbench's own{near(name, owner)}"
    if isinstance(owner, ModuleType) and not text.endswith("?"):
        return
    if not module.startswith("kernbench.torch_bridge"):
        text += f"{'' if text.endswith('?') else ';'} {TORCHRUN}"
    elif not text.endswith("?"):
        text += ", and has what simulated devices have; leave it out, or guard it with hasattr()"
    error.add_note(text)


def _words(error: BaseException) -> str:
    return str(error) if isinstance(error, RuntimeError) else ""
