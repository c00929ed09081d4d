"""What a record shows of how its results came about: what they depend on, and whose kernels ran."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from kernbench.judging.record import Record

_TO_HALF = re.compile(r"arith\.truncf .*: tensor<[^>]*xf32> to tensor<[^>]*x(bf16|f16|f8\w*)>")
_REDUCED = re.compile(r"tt\.dot .*inputPrecision = tf32\b|tt\.dot .*inputPrecision = tf32,")
_MOST_PLACES = 1 << 16
"""The most elements of results whose memory is compared element by element."""
_MAKES = ("aten.empty", "aten.new_empty", "aten.clone", "aten.copy_", "aten._to_copy")
"""Operations that make memory, or move what is there."""
_NARROW = ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int8")


@dataclass
class Evidence:
    """What a record's results come from."""

    depends_on_inputs: bool
    depends_on_host: int
    """Bytes of the host's that reach the results; what it computed, perhaps."""
    from_before: bool
    """Whether a result lies in memory that was there before the call, and no step writes it."""
    own_kernels: set[str] = field(default_factory=set)
    """Triton kernels that results come from."""
    library: set[str] = field(default_factory=set)
    """PyTorch's operations that results come from, those that only make memory left out."""
    narrowed: str = ""
    """A type of fewer bits that values of float32 pass through, where all else is float32."""
    reduced: bool = False
    """Whether a product of float32 is of TF32."""
    last_kernel: int | None = None
    """The kernel that wrote a result last; None: an operation or a collective did."""


Writes = dict[int, frozenset[int]]


def evidence_of(record: Record, writes: Writes | None = None) -> Evidence:
    """Return what the results of a record come from, by memory: a step's from all that it reads.

    ``writes``: by launch, which of its arguments it writes, as an execution has shown; without, it
    may write all of them.
    """
    results = {each["of"] for each in descriptions(record.results)}
    writers: dict[int, list[int]] = {}
    reads: list[set[int]] = []
    for index, step in enumerate(record.steps):
        used = {each["of"] for each in descriptions([step.get("args"), step.get("kwargs")])}
        made = {each["of"] for each in descriptions(step.get("results"))}
        reads.append(used)
        # Launches, and operations that return nothing, may write whatever they are given.
        written = made or used
        if writes is not None and index in writes:
            written = {
                each["of"] for at in writes[index] for each in descriptions(step["args"][at])
            }
        for each in written:
            writers.setdefault(each, []).append(index)
    reached, steps, waiting = set(results), set(), list(results)
    while waiting:
        for index in writers.get(waiting.pop(), ()):
            if index not in steps:
                steps.add(index)
                new = reads[index] - reached
                reached |= new
                waiting += new
    origins = {number: each.get("origin") for number, each in enumerate(record.storages)}
    found = Evidence(
        depends_on_inputs=any(origins.get(each) == "input" for each in reached)
        # What others send is of their inputs.
        or any(record.steps[each]["kind"] == "collective" for each in steps),
        depends_on_host=sum(
            record.storages[each]["bytes"] for each in reached if origins.get(each) == "host"
        ),
        from_before=any(origins.get(each) == "state" and not writers.get(each) for each in results),
    )
    for index in sorted(steps):
        step = record.steps[index]
        if step["kind"] == "launch":
            kernel = record.kernels[step["kernel"]]
            found.own_kernels.add(kernel["name"])
        elif not str(step.get("op", "")).startswith(("aten.empty", "aten.new_empty")):
            found.library.add(str(step.get("op", step.get("method"))))
    last = max((writers[each][-1] for each in results if writers.get(each)), default=None)
    if last is not None and record.steps[last]["kind"] == "launch":
        found.last_kernel = record.steps[last]["kernel"]
    kinds = {record.storages[each]["dtype"] for each in reached if origins.get(each) == "input"}
    kinds |= {each["dtype"] for each in descriptions(record.results)}
    if kinds <= {"float32", "int32", "int64", "bool"}:
        found.narrowed = _narrowed(record, steps)
    found.reduced = any(_REDUCED.search(each["ttir"]) for each in record.kernels)
    return found


def work_of(record: Record) -> set[str]:
    """Return the kernels, operations and collectives of a record, but those that make memory."""
    names = {record.kernels[e["kernel"]]["name"] for e in record.steps if e["kind"] == "launch"}
    for each in record.steps:
        name = str(each.get("op") or each.get("method") or "")
        if each["kind"] in ("op", "collective") and not name.startswith(_MAKES):
            names.add(name)
    return names


def shared_memory(record: Record) -> str:
    """Return what a result shares memory with: ``an input``, ``another result``; else nothing."""
    inputs = {each["of"] for each in record.inputs}
    by_memory: dict[int, list[set[int]]] = {}
    results = [each for each in descriptions(record.results) if 0 not in each["size"]]
    if any(each["of"] in inputs for each in results):
        return "an input"
    for given in results:
        if sum(each["of"] == given["of"] for each in results) > 1 and (
            math.prod(given["size"]) <= _MOST_PLACES
        ):
            places = {given["offset"]}
            for size, stride in zip(given["size"], given["stride"], strict=True):
                places = {at + stride * index for at in places for index in range(size)}
            taken = by_memory.setdefault(given["of"], [])
            if not all(places.isdisjoint(each) for each in taken):
                return "another result"
            taken.append(places)
    return ""


def _narrowed(record: Record, steps: set[int]) -> str:
    used = {
        record.steps[each]["kernel"] for each in steps if record.steps[each]["kind"] == "launch"
    }
    for each in used:
        match = _TO_HALF.search(record.kernels[each]["ttir"])
        if match:
            return f"{match[1]} in kernel {record.kernels[each]['name']}"
    for index in steps:
        for each in descriptions(record.steps[index].get("results")):
            if each["dtype"] in _NARROW:
                return f"{each['dtype']} by {record.steps[index].get('op')}"
    return ""


def descriptions(value: Any) -> Iterator[dict[str, Any]]:
    """Yield the tensors that a part of a record describes."""
    if isinstance(value, dict):
        if "of" in value:
            yield value
        else:
            for each in value.values():
                yield from descriptions(each)
    elif isinstance(value, list):
        for each in value:
            yield from descriptions(each)
