"""Random Triton kernels whose numbers are small integers, so that every order of summing is exact.

    python -m tests.integration.random_kernels [--first SEED] [--count N] [--check]

runs a campaign and prints the seeds, and the source, of kernels that give other numbers than numpy.
"""

from __future__ import annotations

import argparse
import importlib.util
import random
import tempfile
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import kernbench
from tests.integration.numpy_language import run_programs

Choose = Callable[[int], int]
"""Gives a number below its argument."""

LIMIT = 1 << 20
"""What no element may reach: float32 counts exactly up to 2**24."""
NUM_INPUTS = 3
HALVES = ("h0", "h1")
"""Inputs of float16."""
INPUT_SIZE = 1 << 15
INDICES = 64
SLOT = 32 * 32
"""Elements of the output that one store of a program owns."""
SIDES = (16, 32)


@dataclass(frozen=True)
class Tile:
    """A tile, or an expression of one: its source, its shape, and what no element exceeds."""

    text: str
    shape: tuple[int, ...]
    bound: int


@dataclass
class Kernel:
    """A kernel's source and how it is launched."""

    source: str
    grid: tuple[int, int]
    scalars: dict[str, int]
    num_slots: int


@dataclass
class _Writer:
    choose: Choose
    lines: list[str] = field(default_factory=list)
    depth: int = 1
    tiles: list[Tile] = field(default_factory=list)
    loops: list[tuple[str, int]] = field(default_factory=list)
    """Loop variables in scope, each with what it does not exceed."""
    num_names: int = 0
    num_slots: int = 0

    def line(self, text: str) -> None:
        self.lines.append("    " * self.depth + text)

    def name(self) -> str:
        self.num_names += 1
        return f"t{self.num_names}"

    def pick(self, options: Any) -> Any:
        return options[self.choose(len(options))]

    # -- expressions ---------------------------------------------------------------------------

    def start(self, side: int) -> str:
        """Return where along an axis a tile of that side begins."""
        options = ["0", f"pid * {side}", f"qid * {side}", "3", f"(pid + qid) * {side}", "N - 8"]
        for name, _ in self.loops:
            options += [name, f"{name} * 2 + pid", f"{name} + qid * {side}"]
        return str(self.pick(options))

    def load(self, shape: tuple[int, ...]) -> Tile:
        is_half = self.choose(5) == 0
        source = self.pick(HALVES) if is_half else f"x{self.choose(NUM_INPUTS)}"
        lanes = [f"({self.start(side)} + tl.arange(0, {side}))" for side in shape]
        if self.choose(5) == 0:
            lanes[0] = f"tl.load(index + tl.arange(0, {shape[0]}) + pid)"
        elif self.choose(5) == 0:
            lanes[-1] = f"({lanes[-1]} % {self.pick((5, 16, 24))})"
        if len(shape) == 1:
            at, (limited,) = f"{lanes[0]} * {self.pick((1, 3, 64))}", lanes
        else:
            strides = self.pick(((64, 1), (1, 64), (33, 1), (0, 1), (64, 2)))
            at = f"{lanes[0]}[:, None] * {strides[0]} + {lanes[1]}[None, :] * {strides[1]}"
            limited = f"{lanes[1]}[None, :]" if self.choose(2) else f"{lanes[0]}[:, None]"
        mask = ""
        if self.choose(2):
            mask = f", mask={limited} < {self.pick(('N', 'K', '20'))}, other={self.choose(2)}"
        text = f"tl.load({source} + {at}{mask})"
        return Tile(f"tl.cast({text}, tl.float32)" if is_half else text, shape, 3)

    def expression(self, shape: tuple[int, ...], depth: int) -> Tile:
        fitting = [tile for tile in self.tiles if tile.shape == shape]
        if fitting and self.choose(3) == 0:
            return Tile(*vars(self.pick(fitting)).values())
        if depth == 0:
            return self.load(shape)
        kinds = [self.load, self.binary, self.select, self.scanned]
        kinds += [self.product, self.product, self.halves, self.transposed, self.widened]
        kinds += [self.reshaped, self.ordered, self.gathered]
        if len(shape) == 1:
            kinds = [self.load, self.binary, self.select, self.reduced, self.scanned]
            kinds += [self.counted, self.ordered]
        kind = self.pick(kinds)
        if kind == self.load:
            return self.load(shape)
        result: Tile = kind(shape, depth - 1)
        return result if result.bound < LIMIT else self.load(shape)

    def binary(self, shape: tuple[int, ...], depth: int) -> Tile:
        a, b = self.expression(shape, depth), self.expression(shape, depth)
        kind = self.choose(5)
        if kind < 2:
            return Tile(f"({a.text} {'+-'[kind]} {b.text})", shape, a.bound + b.bound)
        if kind == 2:
            return Tile(f"({a.text} * {b.text})", shape, a.bound * b.bound)
        function = ("tl.maximum", "tl.minimum")[kind - 3]
        return Tile(f"{function}({a.text}, {b.text})", shape, max(a.bound, b.bound))

    def select(self, shape: tuple[int, ...], depth: int) -> Tile:
        a, b, c = (self.expression(shape, 0 if i else depth) for i in range(3))
        return Tile(f"tl.where({a.text} > {b.text}, {c.text}, 1.0)", shape, max(c.bound, 1))

    def scanned(self, shape: tuple[int, ...], depth: int) -> Tile:
        tile, axis = self.expression(shape, depth), self.choose(len(shape))
        return Tile(f"tl.cumsum({tile.text}, {axis})", shape, tile.bound * shape[axis])

    def product(self, shape: tuple[int, ...], depth: int, acc: str = "") -> Tile:
        inner = self.pick(SIDES)
        a = self.expression((shape[0], inner), depth)
        b = self.expression((inner, shape[1]), depth)
        acc = f", {acc}" if acc else ""
        text = f"tl.dot({a.text}, {b.text}{acc}, input_precision='ieee')"
        return Tile(text, shape, a.bound * b.bound * inner)

    def halves(self, shape: tuple[int, ...], depth: int) -> Tile:
        """A product of two tiles of float16."""
        inner = self.pick(SIDES)
        parts = []
        for rows, columns in ((shape[0], inner), (inner, shape[1])):
            lanes = [f"({self.start(side)} + tl.arange(0, {side}))" for side in (rows, columns)]
            at = f"{lanes[0]}[:, None] * 64 + {lanes[1]}[None, :]"
            parts.append(f"tl.load({self.pick(HALVES)} + {at})")
        return Tile(f"tl.dot({parts[0]}, {parts[1]})", shape, 9 * inner)

    def reshaped(self, shape: tuple[int, ...], depth: int) -> Tile:
        tile = self.expression(shape[::-1], depth)
        return Tile(f"tl.reshape({tile.text}, {list(shape)})", shape, tile.bound)

    def ordered(self, shape: tuple[int, ...], depth: int) -> Tile:
        tile = self.expression(shape, min(depth, 1))
        function = self.pick(("tl.abs", "tl.abs", "tl.sort"))
        return Tile(f"{function}({tile.text})", shape, tile.bound)

    def gathered(self, shape: tuple[int, ...], depth: int) -> Tile:
        tile, axis = self.expression(shape, depth), self.choose(2)
        lanes = [f"tl.arange(0, {side})" for side in shape]
        at = f"{lanes[0]}[:, None] * 3 + {lanes[1]}[None, :] * 5 + pid"
        return Tile(f"tl.gather({tile.text}, ({at}) % {shape[axis]}, {axis})", shape, tile.bound)

    def counted(self, shape: tuple[int, ...], depth: int) -> Tile:
        """Small numbers made of integers."""
        lanes = f"(tl.arange(0, {shape[0]}) + {self.pick(('pid', 'qid * 7', '1'))})"
        operation = self.pick(("% 5", "// 3", "& 6", "^ 3", "<< 1", ">> 2", "| 8"))
        if self.choose(3) == 0:
            lanes = f"tl.load(index + tl.arange(0, {shape[0]}) + pid)"
        return Tile(f"tl.cast({lanes} {operation}, tl.float32)", shape, 256)

    def transposed(self, shape: tuple[int, ...], depth: int) -> Tile:
        tile = self.expression(shape[::-1], depth)
        return Tile(f"tl.trans({tile.text})", shape, tile.bound)

    def widened(self, shape: tuple[int, ...], depth: int) -> Tile:
        tile, axis = self.expression(shape, depth), self.choose(2)
        vector = self.expression((shape[axis],), depth)
        place = ("[:, None]", "[None, :]")[axis]
        return Tile(f"({tile.text} + {vector.text}{place})", shape, tile.bound + vector.bound)

    def reduced(self, shape: tuple[int, ...], depth: int) -> Tile:
        other, axis = self.pick(SIDES), self.choose(2)
        tile = self.expression((other, *shape) if axis == 0 else (*shape, other), depth)
        kind = self.choose(5)
        if kind == 0:
            return Tile(f"tl.cast(tl.argmax({tile.text}, {axis}), tl.float32)", shape, other)
        if kind < 3:
            return Tile(f"tl.max({tile.text}, {axis})", shape, tile.bound)
        return Tile(f"tl.sum({tile.text}, {axis})", shape, tile.bound * other)

    # -- statements ----------------------------------------------------------------------------

    def shape(self) -> tuple[int, ...]:
        return (self.pick(SIDES),) if self.choose(4) == 0 else (self.pick(SIDES), self.pick(SIDES))

    def assign(self) -> None:
        tile = self.expression(self.shape(), 2)
        name = self.name()
        self.line(f"{name} = {tile.text}")
        self.tiles.append(Tile(name, tile.shape, tile.bound))

    def loop(self) -> None:
        stop, trips = self.pick((("K", 4), ("64", 4), ("3", 3), ("pid + 1", 4), ("N // 8", 5)))
        step = 16 if stop in ("K", "64") else 1
        carried = []
        for _ in range(1 + self.choose(2)):
            name, shape = self.name(), self.shape()
            init = Tile(f"tl.zeros({list(shape)}, tl.float32)", shape, 0)
            if self.choose(3) == 0:
                init = self.expression(shape, 1)
            self.line(f"{name} = {init.text}")
            carried.append(Tile(name, shape, init.bound))
        variable = f"s{self.num_names}"
        self.line(f"for {variable} in range(0, {stop}, {step}):")
        self.depth += 1
        self.loops.append((variable, trips * step))
        before = list(self.tiles)
        results = []
        if self.choose(3) == 0:
            self.assign()
        for tile in carried:
            kind = self.choose(3 if len(tile.shape) == 2 else 2)
            if kind == 2:
                added = self.product(tile.shape, self.choose(2), tile.text)
                text, bound = added.text, tile.bound + trips * added.bound
            elif kind == 1:
                added = self.expression(tile.shape, 2)
                text, bound = f"{tile.text} + {added.text}", tile.bound + trips * added.bound
            else:
                added = self.expression(tile.shape, 1)
                text = f"tl.maximum({tile.text}, {added.text})"
                bound = max(tile.bound, added.bound)
            if bound >= LIMIT:
                text, bound = tile.text, tile.bound
            self.line(f"{tile.text} = {text}")
            results.append(Tile(tile.text, tile.shape, bound))
        if self.choose(4) == 0:
            self.keep(self.pick(results))
        self.loops.pop()
        self.depth -= 1
        # What the body assigned may never have been: a loop may have no trips.
        self.tiles = before + results

    def tiled(self, row: str = "pid") -> None:
        """A product as a GEMM computes it: tiles by program, the sum in pieces."""
        rows, columns = self.pick(SIDES), self.pick(SIDES)
        step, trips = self.pick(((16, 4), (32, 2), (64, 1)))
        lines = (
            f"pid * {rows} + tl.arange(0, {rows})",
            f"qid * {columns} + tl.arange(0, {columns})",
        )
        name, variable = self.name(), f"k{self.num_names}"

        def operand(which: int, start: str, length: int) -> str:
            inner = f"({start} + tl.arange(0, {length}))"
            first, second = (f"({lines[0]})", inner) if which == 0 else (inner, f"({lines[1]})")
            strides = self.pick(((64, 1), (1, 64)))
            at = f"{first}[:, None] * {strides[0]} + {second}[None, :] * {strides[1]}"
            place = inner + ("[None, :]" if which == 0 else "[:, None]")
            mask = f", mask={place} < K, other=0.0" if self.choose(2) else ""
            text = f"tl.load(x{self.choose(NUM_INPUTS)} + {at}{mask})"
            return self.pick((text, text, f"(2 * {text})", f"(-{text})", f"({text} + 1)"))

        def product(start: str, length: int, acc: str) -> str:
            a, b = operand(0, start, length), operand(1, start, length)
            return f"tl.dot({a}, {b}, {acc}, input_precision='ieee')"

        self.line(f"{name} = tl.zeros([{rows}, {columns}], tl.float32)")
        if self.choose(3) == 0:
            self.line(f"{name} = {product('0', 16, name)}")
        self.line(f"for {variable} in range(0, 64, {step}):")
        self.line(f"    {name} = {product(variable, step, name)}")
        if self.choose(3) == 0:
            self.line(f"    {name} = {product(variable, step, name)}")
        if self.choose(3) == 0:
            self.line(f"{name} = {product('0', 16, name)}")
        bound = 36 * (16 + step * trips * 2 + 16)
        if self.choose(3) == 0:
            bias = f"tl.load(x0 + {lines[1]})[None, :]"
            self.line(f"{name} = tl.maximum({name} + {bias}, 0.0)")
        self.keep(Tile(name, (rows, columns), bound), row)
        self.tiles.append(Tile(name, (rows, columns), bound))

    def persist(self) -> None:
        """Tiles that programs take in turns, as many as there are."""
        shape, variable = (self.pick(SIDES), self.pick(SIDES)), f"u{self.num_names}"
        before = list(self.tiles)
        self.line(f"for {variable} in range(pid, 4, tl.num_programs(0)):")
        self.depth += 1
        self.loops.append((variable, 4))
        if self.choose(2):
            self.tiled(variable)
        else:
            self.keep(self.expression(shape, 2), variable)
        self.loops.pop()
        self.depth -= 1
        self.tiles = before

    def repeat(self) -> None:
        """A loop whose trips depend on data."""
        name, shape, variable = self.name(), self.shape(), f"w{self.num_names}"
        self.line(f"{name} = tl.zeros({list(shape)}, tl.float32)")
        self.line(f"{variable} = tl.load(index + pid + qid) % 4")
        self.line(f"while {variable} > 0:")
        self.depth += 1
        added = self.expression(shape, 1)
        self.line(f"{name} += {added.text}")
        self.line(f"{variable} -= 1")
        self.depth -= 1
        self.tiles.append(Tile(name, shape, 4 * added.bound))

    def leave(self) -> None:
        self.line(f"if {self.pick(('pid == 2', 'qid > 1', 'pid * 3 + qid == 4'))}:")
        self.line("    return")

    def branch(self) -> None:
        fitting = [tile for tile in self.tiles if len(tile.shape) == 2]
        if not fitting:
            return self.assign()
        tile = self.pick(fitting)
        one, two = self.expression(tile.shape, 1), self.expression(tile.shape, 1)
        name = self.name()
        self.line(f"if {self.pick(('pid == 0', 'pid % 2 == 1', 'qid < 1', 'pid + qid > 1'))}:")
        self.line(f"    {name} = {tile.text} + {one.text}")
        self.line("else:")
        self.line(f"    {name} = {two.text}")
        bound = max(tile.bound + one.bound, two.bound)
        if bound < LIMIT:
            self.tiles.append(Tile(name, tile.shape, bound))
        return None

    def keep(self, tile: Tile, row: str = "pid") -> None:
        """Store a tile to where no other program, and no other statement, does."""
        at = f"out + (({self.num_slots} * 4 + {row}) * 4 + qid) * {SLOT}"
        self.num_slots += 1
        lanes = [f"tl.arange(0, {side})" for side in tile.shape]
        where = f"{at} + {lanes[0]}"
        if len(tile.shape) == 2:
            where = f"{at} + {lanes[0]}[:, None] * 32 + {lanes[1]}[None, :]"
        masked = self.choose(4) == 0
        mask = f", mask=({lanes[0]}{'[:, None]' * (len(tile.shape) - 1)}) < N" if masked else ""
        self.line(f"tl.store({where}, {tile.text}{mask})")
        if self.choose(4) == 0 and not masked:
            name = self.name()
            self.line("tl.debug_barrier()")
            self.line(f"{name} = tl.load({where})")
            if not self.loops:
                self.tiles.append(Tile(name, tile.shape, tile.bound))

    def count(self) -> None:
        fitting = [tile for tile in self.tiles if len(tile.shape) == 1 and tile.bound < 1 << 16]
        if fitting:
            tile = self.pick(fitting)
            at = f"shared + {self.choose(3)} * 32 + tl.arange(0, {tile.shape[0]})"
            if self.choose(2):
                self.line(f"tl.atomic_add({at}, {tile.text})")
            else:
                self.line(f"tl.atomic_max({at.replace('shared', 'shared + 128')}, {tile.text})")


