"""Models of pictures: timm's own benchmark, and those of NVIDIA's DeepLearningExamples."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from kernbench.accuracy.programs import ProgramError, loop
from kernbench.accuracy.validation.predictors.families.chosen import A100_80G, ChosenProgram
from kernbench.accuracy.validation.rows.reference import Row

_NEEDS = ("timm",)
_DTYPES = {
    "amp": "amp",
    "amp_bf16": "amp_bf16",
    "bf16": "bfloat16",
    "bfloat16": "bfloat16",
    "float32": "float32",
    "fp32": "float32",
    "float16": "float16",
}


def timm_benchmark(row: Row, programs: Path) -> ChosenProgram:
    """A step of ``benchmark.py --bench infer`` or ``train`` on random pictures."""
    dtype = _DTYPES.get(row.dtype)
    if dtype is None:
        raise ProgramError(f"timm's benchmark has no dtype {row.dtype}")
    form = row.fields.get("memory_format", "") or "nchw"
    sizes = (row.integer("img_size"), row.integer("batch_size"))
    model = row.fields["model"]
    made = loop("timm_benchmark", model, *sizes, dtype, form, row.op, *_flags(row), needs=_NEEDS)
    return ChosenProgram(program=made)


_PLAIN_NORMS = ("RTX 5090",)
"""Devices whose file of times was made without ``--fast-norm``: there, networks with norms of
groups take twice as long as those with norms of batches, and elsewhere a tenth more."""


def _flags(row: Row) -> Iterator[str]:
    """Yield what was on, by the release of PyTorch that was newest when a file was made."""
    release = tuple(int(each) for each in row.fields["torch_version"].split(".")[:2])
    if row.device not in _PLAIN_NORMS:
        yield "fast-norm"
    if release >= (2, 0):
        yield from ("fused-attention", "foreach")
    if release >= (2, 9):
        yield "reparameterized"


_NETWORKS = {
    "resnet50v1.5": ("resnet50", 224),
    "resnext101-32x4d": ("resnext101_32x4d", 224),
    "se-resnext101-32x4d": ("seresnext101_32x4d", 224),
    "efficientnet-b0": ("efficientnet_b0", 224),
    "efficientnet-b4": ("efficientnet_b4", 380),
}
_LATENCY = re.compile(r"Inference Latency")
_MODEL = re.compile(r"Model=([\w-]+)")


def deep_learning_examples(row: Row, programs: Path) -> ChosenProgram:
    """The forward of a classification network, by timm's network of the same layers.

    Raises:
        ProgramError: The row is of another network, or of training, whose batch it does not say.
    """
    said = row.fields["program_config"]
    family = row.fields["program"].rpartition("/")[2]
    named = _MODEL.search(said)
    network = _NETWORKS.get(named.group(1) if named else family)
    if network is None or not _LATENCY.search(said):
        raise ProgramError("of DeepLearningExamples, classification forwards only are described")
    if "Avg" not in row.fields["metric"] or not row.fields["local_batch"]:
        raise ProgramError("the row is of no average, or says no batch")
    batch = row.integer("local_batch")
    dtype = "amp" if row.dtype.startswith("mixed") else "float32"
    model, size = network
    form = "nhwc" if dtype == "amp" else "nchw"
    made = loop("timm_benchmark", model, size, batch, dtype, form, "infer", needs=_NEEDS)
    device = A100_80G if row.device == "A100" else ""
    return ChosenProgram(program=made, device=device, units=batch if row.per else 1)
