"""What a candidate did, as a record that can be executed without it: operations and kernels.

A record is data from a process that is not trusted: JSON and bytes, never a pickle, and every name
in it is looked up among what PyTorch itself defines.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ReduceOp

from kernbench.errors import KernbenchError

_LINE = re.compile(r"\bat (\S+\.py:\d+)")


def line_in(text: str) -> str:
    """Return the first file and line that a message names; empty if none."""
    match = _LINE.search(text)
    return match[1] if match else ""


def store_line(ttir: str) -> str:
    """Return where a kernel stores last, as ``file:line``; empty if its text does not say."""
    stores = re.findall(r"tt\.(?:store|atomic_rmw|descriptor_store)\b.*loc\((#loc\d*)\)", ttir)
    places = dict(re.findall(r"^(#loc\d*) = loc\((.*)\)$", ttir, re.MULTILINE))
    place = places.get(stores[-1], "") if stores else ""
    for _ in range(8):
        match = re.search(r'"([^"]+\.py)":(\d+)', place)
        if match:
            return f"{Path(match[1]).name}:{match[2]}"
        inner = re.search(r"#loc\d*", place)
        place = places.get(inner[0], "") if inner else ""
    return ""


METHODS = (
    "allreduce", "allreduce_coalesced", "broadcast", "reduce", "allgather", "allgather_coalesced",
    "all_gather_single", "all_gather_single_coalesced", "_allgather_base",
    "allgather_into_tensor_coalesced", "reduce_scatter", "reduce_scatter_single",
    "reduce_scatter_single_coalesced", "_reduce_scatter_base", "reduce_scatter_tensor_coalesced",
    "all_to_all_single", "alltoall_base", "alltoall", "gather", "scatter", "barrier", "send",
    "recv", "_start_coalescing", "_end_coalescing",
)  # fmt: skip
"""Methods of a process group that a record may name."""


def described_options(value: Any) -> Any:
    """Return options of a collective as JSON; None for values that are none.

    Raises:
        RecordError: They have a reduction with a factor.
    """
    if not hasattr(value, "reduceOp") and not hasattr(value, "rootRank"):
        return {} if type(value).__name__.endswith("Options") else None
    said: dict[str, Any] = {}
    if hasattr(value, "reduceOp"):
        op = getattr(value.reduceOp, "op", value.reduceOp)
        if op == ReduceOp.PREMUL_SUM:
            raise RecordError("a reduction with a factor")
        said["reduceOp"] = op.name
    if hasattr(value, "rootRank"):
        said["rootRank"] = int(value.rootRank)
    return said


def options_of(said: dict[str, Any]) -> Any:
    """Return the options that JSON says.

    Raises:
        RecordError: It says none.
    """
    try:
        values = {}
        if "reduceOp" in said:
            values["reduceOp"] = ReduceOp(ReduceOp.RedOpType.__members__[said["reduceOp"]])
        if "rootRank" in said:
            values["rootRank"] = int(said["rootRank"])
    except (KeyError, TypeError, ValueError) as error:
        raise RecordError(f"options of a collective: {error!r}") from None
    return SimpleNamespace(**values)


def group_of(ranks: tuple[int, ...]) -> Any:
    """Return a process group of some ranks, made by those alone.

    Raises:
        RecordError: The calling rank is not in it.
    """
    if not dist.is_initialized() or dist.get_rank() not in ranks:
        raise RecordError(f"a collective of ranks {list(ranks)}")
    if ranks == tuple(range(dist.get_world_size())):
        return dist.group.WORLD
    return dist.new_group(list(ranks), use_local_synchronization=True)


def ranks_of(group: Any) -> list[int]:
    """Return the ranks of a process group, in its order."""
    return list(map(int, dist.get_process_group_ranks(group)))


MOST_BYTES = 1 << 30
"""The longest record that is read."""
NAMESPACES = ("aten", "prims")
"""Whose operations a record may name: PyTorch's own, which compute what they say."""


class RecordError(KernbenchError, ValueError):
    """A record says what cannot be executed."""


_MOST = 1 << 48
_EVENT = {"event": int, "stream": int}
_STEPS: Mapping[str, Mapping[str, type]] = {
    "op": {"op": str, "args": list, "kwargs": dict, "results": list, "stream": int},
    "launch": {"kernel": int, "grid": list, "args": list, "stream": int},
    "collective": {"method": str, "group": list, "args": list, "stream": int},
    "await": {"work": int, "stream": int}, "read": {"bytes": int},
    "mark": _EVENT, "wait": _EVENT, "sync": _EVENT, "seen": _EVENT,
}  # fmt: skip
"""What each kind of step says."""


