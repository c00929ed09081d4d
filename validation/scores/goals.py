"""Accuracy goals of the model, and whether rows meet them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from kernbench.accuracy.rows import Category, Machines, Row, is_apart
from kernbench.accuracy.score import Scored, measure
from kernbench.errors import KernbenchError
from kernbench.hardware import source_of
from validation.predictors.families.chosen import CLUSTER_DEVICES, Family, family_of, is_compiled
from validation.scores.speedups import Pair, mean_error, pairs_of
from validation.scores.sweeps import Sweeps

_LARGE_BYTES = 16e6
_STREAMS = ("add", "mul", "relu", "gelu", "silu")
_FITTED_KEY = "sip.pe.gemm.efficiency"
"""The key whose source says to which GEMM rows a machine's constants were fitted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """One goal: its subject, its limit, and the value reached.

    ``limit`` and ``reached`` have the same unit: percent or points of error, or percent right.
    """

    name: str
    rows: int
    limit: str
    reached: str
    met: bool


def goals_of(scored: Sequence[Scored], sweeps: Sweeps | None, machines: Machines) -> list[Goal]:
    """Return the goals to which any of the rows belong.

    A goal of which rows are composed only, without a run, is not met (ADR-0235).
    """
    run = [item for item in scored if item.answer.time_us is not None]
    composed = [item for item in scored if item.answer.composed_us is not None]
    goals = [
        *_gemm(run, machines),
        *_others(run, composed),
        *_clusters(run, scored),
        *_speedups(run),
    ]
    if sweeps is not None:
        goals += _of_sweeps(sweeps)
    return goals


def fitted_to(row: Row, machines: Machines) -> str:
    """Return what a machine's file says about the rows that its GEMM constants were fitted to."""
    try:
        spec = machines.machine_of(row.device).spec
    except KernbenchError:
        return ""
    return source_of(spec, _FITTED_KEY) or ""


def _gemm(answered: Sequence[Scored], machines: Machines) -> Iterable[Goal]:
    own: dict[str, list[Scored]] = {}
    borrowed: dict[str, list[Scored]] = {}
    other: dict[str, list[Scored]] = {}
    for scored in answered:
        row = scored.row
        if row.category is not Category.GEMM or not row.device.startswith(("A100", "H100", "H200")):
            continue
        if row.source == "vidur-mlp":
            other.setdefault(row.device, []).append(scored)
        elif row.source == "aic-gemm" and "aic-gemm" in fitted_to(row, machines):
            if is_apart(row):
                own.setdefault(row.device, []).append(scored)
        elif row.source == "aic-gemm":
            borrowed.setdefault(row.device, []).append(scored)
    for device, rows in own.items():
        yield _goal(f"GEMM of {device}, rows never fitted to", rows, 5.5, 4.0)
    for device, rows in borrowed.items():
        yield _goal(f"GEMM of {device}, no row of it fitted to", rows, 6.0)
    for device, rows in other.items():
        yield _goal(f"GEMM of {device}, vidur-mlp, not refitted", rows, 8.0)


def _others(answered: Sequence[Scored], composed: Sequence[Scored]) -> Iterable[Goal]:
    kinds: tuple[tuple[str, float, Callable[[Row], bool]], ...] = (
        ("memory-bound", 6.0, _is_memory_bound),
        ("elementwise from 16 MB", 3.0, _is_large_stream),
        (
            "collectives in a node (aic-nccl)",
            8.0,
            lambda row: row.category is Category.COLLECTIVES and row.source == "aic-nccl",
        ),
        ("TP layer and iteration time", 7.0, lambda row: row.category is Category.TP_SCALING),
    )
    for name, limit, belongs in kinds:
        rows = [scored for scored in answered if belongs(scored.row)]
        if rows:
            yield _goal(name, rows, limit)
    for name, limit, belongs in _OF_COLLECTIVES:
        rows = [scored for scored in answered if _is_collective(scored.row) and belongs(scored.row)]
        if rows:
            yield _goal(name, rows, limit)
        elif any(_is_collective(scored.row) and belongs(scored.row) for scored in composed):
            yield _nothing_run(name, limit)
    for name, limit, belongs in _OF_LIBRARIES:
        rows = [scored for scored in answered if belongs(scored.row) and is_apart(scored.row)]
        if rows:
            yield _goal(f"{name}, rows never fitted to", rows, limit)
    for name, limit, worst, compiled, families in _OF_PROGRAMS:
        rows = [scored for scored in answered if _is_of(scored.row, families, compiled=compiled)]
        apart = [row for row in rows if is_apart(row.row)]
        if rows:
            yield _goal(name, rows, limit, worst=worst)
        if apart:
            yield _goal(f"{name}, rows never fitted to", apart, limit, worst=worst)


