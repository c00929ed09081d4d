"""What loops of ours give the models that they time."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from kernbench.accuracy.programs.child import import_torchvision
from kernbench.accuracy.programs.loops.hf_training import CHECKPOINTS, length_of


@pytest.mark.parametrize(
    ("name", "length"),
    [
        ("BartForCausalLM", 1024),
        ("AlbertForMaskedLM", 512),
        ("DistillGPT2", 512),
        ("TrOCRForCausalLM", 256),
        ("BlenderbotSmallForCausalLM", 128),
        ("DistilBertForMaskedLM", 128),
        ("OPTForCausalLM", 2048),
    ],
)
def test_sequences_are_as_long_as_the_benchmark_makes_them(name: str, length: int) -> None:
    assert length_of(name) == length


def test_checkpoints_are_classes_of_their_library() -> None:
    transformers = pytest.importorskip("transformers")
    # The library imports torchvision, which may be built for another PyTorch.
    import_torchvision()
    for name, _ in CHECKPOINTS.values():
        assert hasattr(transformers, name)
