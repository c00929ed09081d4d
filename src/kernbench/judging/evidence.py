"""What a record shows of how its results came about: what they depend on, and whose kernels ran."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import Any

from kernbench.judging.record import Record, descriptions

_ROUNDED_TO = re.compile(
    r"(?:arith\.truncf|tt\.fp_to_fp) .*: tensor<[^>]*> (?:to|->) tensor<[^>]*x(bf16|f16|f8\w*)>"
)
_REDUCED = re.compile(r"tt\.dot .*inputPrecision = tf32\b")
_MOST_PLACES = 1 << 16
"""The most elements of results whose memory is compared element by element."""
_MAKES = ("aten.empty", "aten.new_empty", "aten.clone", "aten.copy_", "aten._to_copy")
"""Operations that make memory, or move what is there."""
_ONLY_WRITES = ("aten.copy_.", "aten.fill_.", "aten.zero_.")
"""Operations that do not read the first of their arguments."""
_BITS = {
    "float64": 52, "float32": 23, "float16": 10, "f16": 10, "bfloat16": 7, "bf16": 7, "int8": 7,
    "float8_e4m3fn": 3, "float8_e4m3fnuz": 3, "float8_e5m2": 2, "float8_e5m2fnuz": 2,
}  # fmt: skip
"""How many bits of a number its type keeps behind the first, by PyTorch's names and TTIR's."""
_FEWEST_BITS = 2
"""The same of any other type that a kernel rounds to, which has 8 bits or fewer."""


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
    """A type of fewer bits than any of the inputs and results have that values pass through."""
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
    results = memory_of(record.results)
    writers: dict[int, list[int]] = {}
    reads: list[set[int]] = []
    for index, step in enumerate(record.steps):
        used = memory_of([step.get("args"), step.get("kwargs")])
        reads.append(used)
        # Launches, and operations that return nothing, may write whatever they are given.
        written = memory_of(step.get("results")) or used
        if writes is not None and index in writes:
            written = memory_of([step["args"][at] for at in writes[index]])
        for item in written:
            writers.setdefault(item, []).append(index)
    reached, steps, waiting = set(results), set(), list(results)
    while waiting:
        for index in writers.get(waiting.pop(), ()):
            if index not in steps:
                steps.add(index)
                new = reads[index] - reached
                reached |= new
                waiting += new
    origins = {number: storage.get("origin") for number, storage in enumerate(record.storages)}
    evidence = Evidence(
        depends_on_inputs=any(origins.get(entry) == "input" for entry in reached)
        # What others send is of their inputs.
        or any(record.steps[step]["kind"] == "collective" for step in steps),
        depends_on_host=sum(
            record.storages[entry]["bytes"] for entry in reached if origins.get(entry) == "host"
        ),
        from_before=any(
            origins.get(entry) == "state" and not writers.get(entry) for entry in results
        ),
    )
    for index in sorted(steps):
        step = record.steps[index]
        if step["kind"] == "launch":
            kernel = record.kernels[step["kernel"]]
            evidence.own_kernels.add(kernel["name"])
            evidence.reduced |= bool(_REDUCED.search(kernel["ttir"]))
        elif not str(step.get("op", "")).startswith(("aten.empty", "aten.new_empty")):
            evidence.library.add(str(step.get("op", step.get("method"))))
    last = max((writers[entry][-1] for entry in results if writers.get(entry)), default=None)
    if last is not None and record.steps[last]["kind"] == "launch":
        evidence.last_kernel = record.steps[last]["kernel"]
    kinds = {record.storages[entry]["dtype"] for entry in reached if origins.get(entry) == "input"}
    kinds |= {description["dtype"] for description in descriptions(record.results)}
    floats = {kind for kind in kinds if "float" in kind}
    if floats and kinds - floats <= {"int32", "int64", "bool"}:
        least = min(_BITS.get(kind, _FEWEST_BITS) for kind in floats)
        evidence.narrowed = _narrowed(record, steps, least)
    return evidence


def unread_inputs(record: Record) -> frozenset[int]:
    """Return the numbers of the inputs that no operation of a record reads."""
    read: set[int] = set()
    for step in record.steps:
        args = step.get("args", ())
        read |= memory_of(args[1:] if str(step.get("op")).startswith(_ONLY_WRITES) else args)
        read |= memory_of([v for name, v in step.get("kwargs", {}).items() if name != "out"])
    return frozenset(at for at, item in enumerate(record.inputs) if item["of"] not in read)


def work_of(record: Record) -> set[str]:
    """Return the kernels, operations and collectives of a record, but those that make memory."""
    names = {record.kernels[e["kernel"]]["name"] for e in record.steps if e["kind"] == "launch"}
    for step in record.steps:
        name = str(step.get("op") or step.get("method") or "")
        if step["kind"] in ("op", "collective") and not name.startswith(_MAKES):
            names.add(name)
    return names


def calls_of(record: Record) -> list[Any]:
    """Return what a record calls, whatever the numbers of its memory are."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: plain(item) for key, item in value.items() if key != "of"}
        return list(map(plain, value)) if isinstance(value, list) else value

    return [
        (
            plain(
                {key: step[key] for key in ("kind", "op", "args", "kwargs", "grid") if key in step}
            ),
            record.kernels[step["kernel"]] if step["kind"] == "launch" else None,
        )
        for step in record.steps
        if step["kind"] in ("op", "launch", "collective")
    ]


def shared_memory(record: Record, room: frozenset[int] = frozenset()) -> str:
    """Return what a result shares memory with: ``an input``, ``another result``; else nothing.

    ``room``: the numbers of the inputs that results may lie in.
    """
    inputs = {item["of"] for at, item in enumerate(record.inputs) if at not in room}
    by_memory: dict[int, list[set[int]]] = {}
    results = [
        description for description in descriptions(record.results) if 0 not in description["size"]
    ]
    if any(values["of"] in inputs for values in results):
        return "an input"
    for values in results:
        if sum(item["of"] == values["of"] for item in results) > 1 and (
            math.prod(values["size"]) <= _MOST_PLACES
        ):
            places = {values["offset"]}
            for size, stride in zip(values["size"], values["stride"], strict=True):
                places = {at + stride * index for at in places for index in range(size)}
            taken = by_memory.setdefault(values["of"], [])
            if not all(places.isdisjoint(numbers) for numbers in taken):
                return "another result"
            taken.append(places)
    return ""


def _narrowed(record: Record, steps: set[int], least: int) -> str:
    """Return what has fewer than the ``least`` bits of a task's types; empty if nothing has."""
    used = {
        record.steps[step]["kernel"] for step in steps if record.steps[step]["kind"] == "launch"
    }
    for item in used:
        for name in _ROUNDED_TO.findall(record.kernels[item]["ttir"]):
            if _BITS.get(name, _FEWEST_BITS) < least:
                return f"{name} in kernel {record.kernels[item]['name']}"
    for index in steps:
        for description in descriptions(record.steps[index].get("results")):
            if _BITS.get(description["dtype"], least) < least:
                return f"{description['dtype']} by {record.steps[index].get('op')}"
    return ""


def memory_of(value: Any) -> set[int]:
    """Return the numbers of the storages that described tensors lie in."""
    return {description["of"] for description in descriptions(value)}
