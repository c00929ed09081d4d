"""``torch.library`` libraries whose kernels are for all processes, such as the bridge's own."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from kernbench.torch_bridge.processes.call_counts import unseen
from kernbench.torch_bridge.processes.process import HERE

if TYPE_CHECKING:
    from kernbench.torch_bridge.base.patches import Patches


def library_of_all(namespace: str, kind: str = "IMPL") -> torch.library.Library:
    """Return a library whose kernels are for all processes."""
    before, HERE.is_importing = HERE.is_importing, True
    try:
        library = torch.library.Library(namespace, kind)
        # Registrations through it belong to no process.
        library.m = getattr(library.m, "real", library.m)
        library.is_of_all = True
        return library
    finally:
        HERE.is_importing = before


@contextmanager
def overriding(patches: Patches) -> Iterator[torch.library.Library]:
    """Give a library for kernels that stand in the place of PyTorch's own until a run's end."""
    library = library_of_all("aten")
    patches.on_close(library._destroy)
    with warnings.catch_warnings():
        # PyTorch says that it had an implementation.
        warnings.simplefilter("ignore", UserWarning)
        yield library


def compose(library: torch.library.Library, name: str, call: Callable[..., Any]) -> None:
    """Let ``call`` stand for what PyTorch composes an operation of, uncounted as C++ is."""
    library.impl(name, unseen(call), "CompositeImplicitAutograd", allow_override=True)
