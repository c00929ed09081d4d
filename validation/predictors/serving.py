"""Predicts rows of serving by running the engine that they name, under the row's load."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace

from kernbench.accuracy.rows import Answer, Machines, Ran, Row
from kernbench.errors import KernbenchError
from kernbench.serving import check_fits
from validation.programs import (
    KeptAnswers,
    Program,
    ProgramError,
    ProgramFiles,
    ProgramRunner,
    loop,
)
from validation.sources.forms import TTFT

QUANTIZATIONS = {"fp8": "fp8", "bf16": "", "int4": "compressed-tensors"}
LIMIT_S = 900.0
"""How much time of a CPU a row's loads may take: an engine is begun, and captures its graphs."""
_AT_A_TIME = {"max_num_batched_tokens": 8192, "enable_prefix_caching": False}
_BY_BLOCKS: Mapping[str, object] = {
    "quantization_config": {
        "quant_method": "fp8",
        "activation_scheme": "dynamic",
        "weight_block_size": [128, 128],
    },
    "norm_topk_prob": True,
}
_KIMI: Mapping[str, object] = {
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
    "routed_scaling_factor": 2.827,
    "quantization_config": {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": {
                    "num_bits": 4,
                    "type": "int",
                    "symmetric": True,
                    "strategy": "group",
                    "group_size": 32,
                },
            }
        },
        "ignore": [
            "lm_head",
            "re:.*self_attn.*",
            "re:.*shared_experts.*",
            "re:.*mlp\\.(gate|up|gate_up|down)_proj.*",
        ],
    },
}


@dataclass(frozen=True, slots=True)
class Served:
    """A published model, and what servers of it are started with besides ``--max-num-seqs``."""

    model: str
    """A known one of the same sizes."""
    of_server: Mapping[str, object]


_LLAMA: Mapping[str, object] = {"kv_cache_dtype": "fp8", **_AT_A_TIME}
"""On H100 and on H200.

Source: InferenceMAX, benchmarks/70b_fp8_h100_slurm.sh and 70b_fp8_h200_slurm.sh.
"""
MODELS = {
    "meta-llama/Llama-3.1-70B": Served("llama-3-70b", _LLAMA),
    "meta-llama/Llama-3.1-8B": Served("llama-3-8b", _LLAMA),
    # Source of the numbers of its server: InferenceX, benchmarks/single_node/kimik2.5_int4_h200.sh;
    # of the other: config.json, whose part that reads text this is.
    "moonshotai/Kimi-K2.5": Served(
        "kimi-k2", {**_AT_A_TIME, "gpu_memory_utilization": 0.95, "hf_overrides": _KIMI}
    ),
    # Nothing is said of its servers: these are vLLM's own numbers. Source of the other: config.json.
    "Qwen/Qwen3-235B-A22B-FP8": Served(
        "qwen3-235b-a22b", {**_AT_A_TIME, "hf_overrides": _BY_BLOCKS}
    ),
}
"""By the names that rows have."""
_OWN: Mapping[str, Mapping[str, object]] = {"H100-SXM-80GB": {"kv_cache_dtype": "auto"}}
"""By device, what its rows say otherwise: keys and values are in 16 bits.

Two H100s have place for 75 GB of them, 458,000 tokens in 8 bits and 229,000 in 16. Of 8,192 tokens
in and 1,024 out, 32 clients wait 6.5 s for their first tokens and 64 wait 59 s, where 16 wait 1.3
s: by the times of their answers, 29 are served at a time, with 230,000 tokens. Earlier scripts
(70b_fp8_h100_docker.sh of July 2025) do not ask for 8 bits.
"""
_OF_FLASHINFER = ("B200-SXM", "GB200-SXM")
"""Devices for which vLLM takes FlashInfer's attention, which has no schemas to stand in for."""
_ROOM_TOKENS = 200
"""Of a request, what a server takes beyond the row's tokens; source: the same."""
_CAPTURED = (1, 2, 4, 8, 16, 32)