@dataclass
class Record:
    """One call of a candidate: what it launched, on which memory, and which tensors it returned."""

    steps: list[dict[str, Any]] = field(default_factory=list)
    """Operations, launches, collectives and events of streams, in program order."""
    kernels: list[dict[str, Any]] = field(default_factory=list)
    """Each Triton kernel as TTIR, with its launch options."""
    storages: list[dict[str, Any]] = field(default_factory=list)
    """The memory that was there before: of inputs, by their number, or a state with its bytes."""
    results: Any = None
    """The returned value, its tensors described."""
    inputs: list[Any] = field(default_factory=list)
    """The tensors that were passed, described."""
    remarks: list[str] = field(default_factory=list)
    """What cannot be seen in steps: lazy results, graphs, tensors of other kinds."""
    blobs: bytes = b""

    @property
    def host_reads(self) -> int:
        """How often the host read a value of the device."""
        return sum(step["kind"] == "read" for step in self.steps)

    @property
    def host_bytes(self) -> int:
        """How many bytes of the device's the host read."""
        return sum(int(step["bytes"]) for step in self.steps if step["kind"] == "read")

    def take_state_of(self, other: Record) -> None:
        """Fill the memory that was there before with what another record of the call has in it.

        Raises:
            RecordError: The other one has other memory.
        """
        mine, theirs = (
            [item for item in record.storages if item["origin"] == "state"]
            for record in (self, other)
        )
        if [item["bytes"] for item in mine] != [item["bytes"] for item in theirs]:
            raise RecordError("it begins with other memory than where it has values")
        for item, their in zip(mine, theirs, strict=True):
            item["at"] = len(self.blobs) + their["at"]
        self.blobs += other.blobs

    def write(self) -> bytes:
        """Return the record as bytes."""
        described = {
            key: value for key, value in vars(self).items() if key not in ("blobs", "data")
        }
        head = json.dumps(described).encode()
        body = len(head).to_bytes(8, "big") + head + self.blobs
        return len(body).to_bytes(8, "big") + body

    def _check(self) -> None:
        """Check that its parts are of the kinds that they must be.

        Raises:
            ValueError: They are not.
        """
        _require(
            vars(self), dict.fromkeys(("steps", "kernels", "storages", "inputs", "remarks"), list)
        )
        for tensor in self.inputs:
            _require(tensor, {"of": int})
        for storage in self.storages:
            _require(storage, {"bytes": int, "dtype": str, "origin": str})
        for kernel in self.kernels:
            _require(kernel, {"name": str, "ttir": str})
        for step in self.steps:
            _require(step, {"kind": str})
            if step["kind"] not in _STEPS:
                raise ValueError(f"a step is a {step['kind']!r}")
            _require(step, _STEPS[step["kind"]])
            if "kernel" in step and not 0 <= step["kernel"] < len(self.kernels):
                raise ValueError(f"there is no kernel {step['kernel']}")
        for tensor in descriptions([self.steps, self.inputs, self.results]):
            _require(tensor, {"of": int, "dtype": str, "offset": int, "size": list, "stride": list})
            numbers = [tensor["offset"], *tensor["size"], *tensor["stride"]]
            if any(type(number) is not int or not 0 <= number < _MOST for number in numbers):
                raise ValueError(f"a tensor has the numbers {numbers}")
            if not 0 <= tensor["of"] < len(self.storages):
                raise ValueError(f"there is no storage {tensor['of']}")
            if len(tensor["size"]) != len(tensor["stride"]) or len(tensor.get("bits", ())) != 2:
                raise ValueError("a tensor has a size of other dimensions than its strides")

    @classmethod
    def read_all(cls, data: bytes, count: int) -> list[Record]:
        """Return the records that bytes say, as many as there must be.

        Raises:
            RecordError: They say others.
        """
        parts = []
        while data:
            end = 8 + int.from_bytes(data[:8], "big")
            parts.append(data[8:end])
            data = data[end:]
        if len(parts) != count:
            raise RecordError(f"{len(parts)} records, but there are {count} ranks")
        return list(map(cls.read, parts))

    @classmethod
    def read(cls, data: bytes) -> Record:
        """Return the record that the bytes behind their number say.

        Raises:
            RecordError: They say none.
        """
        try:
            end = 8 + int.from_bytes(data[:8], "big")
            if not 8 < end <= len(data):
                raise ValueError("its head is cut off")
            value = json.loads(data[8:end])
            record = cls(**value, blobs=data[end:])
            record._check()
        except (ValueError, TypeError, RecursionError) as error:
            raise RecordError(f"the record cannot be read: {error}") from None
        return record