def generate(choose: Choose) -> Kernel:
    """Return a kernel that ``choose`` decides about; 0 gives the simplest."""
    writer = _Writer(choose)
    statements = (
        *(writer.assign, writer.loop, writer.loop, writer.tiled, writer.branch),
        *(writer.count, writer.persist, writer.repeat, writer.leave),
    )
    if choose(3):
        writer.assign()
    else:
        writer.tiled()
    for _ in range(choose(4)):
        writer.pick(statements)()
    for tile in tuple(writer.tiles)[-3:]:
        writer.keep(tile)
    inputs = ", ".join((*(f"x{number}" for number in range(NUM_INPUTS)), *HALVES))
    head = [
        "import triton",
        "import triton.language as tl",
        "",
        "",
        "@triton.jit",
        f"def kernel({inputs}, index, out, shared, N, K):",
        "    pid = tl.program_id(0)",
        "    qid = tl.program_id(1)",
    ]
    grid = (1 + choose(4), 1 + choose(3))
    scalars = {"N": writer.pick((16, 40, 9)), "K": writer.pick((16, 64, 33))}
    return Kernel("\n".join((*head, *writer.lines, "")), grid, scalars, writer.num_slots)


def inputs(indices_below: int) -> dict[str, Any]:
    """Return what every random kernel reads, by parameter."""
    rng = np.random.default_rng(1)
    arrays: dict[str, Any] = {
        f"x{number}": rng.integers(-3, 4, INPUT_SIZE).astype(np.float32)
        for number in range(NUM_INPUTS)
    }
    for name in HALVES:
        arrays[name] = rng.integers(-3, 4, INPUT_SIZE).astype(np.float16)
    arrays["index"] = rng.integers(0, indices_below, INDICES).astype(np.int32)
    return arrays


