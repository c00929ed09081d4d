"""Attention rows: prefill, decode and encoders, by the kernels that serving stacks launch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

from kernbench.accuracy.predictors import launches_of
from kernbench.accuracy.rows import Row
from kernbench.hardware import Machine
from kernbench.inputs import parse_yaml
from kernbench.library_kernels import (
    AttentionProblem,
    FlashKernel,
    LibraryKernel,
    attention_kernels,
    described_kernels,
    flash_launches,
    stream,
    variant_names,
)
from validation.kernels import FOLDER
from validation.predictors.libraries.attention_releases import LEFT_WINDOW, Release, releases
from validation.predictors.library_rows import LibraryPredictor, MeasuredKernels, NotModeledError

_FP8 = "float8_e4m3fn"
_STACKS = Path(__file__).parent / "libraries" / "attention_stacks.yaml"
_SHARED: Mapping[str, Mapping[str, str]] = parse_yaml(_STACKS.read_text("utf-8"), _STACKS.name)
_KINDS = {"prefill": "paged", "decode": "decode", "encoder": "forward"}
_OF_KEYS_DTYPE = "vllm_flash_attn_fa3"
_MOST_GROUP_OF_XQA = 32
"""TensorRT-LLM's decode kernel for groups takes so many heads that share keys."""


class AttentionPredictor(LibraryPredictor):
    """Answers attention rows."""

    def measured(self, row: Row) -> MeasuredKernels:
        """Return what a row measured.

        Raises:
            NotModeledError: No kernel is described for the stack and the architecture, or the
                source marks the row as one that no device can give.
        """
        machine = self.machines.machine_of(row.device)
        if "impl" in row.fields:
            return MeasuredKernels(
                kernels=launches_of(row, machine, "bf16" if "/" in row.dtype else None),
                machine=machine,
            )
        problem = _problem(row)
        measured_by = releases(row.fields, machine.name)
        if not any(release.left_window for release in measured_by):
            _refuse_impossible(row, problem, machine)
        launches = [_launches(row, problem, machine, release) for release in measured_by]
        return MeasuredKernels(
            kernels=launches[0], other=launches[1] if len(launches) > 1 else (), machine=machine
        )


def _launches(
    row: Row, problem: AttentionProblem, machine: Machine, release: Release
) -> tuple[LibraryKernel, ...]:
    """Return what a release launched for a row."""
    if release.left_window:
        problem = replace(problem, window=LEFT_WINDOW)
    kernel = _kernel(row, problem, machine)
    launches = flash_launches(problem, kernel, machine.sip.num_pes)
    if row.op != "attention_encoder":
        launches = _append(row, problem), *launches
    if not release.converts:
        return launches
    heads = 2 * problem.kv_heads + (problem.heads if release.converts == "all" else 0)
    elements = float(problem.batch * problem.q_len * problem.head_dim * heads)
    # Each of two operations reads 2 bytes of an element; one writes 2, the other 1.
    return stream("flash_convert", 4 * elements, 3 * elements), *launches


def _problem(row: Row) -> AttentionProblem:
    narrow_keys = (row.fields.get("kv_dtype") or row.dtype) == "fp8"
    fp8 = "fp8" in (row.fields.get("attn_dtype") or row.dtype)
    # It takes queries of the keys' dtype, whatever the model's is.
    fp8 |= narrow_keys and row.fields.get("kernel") == _OF_KEYS_DTYPE
    return AttentionProblem(
        batch=row.integer("batch"),
        q_len=row.integer("q_len"),
        kv_len=row.integer("kv_len"),
        heads=row.integer("heads"),
        kv_heads=row.integer("kv_heads"),
        head_dim=row.integer("head_dim"),
        causal=row.fields.get("causal") == "yes",
        window=0 if row.fields.get("window", "0") in ("", "0") else row.integer("window"),
        dtype=_FP8 if fp8 else "bfloat16",
        q_bytes=1 if fp8 else 2,
        kv_bytes=1 if narrow_keys else 2,
    )


def _refuse_impossible(row: Row, problem: AttentionProblem, machine: Machine) -> None:
    note = row.fields.get("note", "")
    if note.startswith("suspect"):
        raise NotModeledError(f"the source marks the row: {note}")
    cache_spec = machine.sip.cache
    keys = problem.batch * problem.kv_heads * problem.seen_keys
    kv_bytes = 2 * keys * problem.head_dim * problem.kv_bytes
    if note.startswith("cache-resident") and cache_spec is not None:
        capacity = float(cache_spec.capacity_mib) * 2**20
        if kv_bytes > capacity:
            raise NotModeledError(
                "the source marks keys and values as faster than DRAM, but no cache holds them"
            )


def _kernel(row: Row, problem: AttentionProblem, machine: Machine) -> FlashKernel:
    """Return the kernel of a row; that of its head size where one has constants of its own."""
    architecture = machine.spec.kernel_library or ""
    stack = f"{row.fields.get('framework', '')}_{row.fields.get('kernel', '')}"
    op = row.op.removeprefix("attention_")
    known = _of_stacks(architecture)
    for variant in _variants(row.fields.get("framework", ""), op, problem):
        name = f"{stack}_{op}{variant}"
        if name in known:
            return known.get(f"{name}_d{problem.head_dim}", known[name])
    shared = _SHARED.get(stack, {}).get(architecture)
    known = attention_kernels(architecture)
    kind = f"{shared}_{_KINDS.get(op, op)}"
    for name in variant_names(kind, problem.kv_bytes == 1, bool(problem.window)):
        if name in known:
            return known[name]
    raise NotModeledError(f"no kernel for {row.op} of {stack} on {machine.name}")


@cache
def _of_stacks(architecture: str) -> Mapping[str, FlashKernel]:
    return described_kernels(FOLDER.parent / "attention_kernels" / f"{architecture}.yaml")


def _append(row: Row, problem: AttentionProblem) -> LibraryKernel:
    """Return the launch that brings new keys and values into a cache, as stacks do before.

    TensorRT-LLM's goes over the queries, too.
    """
    tokens = problem.batch * problem.q_len
    read = 2.0 * tokens * problem.kv_heads * (problem.head_dim + problem.values)
    written = read / 2 * problem.kv_bytes
    if row.fields.get("framework") == "trtllm":
        queries = 2.0 * tokens * problem.heads * problem.head_dim
        read, written = read + queries, written + queries
    return stream("flash_append", read, written)


def _variants(stack: str, op: str, problem: AttentionProblem) -> Iterator[str]:
    """Yield what the names of kernels end with, the nearest first."""
    q = "_fp8q" if problem.q_bytes == 1 else ""
    kv = "_fp8kv" if problem.kv_bytes == 1 else ""
    single = ""
    if stack == "trtllm" and op == "decode":
        grouped = 1 < problem.group <= _MOST_GROUP_OF_XQA
        single = "_xqa" if grouped else "_mmha"
    window = "_window" if problem.window else ""
    for narrow in dict.fromkeys((q + kv, kv, "")):
        yield from dict.fromkeys((f"{narrow}{single}{window}", f"{narrow}{single}", narrow))
