"""For whom the compiler's files on disk hold: the key that tells runs and ranks apart.

Inductor keeps graphs, kernels and the choices of its benchmarks. Its keys know nothing of
kernbench: neither of the machine whose modeled time decided, nor of what the bridge shows to it.
They tell devices apart by number, where ranks with the same graph could share what was made of it.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Iterable, Iterator
from functools import cache, wraps
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from torch.utils._pytree import tree_leaves

import kernbench
from kernbench.runtime_api import Run
from kernbench.torch_bridge.base.patches import Patches
from kernbench.torch_bridge.compiler.numbering import Numbering
from kernbench.torch_bridge.placement.names import current_index
from kernbench.torch_bridge.processes.process import current

_KERNBENCH = Path(__file__).parents[2]
_DECIDING = ("torch_bridge", "triton_backend")
_OF_NO_CHOICE = {"name", "description", "host", "usd_per_device_hour", "clusters", "sources"}
"""What of a machine neither a graph nor a trial on a device depends on: a change of it compiles
nothing again."""


def install(patches: Patches, numbering: Numbering) -> None:
    """Let the keys and files of the compiler number devices by rank."""
    from torch._functorch._aot_autograd import autograd_cache
    from torch._inductor import codecache
    from torch._inductor.graph import GraphLowering

    details, of_graph = codecache.FxGraphHashDetails, autograd_cache.AOTAutogradCacheDetails
    patches.set(details, "__init__", _with_device(details.__init__, numbering))
    patches.wrap(of_graph, "__init__", _with_rank)
    for pickler in (autograd_cache.AOTAutogradCachePickler, codecache.FxGraphCachePickler):
        patches.wrap(pickler, "reducer_override", _by_number, numbering, codecache._ident)
    patches.wrap(GraphLowering, "_compile_to_module_lines", _written, numbering)
    patches.wrap(codecache.PyCodeCache, "load_by_key_path", _read, numbering)
    patches.wrap(autograd_cache.AOTAutogradCache, "save", _saving, numbering)
    result = autograd_cache.GenericAOTAutogradResult
    patches.wrap(result, "wrap_post_compile", _loading, numbering)


def _with_device(original: Callable[..., None], numbering: Numbering) -> Callable[..., None]:
    @wraps(original)
    def init(self: Any, gm: Any, inputs: Any, *args: Any, **kwargs: Any) -> None:
        numbering.begin(inputs)
        original(self, gm, inputs, *args, **kwargs)
        # PyTorch's keys leave it out where an input is a DTensor.
        self.default_cuda_device_index = numbering.exchanged(current_index())
        machine = current().session.run.machine
        if machine.sip_overrides:
            self.kernbench_device = machine.sip_at(current().state.sip_id).model_dump_json()

    return init


def _with_rank(
    original: Callable[..., Any], self: Any, gm: Any, inputs: Any, *args: Any, **kwargs: Any
) -> None:
    """Initialize the details of a program's graph, which is of one rank if it has DTensors.

    Their operations are traced as those of a place in a mesh.
    """
    from torch._library import opaque_object

    # The name before PyTorch 2.14, which warns at each call of it.
    is_opaque = getattr(opaque_object, "is_opaque_symbolic_type", None)
    is_opaque = is_opaque or opaque_object.is_opaque_reference_type
    if any(
        is_opaque(type(item))
        or (isinstance(item, torch.Tensor) and is_traceable_wrapper_subclass(item))
        for item in _values(gm, inputs)
    ):
        self.kernbench_rank = current().rank
    original(self, gm, inputs, *args, **kwargs)


def _values(gm: Any, inputs: Iterable[Any]) -> Iterator[Any]:
    """Yield all that a graph computes with."""
    yield from inputs
    for module in gm.modules():
        for node in getattr(getattr(module, "graph", None), "nodes", ()):
            yield from tree_leaves(node.meta.get("example_value"))


def _by_number(
    original: Callable[..., Any], numbering: Numbering, identity: Any, self: Any, value: Any
) -> Any:
    """Reduce an object for a pickler of keys, to which devices are their numbers in files."""
    if type(value) is torch.device:
        return identity, (str(numbering.exchanged_device(value)),)
    if type(value).__name__ == "BoxedDeviceIndex":
        index = value.value
        return identity, (index if index is None else numbering.exchanged(index),)
    result = original(self, value)
    if isinstance(value, torch.fx.GraphModule):
        if result is NotImplemented:
            table = self.dispatch_table.get(type(value))
            result = value.__reduce__() if table is None else table(value)
        return result[0], _numbered(result[1], numbering), *result[2:]
    return result


def _numbered(parts: Any, numbering: Numbering) -> Any:
    """Return the parts of a graph's module with its code as it is kept."""
    if isinstance(parts, tuple):
        return tuple(_numbered(part, numbering) for part in parts)
    if isinstance(parts, dict) and isinstance(parts.get("_code"), str):
        return {**parts, "_code": numbering.exchanged_text(parts["_code"])}
    return parts


def _written(original: Callable[..., Any], numbering: Numbering, self: Any, code: Any) -> Any:
    code.value = numbering.written(code.value)
    return original(self, code)


def _read(original: Callable[..., Any], numbering: Numbering, *args: Any, **kwargs: Any) -> Any:
    module = original(*args, **kwargs)
    numbering.read(module)
    return module


def _saving(
    original: Callable[..., Any], numbering: Numbering, key: str, entry: Any, remote: bool
) -> None:
    original(key, _renumbered(entry, numbering), remote)


def _loading(
    original: Callable[..., Any], numbering: Numbering, self: Any, *args: Any, **kwargs: Any
) -> Any:
    return original(_renumbered(self, numbering), *args, **kwargs)


def _renumbered(entry: Any, numbering: Numbering) -> Any:
    """Return what is kept of a graph with the number of its generator's device exchanged."""
    index = entry.runtime_metadata.graphsafe_rng_state_index
    if index is None:
        return entry
    metadata = dataclasses.replace(
        entry.runtime_metadata, graphsafe_rng_state_index=numbering.exchanged(index)
    )
    return dataclasses.replace(entry, runtime_metadata=metadata)


def kept_for(run: Run) -> str:
    """Return what all keys of a run's compiled files have: version, machine, and data mode."""
    machine = run.machine
    sips = {sip_id: spec.model_dump_json() for sip_id, spec in machine.sip_overrides.items()}
    parts = (
        kernbench.__version__,
        _sources(),
        machine.spec.model_dump_json(exclude=_OF_NO_CHOICE),
        str(sorted(sips.items())),
        str(run.has_data),
    )
    return "-kernbench-" + hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def keep_choices(patches: Patches, tag: str) -> None:
    """Let the file of choices among templates be that of a tag: PyTorch's is of a device's name."""
    from torch._inductor import codecache
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    def get_system() -> dict[str, Any]:
        # As another run's machine may have been asked before, not what it kept.
        system = original.__wrapped__()
        return {**system, "hash": system["hash"] + tag}

    original = codecache.CacheBase.get_system
    patches.set_all(
        codecache.CacheBase,
        get_system=staticmethod(get_system),
        get_local_cache_path=staticmethod(lambda: Path(cache_dir(), "cache", get_system()["hash"])),
    )


@cache
def _sources() -> str:
    """Return the states of the files that decide what is compiled: versions change them."""
    states = []
    for package in _DECIDING:
        files = (_KERNBENCH / package).rglob("*")
        for path in sorted(path for path in files if path.suffix in (".py", ".yaml")):
            stat = path.stat()
            states.append(f"{path} {stat.st_size} {stat.st_mtime_ns}")
    return "\n".join(states)
