"""Rows of linear attention: gated delta nets, KDA and Mamba-2, in prompts, decode and drafts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import median

from kernbench.accuracy.rows import Row
from kernbench.hardware import Machine
from kernbench.library_kernels import LibraryKernel
from validation.kernels import (
    LinearProblem,
    causal_convolution,
    channel_convolution,
    chunk_products,
    chunk_scan,
    convolution_update,
    recurrent_decode,
    sequence_convolution,
)
from validation.predictors.library_rows import LibraryPredictor, MeasuredKernels, NotModeledError
from validation.sources.harness import CHUNK_LIST_HOSTS, KDA_CONVOLUTION_HOSTS


@dataclass(frozen=True, slots=True, kw_only=True)
class _Chunked:
    """How a kernel goes over a prompt."""

    products: bool = True
    """Whether other launches compute what chunks need, before the walk over them."""
    slices: int = 4
    resident: int = 2


_CHUNKED = {
    "chunk_gated_delta_rule": _Chunked(),
    "chunk_gated_delta_rule_triton": _Chunked(),
    "chunk_gated_delta_rule_flashinfer": _Chunked(products=False, slices=1, resident=1),
    "chunk_kda": _Chunked(),
    "chunk_kda_with_fused_gate": _Chunked(),
    "flashkda_fwd": _Chunked(slices=1, resident=1),
    "mamba_chunk_scan_combined": _Chunked(),
}
_ONE_TOKEN = {
    "fused_recurrent_gated_delta_rule": "decode",
    "fused_recurrent_gated_delta_rule_packed_decode": "decode",
    "fused_recurrent_kda_packed_decode": "decode",
    "kda_fused_decode": "decode",
    "fused_kda_decode": "decode",
}
_DRAFT = {
    "fused_recurrent_kda": "draft_decode",
    "fused_sigmoid_gating_delta_rule_update": "draft_decode",
    "fused_kda_decode_mtp_dspark": "draft_fused_decode",
}
"""Kernels that keep the state after each token of a draft."""


_OTHER_HOST_US = median(KDA_CONVOLUTION_HOSTS.values())
_ALL_KEY_HEADS = 16
"""Key heads of Qwen3.5's gated delta nets on one device."""
_ONLY_LATER = ("l40s",)
"""Machines whose rows of one release launch it once."""
_VECTOR_TOKENS = 8
"""TensorRT-LLM's convolution loads so many tokens at once, where every sequence begins at one."""
_MODELS_OF_BEFORE = "NEMOTRON_H_3_"
"""How the source named models while it measured TensorRT-LLM's first releases."""


class LinearAttentionPredictor(LibraryPredictor):
    """Answers rows of linear attention."""

    def measured(self, row: Row) -> MeasuredKernels:
        """Return what a row measured.

        Raises:
            NotModeledError: No kernel is described for it.
        """
        machine = self.machines.machine_of(row.device)
        kernel = row.fields.get("kernel", "")
        if kernel.startswith("causal_conv1d"):
            return _convolved(row, machine)
        problem = _problem(row)
        if kernel in _CHUNKED:
            return MeasuredKernels(kernels=_chunked(row, problem, machine), machine=machine)
        if kernel not in _ONE_TOKEN and kernel not in _DRAFT:
            raise NotModeledError(f"no kernel for {row.op} {kernel}")
        name = f"linear_{row.op}_{_ONE_TOKEN.get(kernel) or _DRAFT[kernel]}"
        launch = recurrent_decode(name, problem, machine.sip, keeps_all=kernel in _DRAFT)
        return MeasuredKernels(kernels=(launch,), machine=machine)


def _host_us(row: Row, machine: Machine) -> float:
    """Return what the host takes where the source replays no graph and waits in between."""
    if row.fields.get("framework") == "vllm" and row.fields["kernel"] == "causal_conv1d_fn_qkv3":
        return KDA_CONVOLUTION_HOSTS.get(machine.name, _OTHER_HOST_US)
    return 0.0


