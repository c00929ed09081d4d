"""Models of pictures: timm's own benchmark, and those of NVIDIA's DeepLearningExamples."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from kernbench.accuracy.rows import Row
from kernbench.torch_bridge import KERNELS_VARIABLE
from validation.predictors.families.chosen import A100_80G, ChosenProgram, is_compiled
from validation.programs import Program, ProgramError, loop

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
    model = row.fields["model"]
    if model.startswith("tresnet_") and _release(row) < _FUSED:
        raise ProgramError(
            "timm's TResNet of before April 2023 normed by a package of its own (InPlace-ABN)"
        )
    form = row.fields.get("memory_format", "") or "nchw"
    sizes = (row.integer("img_size"), row.integer("batch_size"))
    what = (dtype, form, row.op, row.fields["param_millions"])
    program = loop("timm_benchmark", model, *sizes, *what, *_flags(row), needs=_NEEDS)
    if is_compiled(row):
        program = replace(program, changes=_COMPILED, is_compiled=True)
    elif _release(row) == _NOT_YET_FUSED and model.startswith(_FUSED_LATER):
        program = replace(program, changes=(*_UNFUSED, *_HALF_SCORES))
    elif _release(row) < _WIDE_SCORES and "fused-attention" in program.args:
        program = replace(program, changes=_HALF_SCORES)
    elif _release(row) == _WITHOUT_CUDNN and dtype != "float32" and form == "nchw":
        program = replace(program, changes=_COLUMNS)
    elif _release(row) < _FUSED and model.startswith(_SCORES_SCALED):
        program = replace(program, changes=_SCALED_SCORES)
    if row.op == "train" or _release(row) < _BY_GRAPH:
        release = ".".join(str(number) for number in _release(row))
        program = replace(program, variables=((KERNELS_VARIABLE, release),))
    return ChosenProgram(program=program)


def _release(row: Row) -> tuple[int, ...]:
    return tuple(int(word) for word in row.fields["torch_version"].split(".")[:2])


_BY_GRAPH = (2, 0)
"""The first release that takes other kernels for convolutions channels-last
(docs/model/convolutions.md), and gives a weight to each matrix of a batch
(docs/model/norms-and-reductions.md)."""
_COMPILED = ((r"^    step\(\)$", "    model = torch.compile(model)\n    step()"),)
"""What ``--torchcompile`` adds to the benchmark."""
_WIDE_SCORES = (2, 5)
"""The first release that computes attention that no fused kernel takes in float32, where it is of
half precision: on a 4090, networks with such attention (Twins, SAM's encoder) take 1.2 and 1.4
times as long with 2.9 as with 2.4, and 260 others at most 1.03 times."""
_HALF_SCORES = (
    (
        r"^    step\(\)$",
        "    torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(True)\n    step()",
    ),
)
_NOT_YET_FUSED = (2, 1)
_FUSED_LATER = ("volo_", "xcit_")
"""Networks whose attention calls the fused operation since timm 1.0 (its commit 9b9a356a, of April
2024), and that have rows of PyTorch 2.1, of November 2023: there VOLO takes 1.1 to 1.8 times as
long as with 2.4."""
_UNFUSED = (
    (
        r"^    step\(\)$",
        "    for each in model.modules():\n"
        "        if hasattr(each, 'fused_attn'):\n"
        "            each.fused_attn = False\n"
        "    step()",
    ),
)
_FUSED = (2, 0)
"""The first release with fused attention."""
_SCORES_SCALED = (
    *("vit_", "deit", "pit_", "crossvit_", "mobilevit_", "jx_nest", "nest_"),
    *("twins_", "maxvit_", "maxxvit", "coatnet_", "coatnext_"),
)
"""Networks that scaled the scores of their attention before (timm's commits beef62e7, of July 2022,
and 98c5e782, of November). Swin, BEiT and CaiT scaled queries, as all do now."""
_SCALED_SCORES = (
    (
        r"^    step\(\)$",
        "    from validation.programs.loops.scores import scale_scores\n"
        "    scale_scores(model)\n    step()",
    ),
)
_WITHOUT_CUDNN = (2, 9)
"""The release that leaves out cuDNN's convolutions of three dims: on a 4090, the network that has
one (LambdaNet's) takes 1.3 times as long as with 2.4."""
_COLUMNS = (
    (
        r"^    step\(\)$",
        "    from validation.programs.loops.columns import use_columns\n"
        "    use_columns(model)\n    step()",
    ),
)


_FAST_NORMS = (1, 13)
"""The first release whose file of times is with ``--fast-norm``: in that of training, before it,
norms of groups and of layers take as long as in float32."""
_PLAIN_NORMS = ("RTX 5090",)
"""Devices whose file of times was made without ``--fast-norm``: there, networks with norms of
groups take twice as long as those with norms of batches, and elsewhere a tenth more."""


def _flags(row: Row) -> Iterator[str]:
    """Yield what was on, by the release of PyTorch that was newest when a file was made."""
    release = _release(row)
    if release >= _FAST_NORMS and row.device not in _PLAIN_NORMS:
        yield "fast-norm"
    if release >= _FUSED:
        yield from ("fused-attention", "foreach")
    if release >= (2, 9):
        yield "reparameterized"


_NETWORKS = {
    "resnet50v1.5": "resnet50",
    "resnext101-32x4d": "resnext101-32x4d",
    "se-resnext101-32x4d": "se-resnext101-32x4d",
    **{
        name: name
        for name in (
            "efficientnet-b0",
            "efficientnet-b4",
            "efficientnet-widese-b0",
            "efficientnet-widese-b4",
        )
    },
}
_LATENCY = re.compile(r"Inference Latency")
_MODEL = re.compile(r"Model=([\w-]+)")
_CONDITIONS = {
    "A100": (("host.slowdown", 0.83),),
    "V100": (("host.slowdown", 1.4),),
    "T4": (("host.slowdown", 1.45), ("sip.sustained.clock_loss", 0.3)),
}
"""Hosts with PyTorch 1.9 of the container 21.03: fitted to the batches of 1 of ResNeXT and the
EfficientNets, whose time is their hosts'. The T4's clock, which a source of other rows loses more
of, was fitted to ResNeXT's larger batches."""
_BATCHES = 100
"""A mean is of as many batches: the networks' pages give ``--prof 100``, and latencies at 99 % are
below the means of all, so that one batch in a hundred is slow and not two."""
_SLOWEST_US = {
    "A100": (177e3, 4.6e3),
    "V100": (120e3, 3.1e3),
    "V100 16GB": (14e3, 3.9e3),
    "T4": (36e3, 4.5e3),
}
"""How much longer the slowest batch takes, by device: so long at least, and so long for each
picture. Medians of the differences between mean latencies and mean rates, of batches up to 16 and
from 64 on; they are the same for B0 and for B4, which computes eleven times as much for a picture.
"""


_BATCHES_IN_TRAINING = {
    # Of A100, of V100 with 16 GB, of V100 with 32 GB: in 16 bits, in 32.
    "resnet50": ((256, 256), (256, 112), (256, 112)),
    "resnext101-32x4d": ((128, 128), (128, 64), (128, 64)),
    "se-resnext101-32x4d": ((128, 128), (112, 64), (112, 64)),
    "efficientnet-b0": ((256, 256), (128, 64), (256, 128)),
    "efficientnet-widese-b0": ((256, 256), (128, 64), (256, 128)),
    "efficientnet-b4": ((128, 64), (32, 16), (64, 32)),
    "efficientnet-widese-b4": ((128, 64), (32, 16), (64, 32)),
}
"""Pictures of a device's batch: configs.yml, at the rows' commit."""
_TRAINED_ON = ("A100", "V100 16GB", "V100 32GB")
_TOGETHER = {"resnet50": 2048, "efficientnet": 4096}
"""Pictures that the optimizer takes together; of other networks 1,024."""
_FEWER_TOGETHER = {("resnet50", 112): 896, ("se-resnext101-32x4d", 112): 896}
"""The same, where a batch does not divide them."""
_STARVED = ("efficientnet-b4", "efficientnet-widese-b0", "efficientnet-widese-b4")
"""What one V100 of 32 GB trained at a seventeenth of the rate of eight, as the source's table says
itself, and at half of the rate of one of 16 GB."""
_RELEASE = "1.9"
"""The release of the container 21.03, whose kernels trained."""
_UNETS_RELEASE = "1.14"
"""The release of the container 22.11."""


def deep_learning_examples(row: Row, programs: Path) -> ChosenProgram:
    """Batches of a classification network's validation or training, by networks with their modules.

    Raises:
        ProgramError: The row is of another network, of quantiles, or of a device whose batch is not
            known.
    """
    said = row.fields["program_config"]
    family = row.fields["program"].rpartition("/")[2]
    if family == "nnUNet":
        return _segmentation(row)
    named = _MODEL.search(said)
    network = _NETWORKS.get(named.group(1) if named else family)
    if network is None:
        raise ProgramError("of DeepLearningExamples, classification and U-Nets only are described")
    dtype = "amp" if row.dtype.startswith("mixed") else "float32"
    form = "nhwc" if dtype == "amp" else "nchw"
    if not _LATENCY.search(said):
        return _training(row, network, dtype, form)
    if "Avg" not in row.fields["metric"] or not row.fields["local_batch"]:
        raise ProgramError("the row is of no average, or says no batch")
    batch = row.integer("local_batch")
    least_us, picture_us = _SLOWEST_US.get(row.device, (0.0, 0.0))
    return ChosenProgram(
        program=loop("classification", network, batch, dtype, form),
        device=A100_80G if row.device == "A100" else "",
        # A mean of rates has next to nothing of a slow batch.
        units=batch * (1 - 1 / _BATCHES) if row.per else 1,
        extra_us=0.0 if row.per else max(least_us, picture_us * batch) / _BATCHES,
        conditions=_CONDITIONS.get(row.device.split()[0], ()),
    )


def _training(row: Row, network: str, dtype: str, form: str) -> ChosenProgram:
    """A batch of training on the devices of one node, by the source's own batches."""
    if row.device not in _TRAINED_ON:
        raise ProgramError(f"of DeepLearningExamples, training on {row.device} is not described")
    ranks = row.integer("n_devices")
    if ranks == 1 and row.device == _TRAINED_ON[-1] and network in _STARVED:
        raise ProgramError("eight of its devices are 17 times as fast, by the same table")
    device = _TRAINED_ON.index(row.device)
    batch = _BATCHES_IN_TRAINING[network][device][dtype == "float32"]
    together = _FEWER_TOGETHER.get((network, batch)) or _TOGETHER.get(network.split("-")[0], 1024)
    # Theirs rounds down where all ranks' batches are more.
    backwards = max(1, together // (batch * ranks))
    program = loop("classification_training", network, batch, dtype, form, backwards, ranks=ranks)
    chosen = _trained(row, program, batch, _RELEASE)
    return replace(chosen, conditions=_CONDITIONS[row.device.split()[0]])


_DIMS = re.compile(r"Dimension=([23]);")
_UNETS_ON = {"A100": 5e3, "V100": 7e3}
"""What the loop around a batch (Lightning 1.6) takes meanwhile, in microseconds, by device: the
differences between four times a batch of 32 and one of 128, of two dims, in float32."""


def _segmentation(row: Row) -> ChosenProgram:
    """A batch of a U-Net's training on the devices of one node."""
    dims = _DIMS.search(row.fields["program_config"])
    if dims is None or not row.fields["metric"].startswith("Throughput - "):
        # Their tables of inference are two, and rows do not say which is of 16 bits.
        raise ProgramError("a row of a U-Net's inference does not say its precision")
    if row.device not in _UNETS_ON:
        raise ProgramError(f"of DeepLearningExamples, training on {row.device} is not described")
    ranks, batch = row.integer("n_devices"), row.integer("local_batch")
    dtype = "amp" if row.dtype.startswith("mixed") else "float32"
    program = loop("unet_training", dims.group(1), batch, dtype, ranks=ranks)
    chosen = _trained(row, program, batch, _UNETS_RELEASE)
    return replace(chosen, extra_us=_UNETS_ON[row.device])


def _trained(row: Row, program: Program, batch: int, release: str) -> ChosenProgram:
    """Training with kernels of a release; a row is of one of the pictures of all ranks' batches."""
    folded_to = 0 if program.ranks > 1 else None
    return ChosenProgram(
        program=replace(program, folded_to=folded_to, variables=((KERNELS_VARIABLE, release),)),
        device=A100_80G if row.device == "A100" else "",
        units=batch * program.ranks,
    )
