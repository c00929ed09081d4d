"""Predicts operators of one transformer layer, each as a row of its own category."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from kernbench import ops
from kernbench.accuracy.rows import Answer, Category, Machines, Predictor, Ran, Row, of_layers
from kernbench.hardware import Machine
from kernbench.plans import TunedTiles
from kernbench.runtime_api import RuntimeContext
from validation.predictors.collectives import CollectivePredictor
from validation.predictors.gemm import GemmPredictor
from validation.predictors.membound import MemboundPredictor
from validation.sources.harness import gemm_harness

PREFIXES = ("layer_prefill", "layer_decode")
DTYPES = {"fp16": "f16", "bf16": "bf16", "fp32": "f32"}
_NEEDED = ("hidden", "heads", "batch", "input_len", "tp")


@dataclass(frozen=True, slots=True)
class _Sizes:
    """A rank's part of the layer: new tokens of all sequences, and the keys per query."""

    tokens: int
    hidden: int
    own: int
    batch: int
    heads: int
    queries: int
    keys: int

    @classmethod
    def of(cls, row: Row) -> _Sizes:
        hidden, tp_size, batch = row.integer("hidden"), row.integer("tp"), row.integer("batch")
        queries = 1 if row.op.startswith("layer_decode") else row.integer("seq")
        return cls(
            tokens=batch * queries,
            hidden=hidden,
            own=hidden // tp_size,
            batch=batch,
            heads=row.integer("heads") // tp_size,
            queries=queries,
            keys=row.integer("input_len"),
        )


def _product(m: int, n: int, k: int) -> Mapping[str, int]:
    return {"m": m, "n": n, "k": k}


def _rows(rows: int, cols: int) -> Mapping[str, int]:
    return {"rows": rows, "cols": cols}


# Category, op and shape of an operator, without products that are batched over heads.
_OPERATORS: dict[str, tuple[Category, str, Callable[[_Sizes], Mapping[str, int]]]] = {
    "Q_K_V": (Category.GEMM, "gemm", lambda s: _product(s.tokens, 3 * s.own, s.hidden)),
    "Wo_proj": (Category.GEMM, "gemm", lambda s: _product(s.tokens, s.hidden, s.own)),
    "W1_proj": (Category.GEMM, "gemm", lambda s: _product(s.tokens, 4 * s.own, s.hidden)),
    "W2_proj": (Category.GEMM, "gemm", lambda s: _product(s.tokens, s.hidden, 4 * s.own)),
    "Softmax": (
        Category.MEMBOUND, "softmax", lambda s: _rows(s.batch * s.heads * s.queries, s.keys),
    ),
    "LayerNorm_MHA": (Category.MEMBOUND, "layernorm", lambda s: _rows(s.tokens, s.hidden)),
    "LayerNorm_FFN": (Category.MEMBOUND, "layernorm", lambda s: _rows(s.tokens, s.hidden)),
    "GeLU": (Category.MEMBOUND, "gelu", lambda s: _rows(s.tokens, 4 * s.own)),
    "AllReduce_MHA": (Category.COLLECTIVES, "all_reduce", lambda s: {"bytes": s.tokens * s.hidden}),
    "AllReduce_FFN": (Category.COLLECTIVES, "all_reduce", lambda s: {"bytes": s.tokens * s.hidden}),
}  # fmt: skip
_BATCHED = ("Q_mul_K", "A_mul_V")
_REDUCED = ("AllReduce_MHA", "AllReduce_FFN")
_TOTAL = "total"


class LayerPredictor:
    """Predicts operators of a layer (``layer_prefill:NAME``), and their sum."""

    def __init__(self, machines: Machines) -> None:
        self._machines = machines
        self._by_category: dict[Category, Predictor] = {
            Category.GEMM: GemmPredictor(machines),
            Category.MEMBOUND: MemboundPredictor(machines),
            Category.COLLECTIVES: CollectivePredictor(machines),
        }

    def predict(self, row: Row) -> Answer:
        """Return the time of the row's operator."""
        name = row.op.partition(":")[2]
        missing = [name for name in _NEEDED if row.optional(name) is None]
        if missing:
            return Answer(None, f"the source does not say the layer's {missing[0]}")
        if row.dtype not in DTYPES:
            return Answer(None, f"no dtype of a model for {row.dtype}")
        if name == _TOTAL:
            return self._sum(row)
        if name in _BATCHED:
            return of_layers(lambda: self._batched_us(row, name), "a batched product")
        if name not in _OPERATORS:
            return Answer(None, f"no operator {name} of a layer")
        category, op, shape = _OPERATORS[name]
        sizes = shape(_Sizes.of(row))
        fields = {name: str(size) for name, size in sizes.items()}
        if category is Category.COLLECTIVES:
            fields["bytes"] = str(sizes["bytes"] * (4 if row.dtype == "fp32" else 2))
            fields["n_ranks"] = row.fields["tp"]
            if row.integer("tp") == 1:
                return Answer(None, "nothing is reduced on one rank")
        asked = replace(row, category=category, op=op, fields=fields)
        return self._by_category[category].predict(asked)

    def _sum(self, row: Row) -> Answer:
        prefix = row.op.partition(":")[0]
        names = [*_OPERATORS, *_BATCHED]
        if row.integer("tp") == 1:
            names = [name for name in names if name not in _REDUCED]
        predicts = [self.predict(replace(row, op=f"{prefix}:{name}")) for name in names]
        times = [answer.time_us for answer in predicts if answer.time_us is not None]
        if len(times) < len(predicts):
            return next(answer for answer in predicts if answer.time_us is None)
        return Answer(sum(times), how="the sum of a layer's operators", ran=Ran.LAYERS)

    def _batched_us(self, row: Row, name: str) -> float:
        """Return the time of the product with keys or values: a matrix per sequence and head."""
        sizes = _Sizes.of(row)
        machine = self._machines.machine_of(row.device)
        width = row.integer("hidden") // row.integer("heads")
        heads, scores = (sizes.batch, sizes.heads), (sizes.queries, sizes.keys)
        if name == "Q_mul_K":
            shapes = ((*heads, sizes.queries, width), (*heads, width, sizes.keys))
        else:
            shapes = ((*heads, *scores), (*heads, sizes.keys, width))
        harness = gemm_harness(row.source, machine.name)
        machine = harness.met(machine)
        kernel_us = _alone_us(machine, TunedTiles(machine), shapes, DTYPES[row.dtype])
        return harness.time_us(kernel_us, machine)


def _alone_us(
    machine: Machine, tiles: TunedTiles, shapes: tuple[tuple[int, ...], ...], dtype: str
) -> float:
    with RuntimeContext(machine, 1, data=False) as torch:
        ops.use_tiles(tiles)
        a, b = (torch.empty(shape, dtype=dtype) for shape in shapes)
        torch.ahbm.synchronize()
        begin = torch.ahbm.Event()
        begin.record()
        ops.matmul(a, b)
        end = torch.ahbm.current_stream().record_event()
        torch.ahbm.synchronize()
        return begin.elapsed_time(end) * 1e3