def loaded(kernel: Kernel, folder: Path) -> Any:
    """Return a kernel as Triton has it, from a file in the folder."""
    path = folder / "random_kernel.py"
    path.write_text(kernel.source)
    spec = importlib.util.spec_from_file_location("random_kernel", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.kernel


def disagreement(kernel: Kernel, folder: Path, *, check: bool = False) -> str:
    """Run a kernel in numpy and in kernbench, and say where they differ; "" if nowhere."""
    arrays = inputs(48)
    outputs = {
        "out": np.zeros(kernel.num_slots * 16 * SLOT, np.float32),
        "shared": np.zeros(256, np.float32),
    }
    with kernbench.RuntimeContext(check=check) as torch:
        tensors = {name: torch.from_numpy(array) for name, array in {**arrays, **outputs}.items()}
        loaded(kernel, folder)[kernel.grid](**tensors, **kernel.scalars)
        result = {name: tensors[name].numpy().copy() for name in outputs}
    run_programs(kernel.source, {**arrays, **outputs}, kernel.grid, **kernel.scalars)
    for name, expected in outputs.items():
        assert np.abs(expected).max(initial=0) < 1 << 24, "the kernel's numbers are not exact"
        wrong = np.flatnonzero(result[name] != expected)
        if len(wrong):
            at = int(wrong[0])
            return f"{name}[{at}] is {result[name][at]}, not {expected[at]}; {len(wrong)} differ"
    return ""


def main() -> int:
    """Run a campaign and return how many kernels were wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--first", type=int, default=0, metavar="SEED")
    parser.add_argument("--count", type=int, default=500, metavar="N")
    parser.add_argument("--check", action="store_true", help="under the sanitizer")
    options = parser.parse_args()
    wrong = 0
    with tempfile.TemporaryDirectory(prefix="kernbench-random-") as folder:
        for seed in range(options.first, options.first + options.count):
            kernel = generate(random.Random(seed).randrange)
            try:
                said = disagreement(kernel, Path(folder), check=options.check)
            except Exception:
                said = traceback.format_exc()
            if said:
                wrong += 1
                print(f"seed {seed}, grid {kernel.grid}, {kernel.scalars}: {said}\n{kernel.source}")
    print(f"{options.count - wrong} of {options.count} kernels give numpy's numbers")
    return min(wrong, 100)


if __name__ == "__main__":
    raise SystemExit(main())
