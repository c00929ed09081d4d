"""Training by the scripts of Megatron-LM, with the arguments of its functional tests."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import Any

import yaml

from kernbench.accuracy.rows import Row
from validation.predictors.families.chosen import A100_80G, ChosenProgram, num_nodes
from validation.programs import Program, ProgramError, folder_of, loop

COMMIT = "d98e8a6"
"""Whose tests the rows are of."""
_ENGINE = "transformer_engine"
_SCRIPTS = {"t5": "examples/t5/pretrain_t5.py", "bert": "examples/bert/pretrain_bert.py"}
_CHECKPOINTS = ("--async-save", "--use-persistent-ckpt-worker", "--verify-integrity")
_FILES = ("--data-cache-path", "--tokenizer-type", "--vocab-extra-ids", "--exit-interval")
_DROPPED = (*_CHECKPOINTS, *_FILES)
"""Arguments about checkpoints and files: a step is the same without."""
_WORDS = {"t5": 29056 - 1, "bert": 29056 - 1}
_GPT2_WORDS = 50257 - 1
"""Words of the tests' tokenizers, less the end of a text that the one in their place adds."""


def golden(row: Row, programs: Path) -> ChosenProgram:
    """An iteration of a functional test, on made-up tokens.

    Raises:
        ProgramError: The repository is missing, or has no such test.
    """
    folder = folder_of(programs, "Megatron-LM", COMMIT)
    path = PurePosixPath(row.fields["path"])
    written = folder / path.parent / "model_config.yaml"
    if not written.is_file():
        raise ProgramError("needs Megatron-LM: make programs")
    data = yaml.safe_load(written.read_text(encoding="utf-8"))
    kind = path.parts[3]
    script = _SCRIPTS.get(kind, "pretrain_gpt.py")
    # A test that takes Apex away does so before it begins.
    libraries = "plain" if "Apex" in str(data.get("BEFORE_SCRIPT", "")) else "apex"
    result = loop("megatron_lm", libraries, script, *arguments(data["MODEL_ARGS"], kind))
    program = Program(
        script=result.script,
        args=result.args,
        ranks=row.integer("n_devices"),
        nodes=num_nodes(row),
        # Not folded: the first rank does other things than the last, and others wait for both.
        reads=r"elapsed time per iteration \(ms\): ([\d.]+)",
        line=3,
        needs=("transformers",),
        installed=(_ENGINE,)
        if data["MODEL_ARGS"].get("--transformer-impl", _ENGINE) == _ENGINE
        else (),
        folder=folder,
        paths=(folder,),
        # What make programs has built is not built again; those that steer the tests' own shell
        # are left.
        variables=(
            ("MAKEFLAGS", "n"),
            *((k, str(v)) for k, v in (data.get("ENV_VARS") or {}).items() if k != "SKIP_PYTEST"),
        ),
    )
    device = A100_80G if row.device.startswith("A100") else ""
    return ChosenProgram(program=program, device=device)


def arguments(argument: dict[str, Any], kind: str) -> list[str]:
    """Return the arguments of a test, less what names files, for three iterations."""
    names = []
    for name, value in argument.items():
        if name in _DROPPED or "${" in str(value) or name == "--train-iters" or value is False:
            continue
        names += [name] if value is True else [name, *str(value).split()]
    words = _WORDS.get(kind, _GPT2_WORDS)
    names += ["--mock-data", "--tokenizer-type", "NullTokenizer", "--vocab-size", str(words)]
    return [*names, "--train-iters", "4", "--eval-iters", "0"]
