"""Predicts whole requests: a prompt and the generated tokens, or one pass of an encoder."""

from __future__ import annotations

from functools import lru_cache

from kernbench.accuracy.rows import Answer, Row, of_layers
from kernbench.dtypes import as_dtype
from kernbench.hardware import changed_machine
from kernbench.plans import MachineOf, Model, Pass, Passes, PassTime, StageWires, forward_us
from kernbench.tp import TransformerConfig
from validation.sources.stacks import stack_of

DTYPES = {"fp16": "f16", "bf16": "bf16", "fp32": "f32"}

_VOCABULARY = 51200
"""The vocabulary of GPT-2 and its successors, padded; encoders have no output layer here."""
_WHOLE_MODEL = "ops generate and encode are of a model with hidden, layers and heads"


class InferencePredictor:
    """Predicts requests (``generate``) and passes of an encoder (``encode``)."""

    def __init__(self, machine_of: MachineOf) -> None:
        self._machine_of = machine_of
        self._passes = lru_cache(maxsize=64)(self._make_passes)
        self._wires = StageWires(machine_of)

    def predict(self, row: Row) -> Answer:
        """Return the time of the row's request."""
        if row.dtype not in DTYPES:
            return Answer(None, f"no dtype of a model for {row.dtype}")
        if any(row.optional(name) is None for name in ("hidden", "layers", "heads")):
            return Answer(None, _WHOLE_MODEL)
        if row.fields.get("impl") == "Megatron":
            return Answer(None, "what Megatron's own generation computes per token is not known")
        time_of = self._encode_us if row.op == "encode" else self._generate_us
        return of_layers(lambda: time_of(row), "layers run on the machine")

    def _generate_us(self, row: Row) -> float:
        stack, stages = stack_of(row.source), row.optional("pp") or 1
        batch, prompt, new = (row.integer(n) for n in ("batch", "input_len", "output_len"))
        model, passes = self._model(row), self._passes_of(row)

        def through(tokens: int, past: int) -> float:
            """Return the time from the first token's embedding to the logits of all sequences."""
            parts = stack.microbatches(batch, tokens, stages)
            asked = Pass(batch=batch // parts, tokens=tokens, past=past, head=past > 0)
            return self._pipelined_us(row, passes.time(model, asked), parts, asked)

        # The prompt gives the first token, whose logits cost as much as any other's.
        step = Pass(batch=batch, tokens=1, past=prompt + new // 2, head=True)
        head_us = passes.time(model, step).rest_us
        decode_us = through(1, prompt + new // 2) if new > 1 else 0.0
        host_us = stack.request_us + new * stack.step_us
        return host_us + through(prompt, 0) + head_us + (new - 1) * decode_us

    def _encode_us(self, row: Row) -> float:
        stack, stages = stack_of(row.source), row.optional("pp") or 1
        batch, seq = row.integer("batch"), row.integer("seq")
        parts = stack.microbatches(batch, seq, stages)
        packed = row.optional("tokens")
        asked = Pass(
            batch=batch // parts,
            tokens=seq,
            packed=None if packed is None else max(packed // parts, 1),
        )
        model = self._model(row, post_norm=True, causal=False)
        took = self._passes_of(row).time(model, asked)
        return stack.request_us + self._pipelined_us(row, took, parts, asked)

    def _pipelined_us(self, row: Row, took: PassTime, parts: int, asked: Pass) -> float:
        """Return the time of all microbatches through all stages."""
        stages, layers = row.optional("pp") or 1, row.integer("layers")
        tokens = asked.packed or asked.batch * asked.tokens
        send_us = 0.0
        if stages > 1:
            elements = tokens * row.integer("hidden")
            itemsize = as_dtype(DTYPES[row.dtype]).itemsize
            send_us = self._wires.handed_on_us(row.device, row.integer("tp"), elements, itemsize)
        return took.rest_us + forward_us(stages, parts, took.layer_us * layers / stages, send_us)

    def _model(self, row: Row, *, post_norm: bool = False, causal: bool = True) -> Model:
        hidden = row.integer("hidden")
        config = TransformerConfig(
            hidden_size=hidden,
            intermediate_size=4 * hidden,
            num_heads=row.integer("heads"),
            vocab_size=_VOCABULARY,
            num_layers=row.integer("layers"),
            tp_size=row.integer("tp"),
            dtype=DTYPES[row.dtype],
            gated=False,
            bias=True,
        )
        return Model(config=config, post_norm=post_norm, causal=causal)

    def _passes_of(self, row: Row) -> Passes:
        return self._passes(row.device, row.integer("tp"), row.source)

    def _make_passes(self, device: str, ranks: int, source: str) -> Passes:
        stack = stack_of(source)
        machine = changed_machine(self._machine_of(device), {}, num_sips=ranks)
        return Passes(
            stack.adapted(machine, ranks),
            keep_scores=stack.keep_scores,
            decode_splits=stack.decode_splits,
        )