def _problem(row: Row) -> LinearProblem:
    batch, tokens = row.integer("batch_size"), row.integer("seq_len")
    if row.op == "mamba2":
        return LinearProblem(
            batch=batch,
            tokens=tokens,
            heads=row.integer("nheads"),
            key_heads=row.integer("n_groups"),
            key_dim=row.integer("d_state"),
            value_dim=row.integer("head_dim"),
            chunk=row.integer("chunk_size"),
        )
    return LinearProblem(
        batch=batch,
        tokens=tokens,
        heads=row.integer("num_v_heads"),
        key_heads=row.integer("num_k_heads"),
        key_dim=row.integer("head_k_dim"),
        value_dim=row.integer("head_v_dim"),
    )


def _convolved(row: Row, machine: Machine) -> MeasuredKernels:
    """Return the convolution of a row; of one that two releases measured, both."""
    stack, releases = row.fields.get("framework"), row.optional("n_releases") or 1
    usual = MeasuredKernels(
        kernels=_convolution(row, machine), machine=machine, extra_us=_host_us(row, machine)
    )
    has_all_heads = row.op == "gdn" and row.integer("num_k_heads") >= _ALL_KEY_HEADS
    if row.fields["kernel"] != "causal_conv1d_fn" or not has_all_heads:
        return usual
    if stack == "sglang":
        # In one of the releases it is launched for each sequence. A row is the median over them;
        # which of them a row of one release is of, is inferred from rows that a fit may see.
        looped = replace(usual, kernels=(_looped(row),))
        if releases % 2 == 0:
            return replace(usual, other=looped.kernels)
        return usual if machine.name in _ONLY_LATER else looped
    if stack == "vllm" and releases == 2:
        return replace(usual, least_us=_chunks_host_us(row, machine), least_share=0.5)
    return usual


def _chunks_host_us(row: Row, machine: Machine) -> float:
    """Return what the host took in vLLM's release that listed the chunks of all sequences."""
    start, per_sequence, per_token = CHUNK_LIST_HOSTS.get(machine.name, CHUNK_LIST_HOSTS[""])
    batch = row.integer("batch_size")
    return start + per_sequence * batch + per_token * batch * row.integer("seq_len")


def _convolution(row: Row, machine: Machine) -> tuple[LibraryKernel, ...]:
    problem = _problem(row)
    stack, taps = row.fields.get("framework", ""), row.integer("d_conv")
    keys = 2 * problem.key_heads * problem.key_dim
    channels = keys + problem.heads * problem.value_dim
    kernel = row.fields["kernel"]
    if kernel == "causal_conv1d_update":
        name = f"linear_{row.op}_convolution_update"
        return (
            convolution_update(name, problem.batch, problem.tokens, channels, taps, machine.sip),
        )
    if stack == "trtllm" and row.op == "gdn":
        return (_looped(row),)
    if stack == "trtllm":
        name = f"linear_{stack}_convolution"
        if problem.tokens % _VECTOR_TOKENS:
            name += "_unaligned"
        elif row.fields["model_name"].startswith(_MODELS_OF_BEFORE):
            name += "_before"
        return (sequence_convolution(name, problem.batch, problem.tokens, channels),)
    name = f"linear_{stack}_{row.op}_convolution"
    if kernel == "causal_conv1d_fn_qkv3":
        return tuple(
            causal_convolution(name, problem.batch, problem.tokens, channel, taps)
            for channel in (keys // 2, keys // 2, channels - keys)
        )
    return (causal_convolution(name, problem.batch, problem.tokens, channels, taps),)


def _looped(row: Row) -> LibraryKernel:
    """Return the convolution of SGLang's release that launched it for each sequence.

    Of the gated delta net, the keys' channels alone: times do not depend on the values'.
    """
    problem = _problem(row)
    return channel_convolution(
        f"linear_{row.op}_convolution_each",
        problem.batch,
        problem.tokens,
        problem.key_heads * problem.key_dim,
        row.integer("d_conv"),
    )


def _chunked(row: Row, problem: LinearProblem, machine: Machine) -> tuple[LibraryKernel, ...]:
    kernel = row.fields["kernel"]
    chunked = _CHUNKED[kernel]
    # SGLang and vLLM run the same Triton kernels; TensorRT-LLM has its own copy of them.
    stack = "_trtllm" if row.fields.get("framework") == "trtllm" else ""
    name = f"linear{stack}_{kernel.removesuffix('_triton')}"
    scan = chunk_scan(name, problem, machine.sip, chunked.slices, chunked.resident)
    if not chunked.products:
        return (scan,)
    return chunk_products(f"{name}_products", problem), scan