class ServingPredictor:
    """Answers rows of dense models that vLLM served, whole or split by tensors."""

    def __init__(self, machines: Machines, files: ProgramFiles | None = None) -> None:
        self._machines = machines
        kept = KeptAnswers(files) if files is not None and files.kept is not None else None
        self._runner = ProgramRunner(LIMIT_S, kept)

    def predict(self, row: Row) -> Answer:
        """Return the modeled time to the first token, or of a further one."""
        try:
            program = program_of(row)
            machine = self._machines.machine_of(row.device, program.ranks)
            model, device_bytes = MODELS[row.fields["model"]].model, machine.sip_at(0).hbm_bytes
            check_fits(model, QUANTIZATIONS[row.dtype], program.ranks, device_bytes)
            answer = self._runner.answer(program, machine)
        except KernbenchError as error:
            return Answer(None, str(error).split(";")[0].partition(": known: ")[0])
        is_first = row.op == TTFT
        return Answer(
            answer.first_us if is_first else answer.step_us,
            how=f"{row.fields['framework']}, {' '.join(program.args[1:4])}",
            host_share=0.0 if is_first else answer.host_share,
            shares={} if is_first else answer.shares,
            ran=Ran.PROGRAM,
        )


def program_of(row: Row) -> Program:
    """Return the loads of a row, by the engine that it names.

    Raises:
        ProgramError: Nothing of it runs here, for a reason that the error says.
    """
    engine, model = (row.fields[name] for name in ("framework", "model"))
    if engine != "vllm":
        raise ProgramError(f"{engine} is not run: of engines, vLLM is")
    if row.op != TTFT and row.op != "aggregated":
        raise ProgramError(f"vLLM with prefill and decode {row.op} is not run")
    clients, ranks = row.integer("concurrency_or_batch"), row.optional("tp") or 1
    ways = {name: row.optional(name) or 1 for name in ("pp", "attention_dp", "moe_tp", "moe_ep")}
    # Experts on more devices than attention is split over: it is on each of them with other tokens.
    copies = max(ways["attention_dp"], ways.pop("moe_tp") * ways["moe_ep"] // ranks)
    ways["attention_dp"] = copies
    if ways["moe_ep"] == ranks:
        ways["moe_ep"] = 1
    split = [name for name, count in ways.items() if count > 1]
    if split:
        raise ProgramError(f"vLLM split by {' and '.join(split)} is not run")
    if model not in MODELS:
        raise ProgramError(f"{model} is not described to vLLM")
    if row.dtype not in QUANTIZATIONS:
        raise ProgramError(f"vLLM's weights in {row.dtype} are not described")
    if row.device in _OF_FLASHINFER:
        raise ProgramError(f"vLLM's attention on {row.device}, FlashInfer's, is not run")
    tokens = [row.integer(name) for name in ("isl", "osl")]
    graphs = {
        "mode": 0,
        "cudagraph_mode": "FULL_DECODE_ONLY",
        "cudagraph_capture_sizes": sorted({*(s for s in _CAPTURED if s <= clients), clients}),
    }
    served = MODELS[model]
    of_engine = {
        **served.of_server,
        **_OWN.get(row.device, {}),
        "max_num_seqs": clients,
        "compilation_config": graphs,
    }
    if (row.optional("moe_ep") or 1) > 1:
        of_engine["enable_expert_parallel"] = True
    program = loop(
        "serving",
        engine,
        *tokens,
        clients,
        f"--model={served.model}",
        f"--quantization={QUANTIZATIONS[row.dtype]}",
        f"--tp={ranks}",
        f"--max-model-len={sum(tokens) + _ROOM_TOKENS}",
        *(f"--engine-arg={name}={json.dumps(value)}" for name, value in of_engine.items()),
        ranks=ranks,
    )
    program = replace(program, folded_to=0 if ranks > 1 else None)
    return replace(program, reads_first=r"^first token ([\d.]+) ms", installed=("vllm",))