def _clusters(answered: Sequence[Scored], scored: Sequence[Scored]) -> Iterable[Goal]:
    """Yield the goal of training steps on many devices, by programs."""
    rows = [scored for scored in answered if _is_of_cluster(scored.row)]
    apart = [row for row in rows if is_apart(row.row)]
    name = "training steps on 64 to 10,752 devices"
    if rows:
        yield _goal(name, rows, 12.0)
    elif any(_is_of_cluster(item.row) for item in scored):
        yield _nothing_run(name, 12.0)
    if apart:
        yield _goal(f"{name}, rows never fitted to", apart, 12.0)


def _is_of_cluster(row: Row) -> bool:
    if row.category is Category.PROGRAMS:
        return family_of(row) is Family.CLUSTERS
    trains = row.op.startswith("train_")
    return trains and (row.optional("n_ranks") or 1) >= CLUSTER_DEVICES


def _is_of(row: Row, families: tuple[Family, ...], *, compiled: bool) -> bool:
    """Return whether a row is of a program of some families, compiled or eager."""
    is_program = row.category is Category.PROGRAMS and is_compiled(row) is compiled
    return is_program and family_of(row) in families


_OF_PROGRAMS: tuple[tuple[str, float, float | None, bool, tuple[Family, ...]], ...] = (
    (
        "eager programs on one device",
        12.0,
        30.0,
        False,
        (Family.EAGER_TRAINING, Family.EAGER_INFERENCE, Family.DECODE),
    ),
    ("eager training on 8 devices and more", 15.0, None, False, (Family.MANY_DEVICES,)),
    (
        "compiled programs on one device",
        15.0,
        None,
        True,
        (Family.COMPILED_TRAINING, Family.COMPILED_INFERENCE, Family.DECODE),
    ),
)
"""Families, the limits of their mean error and of their worst, and whether they are compiled."""


def _speedups(answered: Sequence[Scored]) -> Iterable[Goal]:
    pairs = pairs_of(answered)
    apart = [pair for pair in pairs if is_apart(pair.compiled.row)]
    if pairs:
        yield _goal_of_pairs("speed-up of compiled programs over eager", pairs)
    if apart:
        name = "speed-up of compiled programs over eager, rows never fitted to"
        yield _goal_of_pairs(name, apart)


def _goal_of_pairs(name: str, pairs: Sequence[Pair], limit: float = 15.0) -> Goal:
    error = mean_error(pairs)
    return Goal(
        name=name,
        rows=len(pairs),
        limit=f"MAPE <= {limit:g} %",
        reached=f"{error:.1f} %",
        met=error <= limit,
    )


def _is_collective(row: Row) -> bool:
    return row.category is Category.COLLECTIVES


def _is_between(row: Row) -> bool:
    """Return whether ranks are on several nodes, with a network between them."""
    nodes = row.fields.get("n_nodes", "")
    return nodes.isdecimal() and int(nodes) > 1 and not _is_in_rack(row)


def _is_in_rack(row: Row) -> bool:
    return row.fields.get("network", "").startswith("NVLink domain")


def _is_over_pcie(row: Row) -> bool:
    return row.device.startswith(("L40S", "RTX", "Arc"))


def _is_exchange(row: Row) -> bool:
    return row.op.startswith("moe_")


def _is_exchange_between(row: Row) -> bool:
    return _is_exchange(row) and _is_between(row)


def _is_exchange_in_rack(row: Row) -> bool:
    return _is_exchange(row) and _is_in_rack(row)


def _is_in_a_node(row: Row) -> bool:
    return not (_is_between(row) or _is_in_rack(row) or _is_over_pcie(row))