def _require(value: Any, keys: Mapping[str, type]) -> None:
    if not isinstance(value, dict):
        raise ValueError(f"{value!r} has no keys")
    for key, kind in keys.items():
        if type(value.get(key)) is not kind:
            raise ValueError(f"{key} is {value.get(key)!r}")


def descriptions(value: Any) -> Iterator[dict[str, Any]]:
    """Yield the tensors that a part of a record describes."""
    if isinstance(value, dict):
        if "of" in value:
            yield value
        else:
            for item in value.values():
                yield from descriptions(item)
    elif isinstance(value, list):
        for entry in value:
            yield from descriptions(entry)


def describe_tensor(tensor: Tensor, storage: int) -> dict[str, Any]:
    """Return a tensor as a view of a numbered storage."""
    return {
        "of": storage,
        "dtype": str(tensor.dtype).removeprefix("torch."),
        "size": list(tensor.shape),
        "stride": list(tensor.stride()),
        "offset": tensor.storage_offset(),
        "bits": [tensor.is_conj(), tensor.is_neg()],
    }


def named_dtype(name: Any) -> torch.dtype:
    """Return the element type of a name.

    Raises:
        RecordError: There is none.
    """
    dtype = getattr(torch, name, None) if isinstance(name, str) else None
    if not isinstance(dtype, torch.dtype):
        raise RecordError(f"there is no element type {name!r}")
    return dtype


def view_of(owner: Tensor, value: dict[str, Any]) -> Tensor:
    """Return the view of a tensor's storage that a description asks for.

    Raises:
        RecordError: It lies outside of the storage.
    """
    dtype = named_dtype(value["dtype"])
    size, stride, offset = value["size"], value["stride"], value["offset"]
    storage = owner.untyped_storage()
    last = offset + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
    if math.prod(size) and (last + 1) * dtype.itemsize > storage.nbytes():
        raise RecordError(f"a view of {size} ends behind its {storage.nbytes()} bytes")
    if owner.dtype == dtype:
        strided = owner.as_strided(size, stride, offset)
    else:
        whole = owner.as_strided((storage.nbytes() // owner.element_size(),), (1,), 0)
        flat = whole.view(torch.uint8)
        flat = flat[: storage.nbytes() // dtype.itemsize * dtype.itemsize]
        strided = flat.view(dtype).as_strided(size, stride, offset)
    conj, neg = value["bits"]
    strided = torch.conj(strided) if conj else strided
    return torch._neg_view(strided) if neg else strided


_PLAIN = (bool, int, str, type(None))
_NAMED = {"dtype": torch.dtype, "layout": torch.layout, "memory_format": torch.memory_format}


def describe(value: Any, tensor: Any) -> Any:
    """Return an argument as JSON; ``tensor`` describes tensors.

    Raises:
        RecordError: It is of another kind.
    """
    if isinstance(value, Tensor):
        return tensor(value)
    if type(value) in _PLAIN:
        return value
    if isinstance(value, float):
        return {"float": float(value).hex() if math.isfinite(value) else str(value)}
    if isinstance(value, (bool, int, str)):  # subclasses, as of enumerations
        return value.__class__.__mro__[-2](value)
    if isinstance(value, (list, tuple)):
        describes = [describe(item, tensor) for item in value]
        return describes if isinstance(value, list) else {"tuple": describes}
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {"dict": {key: describe(item, tensor) for key, item in value.items()}}
    if isinstance(value, complex):
        return {"complex": [value.real, value.imag]}
    if isinstance(value, torch.device):
        return {"device": value.type}
    for name, kind in _NAMED.items():
        if isinstance(value, kind):
            return {name: str(value).removeprefix("torch.")}
    if isinstance(value, torch.Generator):
        return None
    raise RecordError(f"a {type(value).__name__} is no argument that can be recorded")


def restore(value: Any, tensor: Any) -> Any:
    """Return the argument that JSON describes; ``tensor`` makes tensors.

    Raises:
        RecordError: It describes none.
    """
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, list):
        return [restore(item, tensor) for item in value]
    if not isinstance(value, dict):
        raise RecordError(f"{value!r} describes no argument")
    if "of" in value:
        return tensor(value)
    if len(value) == 1:
        ((kind, name),) = value.items()
        if kind == "float":
            return float.fromhex(name) if "x" in name else float(name)
        if kind == "tuple":
            return tuple(restore(item, tensor) for item in name)
        if kind == "dict":
            return {key: restore(value, tensor) for key, value in name.items()}
        if kind == "complex":
            return complex(*name)
        if kind == "device":
            return torch.device(name)
        result = getattr(torch, name, None) if kind in _NAMED and isinstance(name, str) else None
        if result is not None and isinstance(result, _NAMED[kind]):
            return result
    raise RecordError(f"{value!r} describes no argument")
