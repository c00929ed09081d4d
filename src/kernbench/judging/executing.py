"""Executing the record of a candidate: the judge's own run of it, on memory of the judge's own."""

from __future__ import annotations

import ctypes
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch._ops import OpOverload

from kernbench.errors import KernbenchError
from kernbench.judging.comparing import WrongElement
from kernbench.judging.evidence import Writes, memory_of
from kernbench.judging.record import (
    METHODS,
    NAMESPACES,
    Record,
    RecordError,
    descriptions,
    group_of,
    named_dtype,
    options_of,
    restore,
    view_of,
)
from kernbench.judging.tasks import tensors_of
from kernbench.judging.values import begin_random_numbers
from kernbench.runtime_api import KernelPlan, LivePlan
from kernbench.sanitizer import TouchPart, TraceTouches, first_common, strided_spans
from kernbench.triton_backend import (
    MAX_PROGRAMS,
    KernelBinary,
    active_launcher,
    build_binary,
    check_grid,
)

_MOST_STORAGE_BYTES = 1 << 36
_EMPTY = ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided")
_POISON = 0xFF
"""A byte of memory that is not written yet: NaN of floats, -1 of integers."""
_MOST_LOOKED_AT = 1 << 28
"""The longest tensor of which every byte is looked for."""
_MOST_WHOLE_BYTES = 1 << 26
"""What a launch may touch, all of whose programs are executed where only a part of them should."""
_PART_BYTES = 1 << 21
"""What a part of a launch's programs touches."""
_FEW_PROGRAMS = 4
_REFUSED = ("from_file", "_print", "set_data", "record_stream", "_cudnn_init_dropout_state")


_Grid = tuple[int, int, int]
_Span = tuple[int, int] | tuple[int, int, TouchPart, int]
"""From one byte to another: all between, or those of a kernel's access, counted from a byte."""


@dataclass
class Execution:
    """What a record came to."""

    results: Any
    """Results in the form that the candidate returned; None where that is no tensor."""
    inputs: list[Tensor]
    """What was passed, as the record left it."""