_OF_COLLECTIVES: tuple[tuple[str, float, Callable[[Row], bool]], ...] = (
    *(
        (f"{name} between nodes", 12.0, lambda row, op=op: row.op == op and _is_between(row))
        for op, name in (
            ("all_reduce", "all-reduce"),
            ("all_gather", "all-gather"),
            ("reduce_scatter", "reduce-scatter"),
            ("alltoall", "all-to-all"),
        )
    ),
    ("exchanges of experts' rows between nodes", 12.0, _is_exchange_between),
    ("exchanges of experts' rows in a rack (NVL72)", 12.0, _is_exchange_in_rack),
    ("all collectives in a node", 7.0, _is_in_a_node),
    ("collectives of L40S and over PCIe", 12.0, _is_over_pcie),
)
"""Goals of collectives, all rows: those between nodes were in view when constants were set."""


def _is_narrow_product(row: Row) -> bool:
    is_nvidia = row.device.startswith(("H100", "H200", "B200", "GB200"))
    return row.category is Category.GEMM and is_nvidia and row.dtype in _NARROW


_NARROW = ("fp8", "fp8_block", "fp8_static", "nvfp4")
_OF_LIBRARIES: tuple[tuple[str, float, Callable[[Row], bool]], ...] = (
    ("attention prefill", 8.0, lambda row: row.op == "attention_prefill"),
    ("attention decode", 10.0, lambda row: row.op == "attention_decode"),
    ("MLA", 15.0, lambda row: row.category is Category.MLA),
    ("linear attention", 15.0, lambda row: row.category is Category.LINEAR_ATTENTION),
    ("fused MoE", 15.0, lambda row: row.category is Category.MOE),
    ("fp8 and nvfp4 GEMM of Hopper and Blackwell", 8.0, _is_narrow_product),
    (
        "GEMM of MI355X",
        12.0,
        lambda row: row.category is Category.GEMM and row.device.startswith("MI355X"),
    ),
    (
        "GEMM of B300, which nobody fitted",
        15.0,
        lambda row: row.category is Category.GEMM and row.device.startswith(("B300", "GB300")),
    ),
)


def _is_memory_bound(row: Row) -> bool:
    """Return whether a row is of an operator that kernbench has a kernel for, not of a library."""
    return row.category is Category.MEMBOUND and "quant_dtype" not in row.fields


def _is_large_stream(row: Row) -> bool:
    return (
        row.category is Category.MEMBOUND
        and row.op in _STREAMS
        and row.integer("bytes") >= _LARGE_BYTES
    )


def _nothing_run(name: str, limit: float) -> Goal:
    return Goal(
        name=name, rows=0, limit=f"MAPE <= {limit:g} %", reached="nothing was run", met=False
    )


def _goal(
    name: str,
    rows: Sequence[Scored],
    limit: float,
    median: float | None = None,
    worst: float | None = None,
) -> Goal:
    errors = measure(rows)
    assert errors.mape is not None
    assert errors.median is not None
    limits, reached = f"MAPE <= {limit:g} %", f"{errors.mape:.1f} %"
    met = errors.mape <= limit
    if median is not None:
        limits += f", median <= {median:g} %"
        reached += f", {errors.median:.1f} %"
        met = met and errors.median <= median
    if worst is not None:
        furthest = max(abs(row.error) * 100 for row in rows)
        limits += f", worst <= {worst:g} %"
        reached += f", {furthest:.0f} %"
        met = met and furthest <= worst
    return Goal(name=name, rows=len(rows), limit=limits, reached=reached, met=met)


def _of_sweeps(sweeps: Sweeps) -> Iterable[Goal]:
    yield Goal(
        name="TP scaling efficiency",
        rows=sweeps.splits,
        limit="error <= 4 points",
        reached=f"{sweeps.scaling_points:.1f} points",
        met=sweeps.scaling_points <= 4,
    )
    for question in sweeps.questions:
        right, naive = (
            100 * number / question.sweeps for number in (question.right, question.naive_right)
        )
        yield Goal(
            name=f"choice of split: {question.name}",
            rows=question.sweeps,
            limit="right >= 95 %",
            reached=f"{right:.0f} % (naive rule {naive:.0f} %)",
            met=right >= 95,
        )
