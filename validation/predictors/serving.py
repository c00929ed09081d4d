"""Predicts rows of serving by running the engine that they name, under the row's load."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

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
from validation.programs.loops.serving import ROUNDS
from validation.sources.forms import TTFT

QUANTIZATIONS = {"fp8": "fp8", "bf16": "", "int4": "compressed-tensors"}
LIMIT_S = 900.0
"""How much time of a CPU a row's loads may take: an engine is begun, and captures its graphs."""
MODELS: Mapping[str, Mapping[str, Any]] = yaml.safe_load(
    Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8")
)
"""Models by the names that rows have, and what their servers are started with."""
MISSED_STEPS = (ROUNDS - 1) / ROUNDS
"""Steps that a row's requests wait on average for the engine to plan again. It plans a step while
the one before runs, as soon as it has given out tokens (``step_with_batch_queue``): a client that
asks again when it has its last one comes when that step is planned, and one of the loop before.
Those that begin together come to an engine that is idle."""
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
            model, device_bytes = MODELS[row.fields["model"]]["model"], machine.sip_at(0).hbm_bytes
            check_fits(model, QUANTIZATIONS[row.dtype], program.ranks, device_bytes)
            answer = self._runner.answer(program, machine)
        except KernbenchError as error:
            return Answer(None, str(error).split(";")[0].partition(": known: ")[0])
        is_first = row.op == TTFT
        return Answer(
            answer.first_us + MISSED_STEPS * answer.step_us if is_first else answer.step_us,
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
    experts, parts = (row.optional(name) or 1 for name in ("moe_ep", "moe_tp"))
    split = [name for name in ("pp", "attention_dp") if (row.optional(name) or 1) > 1]
    # Attention on fewer devices than experts are on is on each of them, for other tokens.
    split += ["attention_dp"] * (experts * parts > ranks and "attention_dp" not in split)
    split += ["moe_ep"] * (experts not in (1, ranks))
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
    of_engine = {
        **MODELS[model]["server"],
        **MODELS[model].get("own", {}).get(row.device, {}),
        "max_num_seqs": clients,
        "compilation_config": graphs,
        **({"enable_expert_parallel": True} if experts > 1 else {}),
    }
    program = loop(
        "serving",
        engine,
        *tokens,
        clients,
        f"--model={MODELS[model]['model']}",
        f"--quantization={QUANTIZATIONS[row.dtype]}",
        f"--tp={ranks}",
        f"--max-model-len={sum(tokens) + _ROOM_TOKENS}",
        *(f"--engine-arg={name}={json.dumps(value)}" for name, value in of_engine.items()),
        ranks=ranks,
    )
    program = replace(program, folded_to=0 if ranks > 1 else None)
    return replace(program, reads_first=r"^first token ([\d.]+) ms", installed=("vllm",))