class Executor:
    """Executes one record, in a simulated process and on its device."""

    def __init__(
        self,
        record: Record,
        inputs: Sequence[Tensor] = (),
        *,
        backwards: bool = False,
        seed: int | None = None,
    ) -> None:
        """Take the memory that a record begins with; ``inputs`` are the judge's, none: empty ones.

        ``backwards``: whether the last program of a launch has the place of the first; ``seed``:
        draws which programs are executed of a launch whose results no other step uses; None: all.

        Raises:
            RecordError: The record is none of a call with such inputs.
        """
        self._record, self._index, self._seed = record, 0, seed
        self.poison = _POISON if seed is None else poison_of(seed)
        """A byte of memory that is not written yet."""
        self.writes: Writes = {}
        """The arguments that each launch writes."""
        self.overflow = ""
        """Arithmetic of a launch that does not fit, and becomes part of an address."""
        self._spans: dict[int, list[_Span]] = {}
        """The bytes that steps write, by memory."""
        self._touched: dict[int, list[_Span]] = {}
        """The bytes that steps read or write."""
        self._traced: dict[KernelPlan, TraceTouches] = {}
        self._events: dict[int, Any] = {}
        self._works: dict[int, Any] = {}
        """Collectives by the number of their step."""
        self._groups: dict[tuple[int, ...], Any] = {}
        self._streams: dict[int, Any] = {}
        self._memory: dict[int, Tensor] = {}
        self._launcher: Any = active_launcher()
        try:
            self.binaries = [
                build_binary(
                    turned(str(kernel["ttir"])) if backwards else str(kernel["ttir"]),
                    str(kernel["name"]),
                    int(kernel["num_warps"]),
                    int(kernel["num_stages"]),
                    tuple((str(name), str(value)) for name, value in kernel["constants"]),
                )
                for kernel in record.kernels
            ]
            for number, storage in enumerate(record.storages):
                self._take(number, storage)
            for argument, mine in zip(record.inputs, inputs, strict=bool(inputs)):
                place = self._tensor(argument)
                if place.shape != mine.shape or place.dtype != mine.dtype:
                    raise RecordError("the record is of other inputs")
                place.copy_(mine)
        except (KeyError, TypeError, ValueError, IndexError, RuntimeError) as error:
            raise RecordError(f"the record cannot be executed: {error!r}") from None
        self._before = dict(self._memory)

    def _take(self, number: int, value: dict[str, Any]) -> None:
        size_bytes, origin = int(value["bytes"]), value["origin"]
        if origin == "made":
            return
        if not 0 <= size_bytes <= _MOST_STORAGE_BYTES:
            raise RecordError(f"a storage of {size_bytes} bytes")
        dtype, device = named_dtype(value["dtype"]), "cpu" if origin == "host" else "cuda"
        count = size_bytes // dtype.itemsize
        if "at" in value:
            start = int(value["at"])
            data = bytearray(self._record.blobs[start : start + count * dtype.itemsize])
            if len(data) < count * dtype.itemsize:
                raise RecordError("the bytes of a storage are cut off")
            tensor = torch.frombuffer(data, dtype=dtype) if data else torch.empty(0, dtype=dtype)
            self._memory[number] = tensor.to(device)
        else:
            self._memory[number] = torch.zeros(count, dtype=dtype, device=device)

    def run(self) -> Execution:
        """Execute all steps, in program order.

        Raises:
            RecordError: A step cannot be executed.
            KernbenchError: A step does what a check of the sanitizer refuses.
        """
        self._memory = dict(self._before)
        begin_random_numbers()  # what it draws is what the reference draws
        self.writes.clear()
        self._spans.clear()
        self._touched.clear()
        do = {
            "op": self._operate, "launch": self._launch, "mark": self._mark, "wait": self._wait,
            "collective": self._collect, "await": self._await,
        }  # fmt: skip
        self._works.clear()
        for index, step in enumerate(self._record.steps):
            kind = step.get("kind")
            if kind in do:
                try:
                    self._index = index
                    with torch.cuda.stream(self._stream(step["stream"])):
                        do[kind](step)
                except KernbenchError:
                    raise
                except (KeyError, TypeError, AttributeError, ValueError) as error:
                    raise RecordError(f"step {index} cannot be executed: {error!r}") from None
            elif kind == "sync":
                self._stream(step["stream"]).synchronize()
            elif kind == "seen":
                if step["event"] in self._events:
                    self._events[step["event"]].synchronize()
            elif kind != "read":
                raise RecordError(f"step {index} is a {kind!r}")
        results = restore(self._record.results, self._tensor)
        return Execution(results, [self._tensor(item) for item in self._record.inputs])

    def unwritten(self, origin: str) -> dict[int, str]:
        """Return which bytes of a result no step of the run has written, by the input it lies in.

        ``origin``: of the results that are asked for, as in records; all but inputs are 0.
        """
        says: dict[int, str] = {}
        for description in descriptions(self._record.results):
            storage = self._record.storages[description["of"]]
            if storage["origin"] == origin:
                reached, end = _uncovered(description, self._spans)
                if reached < end:
                    what = f"nothing writes bytes {reached:,} to {end:,} of its result"
                    says.setdefault(storage.get("input", 0), what)
        return says

    def unread(self) -> dict[int, str]:
        """Return which bytes of which inputs no step of the run has touched, by their number."""
        missed = [_uncovered(item, self._touched) for item in self._record.inputs]
        return {
            index: f"nothing reads bytes {reached:,} to {end:,} of input {index}"
            for index, (reached, end) in enumerate(missed)
            if reached < end
        }

    def put_back(self) -> list[int]:
        """Return which inputs steps of the run have written."""
        memory = [item["of"] for item in self._record.inputs]
        return [index for index, number in enumerate(memory) if number in self._spans]

    def writer_of(self, wrong: WrongElement) -> str:
        """Return which program stores the first wrong element, by executing the record again."""
        sanitizer = self._launcher.run.sanitizer
        if wrong.place is None or sanitizer is None:
            return ""
        with sanitizer.keeping_writers() as writers:
            result = tensors_of(self.run().results)[wrong.result]
        place = torch.unravel_index(torch.tensor(wrong.place), result.shape)
        at = sum(int(i) * stride for i, stride in zip(place, result.stride(), strict=True))
        who = writers.last(result.data_ptr() + at * result.element_size())
        return f"{who} stores it" if who else "no program of a kernel stores it"

    def _tensor(self, value: dict[str, Any]) -> Tensor:
        owner = self._memory.get(value["of"])
        if owner is None:
            raise RecordError(f"a step uses storage {value['of']}, which nothing has made yet")
        return view_of(owner, value)

    def _stream(self, number: int) -> Any:
        if not number:
            return torch.cuda.default_stream()
        if number not in self._streams:
            self._streams[number] = torch.cuda.Stream()
        return self._streams[number]

    def _operate(self, step: dict[str, Any]) -> None:
        overload = overload_of(step["op"])
        args = restore(step["args"], self._tensor)
        kwargs = {key: restore(value, self._tensor) for key, value in step["kwargs"].items()}
        for index, argument in enumerate(overload._schema.arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                written = kwargs.get(argument.name, args[index] if index < len(args) else None)
                _refuse_of_host(step["op"], tensors_of(written))
        try:
            result = overload(*args, **kwargs)
        except (RuntimeError, IndexError, ValueError) as error:
            raise RecordError(f"{step['op']}: {error}") from error
        built = list(result) if isinstance(result, (list, tuple)) else [result]
        for description in descriptions([step["args"], step["kwargs"]]):
            self._touched.setdefault(description["of"], []).append(_span(description))
        for description in descriptions(step["results"]):
            if parts_of(step["op"])[1] not in _EMPTY:
                self._spans.setdefault(description["of"], []).append(_span(description))
        for tensor, values in zip(built, step["results"], strict=False):
            if values is None or not isinstance(tensor, Tensor):
                continue
            _refuse_of_host(step["op"], [tensor])
            if values["of"] not in self._memory:
                self._memory[values["of"]] = tensor
                if parts_of(step["op"])[1] in _EMPTY and self._launcher.run.has_data:
                    # Not by an operation: the memory stays one that nothing has written.
                    storage = tensor.untyped_storage()
                    ctypes.memset(storage.data_ptr(), self.poison, storage.nbytes())

    def _launch(self, step: dict[str, Any]) -> None:
        binary = self.binaries[step["kernel"]]
        x, y, z = step["grid"]
        grid = check_grid(binary.name, (x, y, z), ("kernbench", (MAX_PROGRAMS,) * 3))
        binary.check_room(self._launcher)
        args = tuple(restore(item, self._tensor) for item in step["args"])
        if len(args) != len(binary.signature):
            raise RecordError(f"kernel {binary.name} has {len(args)} arguments in the record")
        _, plan = self._launcher.planned(binary, grid, args)
        self.writes[self._index] = frozenset(at for at, _, _, writes in plan.pointers if writes)
        if not isinstance(plan, LivePlan) and plan.trace.overflows:
            self.overflow = str(plan.trace.overflows[0])
        if self._seed is not None:
            binary, grid = self._part_of(self._seed, step, plan, binary, grid)
        for at, low, high, writes in plan.pointers:
            for values in descriptions(step["args"][at]):
                start, end = _span({**values, "size": [], "stride": []})[0], 1 << 62
                span = (0, end) if isinstance(plan, LivePlan) else (start + low, start + high)
                for written, spans in enumerate((self._touched, self._spans)[: 1 + writes]):
                    parts = self._parts(plan, at, writes=bool(written))
                    spans.setdefault(values["of"], []).extend(
                        [span]
                        if parts is None
                        else [(start + part.low, start + part.high, part, start) for part in parts]
                    )
        self._launcher.launch(binary, grid, args)

    def _part_of(
        self, seed: int, step: Any, plan: KernelPlan | LivePlan, binary: KernelBinary, grid: _Grid
    ) -> tuple[KernelBinary, _Grid]:
        """Return a kernel of a few programs of a launch, where no other step needs the rest.

        Raises:
            RecordError: All are needed, and they touch much.
        """
        written = memory_of([step["args"][at] for at in self.writes[self._index]])
        later = self._record.steps[self._index + 1 :]
        used = memory_of([[item.get("args"), item.get("kwargs")] for item in later])
        touched = sum(high - low for _, low, high, _ in plan.pointers)
        is_alone = written.isdisjoint({*used, *self._before, *self._spans})
        if isinstance(plan, LivePlan) or plan.has_atomics or not is_alone:
            if touched > _MOST_WHOLE_BYTES:
                raise RecordError(f"all programs of {binary.name} are needed")
            return binary, grid
        count = math.prod(grid)
        num = min(count, max(_FEW_PROGRAMS, count * _PART_BYTES // max(touched, 1)))
        stride = max(count // max(num, 1), 1)
        text = sampled(binary.ttir, grid, stride, seed % stride)
        own = build_binary(text, binary.name, binary.num_warps, binary.num_stages, binary.constants)
        return own, (num, 1, 1)

    def _parts(
        self, plan: KernelPlan | LivePlan, at: int, *, writes: bool
    ) -> list[TouchPart] | None:
        """Return what a launch touches of an argument; None: that is not known."""
        if isinstance(plan, LivePlan):
            return None
        traced = self._traced.get(plan)
        if traced is None:
            traced = self._traced[plan] = TraceTouches(plan.trace)
        return traced.parts(at, writes=writes)

    def _collect(self, step: dict[str, Any]) -> None:
        ranks = tuple(map(int, step["group"]))
        if step["method"] not in METHODS:
            raise RecordError(f"a step calls {step['method']!r}, which is no collective")
        if ranks not in self._groups:
            self._groups[ranks] = group_of(ranks)

        def argument(value: Any) -> Any:
            if isinstance(value, dict) and "options" in value:
                return options_of(value["options"])
            return list(map(argument, value)) if isinstance(value, list) else restore(value, tensor)

        def tensor(passed: dict[str, Any]) -> Tensor:
            for spans in (self._touched, self._spans):
                spans.setdefault(passed["of"], []).append(_span(passed))
            return self._tensor(passed)

        call = getattr(self._groups[ranks], step["method"])
        self._works[self._index] = call(*map(argument, step["args"]))

    def _await(self, step: dict[str, Any]) -> None:
        work = self._works.get(step["work"])
        if work is not None:
            work.wait()

    def _mark(self, step: dict[str, Any]) -> None:
        self._events[step["event"]] = torch.cuda.current_stream().record_event()

    def _wait(self, step: dict[str, Any]) -> None:
        if step["event"] in self._events:
            torch.cuda.current_stream().wait_event(self._events[step["event"]])


def _refuse_of_host(op: str, tensors: Sequence[Tensor]) -> None:
    """Refuse what an operation computes on the host, whose work takes no time of the device.

    Raises:
        RecordError: A tensor lies there.
    """
    if not all(tensor.is_cuda for tensor in tensors):
        raise RecordError(f"{op} computes on the host")


_NUM_PROGRAMS = re.compile(r"tt\.get_num_programs ([xyz]) : i32")
_PROGRAM_ID = re.compile(r"^( *)(%\w+) = tt\.get_program_id ([xyz]) : i32", re.MULTILINE)


def poison_of(seed: int) -> int:
    """Return a byte that no kernel can foresee: what a part of its programs left is known by it."""
    return 0x81 + seed % 0x7E


def turned(ttir: str) -> str:
    """Return a kernel whose programs do each other's work, the last that of the first."""
    return _renumbered(
        ttir,
        lambda own, axis: [
            f"{own}.at = tt.get_program_id {axis} : i32",
            f"{own}.count = tt.get_num_programs {axis} : i32",
            f"{own}.one = arith.constant 1 : i32",
            f"{own}.last = arith.subi {own}.count, {own}.one : i32",
            f"arith.subi {own}.last, {own}.at : i32",
        ],
    )


def sampled(ttir: str, grid: _Grid, stride: int, first: int) -> str:
    """Return a kernel whose programs do the work of each ``stride``-th of a grid."""
    sizes = dict(zip("xyz", grid, strict=True))
    inner = {"x": 1, "y": grid[0], "z": grid[0] * grid[1]}
    return _renumbered(
        _NUM_PROGRAMS.sub(lambda match: f"arith.constant {sizes[match[1]]} : i32", ttir),
        lambda own, axis: [
            f"{own}.own = tt.get_program_id x : i32",
            f"{own}.stride = arith.constant {stride} : i32",
            f"{own}.first = arith.constant {first} : i32",
            f"{own}.inner = arith.constant {inner[axis]} : i32",
            f"{own}.size = arith.constant {sizes[axis]} : i32",
            f"{own}.past = arith.muli {own}.own, {own}.stride : i32",
            f"{own}.at = arith.addi {own}.past, {own}.first : i32",
            f"{own}.outer = arith.divsi {own}.at, {own}.inner : i32",
            f"arith.remsi {own}.outer, {own}.size : i32",
        ],
    )


def _renumbered(ttir: str, lines_of: Callable[[str, str], list[str]]) -> str:
    """Return a kernel with numbers of programs by other lines, the last of which is a value."""

    def replaced(match: re.Match[str]) -> str:
        indent, name, axis = match.groups()
        *lines, value = lines_of(f"%turned.{match.start()}", axis)
        return "\n".join(indent + line for line in (*lines, f"{name} = {value}"))

    return _PROGRAM_ID.sub(replaced, ttir)


def _span(value: dict[str, Any]) -> tuple[int, int]:
    """Return from which byte of its memory to which a described tensor lies."""
    steps = zip(value["size"], value["stride"], strict=True)
    last = value["offset"] + sum((size - 1) * stride for size, stride in steps)
    itemsize = named_dtype(value["dtype"]).itemsize
    is_empty = 0 in value["size"]
    return value["offset"] * itemsize, (last + (not is_empty)) * itemsize


def _uncovered(value: dict[str, Any], spans: Mapping[int, list[_Span]]) -> tuple[int, int]:
    """Return the first byte of a described tensor that is in no span, and where the next one is.

    Returns the end of the tensor twice if there is none.
    """
    start, end = _span(value)
    mine = spans.get(value["of"], [])
    # A long tensor is not looked at closely.
    is_close = end - start <= _MOST_LOOKED_AT
    inside = [
        span[2].spans() + span[3] if len(span) > 2 and is_close else np.array([span[:2]])
        for span in mine
    ]
    covered = np.concatenate([np.array([[start, start], [end, end]]), *inside])
    covered = np.clip(covered[np.argsort(covered[:, 0], kind="stable")], start, end)
    missing = np.stack([np.maximum.accumulate(covered[:-1, 1]), covered[1:, 0]], axis=1)
    missing = missing[missing[:, 0] < missing[:, 1]]
    itemsize = named_dtype(value["dtype"]).itemsize
    needed = strided_spans(value["offset"], value["size"], value["stride"], itemsize)
    byte = first_common(missing, needed)
    if byte is None:
        return end, end
    return byte, int(missing[np.searchsorted(missing[:, 1], byte, side="right"), 1])


def parts_of(name: Any) -> list[str]:
    """Return namespace, operation and overload of a name; of three parts if it is one."""
    return [*str(name).split("."), "", "", ""][:3]


def overload_of(name: str) -> OpOverload:
    """Return PyTorch's operation of a name such as ``aten.add.Tensor``.

    Raises:
        RecordError: It is none that a record may name.
    """
    parts = parts_of(name)
    overload: Any = torch.ops
    if parts[0] in NAMESPACES and parts[1] not in _REFUSED:
        for part in parts:
            overload = getattr(overload, part, None)
    if not isinstance(overload, OpOverload):
        raise RecordError(f"a step executes {name}, which a record may not name")
    return overload
