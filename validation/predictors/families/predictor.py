"""Rows of whole programs: each configuration is run once, on the machine of the row's device."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from kernbench.accuracy.rows import Answer, Machines, Ran, Row
from kernbench.errors import KernbenchError
from kernbench.hardware import Machine, changed_machine
from validation.predictors.families.chosen import ChosenProgram, is_compiled, num_nodes
from validation.programs import KeptAnswers, ProgramError, ProgramFiles, ProgramRunner
from validation.sources.training_clocks import training_clocks

_ROOM = "validation.predictors.families"
ADAPTERS = {
    "accelerate-compile": f"{_ROOM}.huggingface:llama_forward",
    "hf-compile-vision": f"{_ROOM}.huggingface:vision_forward",
    "build-nanogpt-lecture": f"{_ROOM}.nanogpt:build_nanogpt",
    "nanogpt-readme": f"{_ROOM}.nanogpt:nanogpt",
    "timm-bench": f"{_ROOM}.pictures:timm_benchmark",
    "nv-dle": f"{_ROOM}.pictures:deep_learning_examples",
    "pt2-dash-1831": f"{_ROOM}.huggingface:dynamo_benchmark",
    "pt2-dash-2049": f"{_ROOM}.huggingface:dynamo_benchmark",
    "pt2-dash-93518": f"{_ROOM}.huggingface:dynamo_benchmark",
    "pt2-dash-96191": f"{_ROOM}.huggingface:dynamo_benchmark",
    "gpt-fast-readme": f"{_ROOM}.decoding:gpt_fast",
    "gpt-fast-blog": f"{_ROOM}.decoding:gpt_fast",
    "llm-foundry-mpt": f"{_ROOM}.sharded:mpt",
    "mcore-golden": f"{_ROOM}.megatron:golden",
    "torchtitan-202412": f"{_ROOM}.sharded:torchtitan",
    "torchtitan-trainy-h200": f"{_ROOM}.sharded:torchtitan",
    "aws-torchtitan": f"{_ROOM}.sharded:torchtitan",
    "torchao-float8-e2e": f"{_ROOM}.sharded:torchtitan",
    "fms-fsdp": f"{_ROOM}.sharded:fms",
    "kernelbench": f"{_ROOM}.public:kernelbench",
    "tritonbench": f"{_ROOM}.public:tritonbench",
    "geak": f"{_ROOM}.public:geak",
    "kernelbench.com": f"{_ROOM}.public:agents",
}
"""Who says what is run for a row, by source."""
Adapter = Callable[[Row, Path], ChosenProgram]


class ProgramPredictor:
    """Answers rows of programs by running them."""

    def __init__(self, machines: Machines, files: ProgramFiles | None = None) -> None:
        self._machines = machines
        files = files or ProgramFiles()
        self._programs = files.folder.absolute()
        self._under: dict[tuple[object, ...], Machine] = {}
        self._runner = ProgramRunner(kept=KeptAnswers(files) if files.kept else None)

    def predict(self, row: Row) -> Answer:
        """Return the modeled time of the step, or of the unit, that the row measured."""
        try:
            asked = self.asked(row)
            machine = self.machine_of(asked, row)
            answer = self._runner.answer(asked.program, machine)
        except KernbenchError as error:
            return Answer(None, str(error).split(";")[0].partition(": known: ")[0])
        how = " ".join((asked.program.module or asked.program.script.name, *asked.program.args))
        step_us = answer.step_us + asked.extra_us
        return Answer(
            step_us / asked.units,
            how=how[:100],
            host_share=answer.host_share,
            shares=answer.shares,
            peak_bytes=answer.peak_bytes,
            ran=Ran.PROGRAM,
        )

    def machine_of(self, asked: ChosenProgram, row: Row) -> Machine:
        """Return the machine of a row's device, under the conditions of its source."""
        device, ranks, nodes = asked.device or row.device, asked.program.ranks, asked.program.nodes
        if nodes == 1:
            machine = self._machines.machine_of(device, ranks)
        else:
            machine = self._machines.nodes_of(row.source, device, nodes, ranks // nodes)
        conditions = asked.conditions
        if asked.runs_hot:
            conditions = (*conditions, *training_clocks(machine).items())
        if not conditions:
            return machine
        key = (machine.name, machine.num_sips, conditions)
        if key not in self._under:
            # Answers are kept by the machine's name.
            said = ", ".join(f"{name}={value:g}" for name, value in conditions)
            changes: dict[str, object] = {"name": f"{machine.name} ({said})"}
            changes.update(conditions)
            self._under[key] = changed_machine(machine, changes)
        return self._under[key]

    def asked(self, row: Row) -> ChosenProgram:
        """Return what is run for a row.

        Raises:
            ProgramError: Nothing is, for a reason that the error says.
        """
        said = row.fields.get("rerunnable", "")
        if said.startswith("no") and _WITH_ENGINE not in said:
            raise ProgramError(f"cannot be run again: {said[2:].strip(' ()')[:80]}")
        if row.source not in ADAPTERS:
            raise ProgramError(f"no program is described for {row.source}")
        compiled = is_compiled(row)
        if compiled and os.environ.get("KERNBENCH_COMPILE") == "eager":
            raise ProgramError("KERNBENCH_COMPILE=eager leaves compiled programs out")
        module, _, name = ADAPTERS[row.source].partition(":")
        adapter: Adapter = getattr(import_module(module), name)
        asked = adapter(row, self._programs)
        if compiled and not asked.program.is_compiled:
            raise ProgramError(f"no compiled program is described for {row.source}")
        if num_nodes(row) != asked.program.nodes:
            raise ProgramError(f"no program on several nodes is described for {row.source}")
        return asked


_WITH_ENGINE = "needs Transformer Engine"
"""What sources say of programs whose Python is there, and whose kernels kernbench defines."""
