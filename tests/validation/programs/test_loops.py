"""What loops of ours give the models that they time."""

from __future__ import annotations

import math
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from validation.programs.child import import_torchvision  # noqa: E402
from validation.programs.loops import unet_training  # noqa: E402
from validation.programs.loops.classification import NETWORKS  # noqa: E402
from validation.programs.loops.columns import use_columns  # noqa: E402
from validation.programs.loops.hf_training import CHECKPOINTS, length_of  # noqa: E402
from validation.programs.loops.scores import scale_scores  # noqa: E402
from validation.programs.loops.timing import seconds_of  # noqa: E402
from validation.programs.loops.timm_benchmark import check_size  # noqa: E402


@pytest.mark.parametrize(("waits", "order"), [(True, "w sw sw w"), (False, "w s s w")])
def test_hosts_wait_after_each_step_of_a_loop_that_does(
    monkeypatch: pytest.MonkeyPatch, waits: bool, order: str
) -> None:
    done: list[str] = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: done.append("w"))
    seconds_of(lambda: done.append("s"), 2, waits=waits)
    assert "".join(done) == order.replace(" ", "")


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


@pytest.mark.parametrize(
    ("network", "parameters"),
    [
        # As torchvision and the networks' papers have them.
        ("resnet50", 25_557_032),
        ("resnext101-32x4d", 44_177_704),
        ("efficientnet-b0", 5_288_548),
        ("efficientnet-b4", 19_341_616),
    ],
)
def test_networks_have_the_published_numbers_of_parameters(network: str, parameters: int) -> None:
    result, size = NETWORKS[network]
    with torch.device("meta"):
        model = result()
        scores = model.eval()(torch.zeros(2, 3, size, size))
    answer = sum(parameter.numel() for parameter in model.parameters())
    assert answer == parameters
    assert scores.shape == (2, 1000)


@pytest.mark.parametrize(("dims", "millions"), [(2, 20.6), (3, 31.2)])
def test_a_u_net_has_as_many_weights_as_nnunets(dims: int, millions: float) -> None:
    with torch.device("meta"):
        model = unet_training.UNet(dims, fused=False)
        scores = model(torch.zeros(1, 4, *unet_training.SIZES[dims]))
    result = sum(parameter.numel() for parameter in model.parameters()) / 1e6
    assert result == pytest.approx(millions, abs=0.05)
    assert scores.shape == (1, 4, *unet_training.SIZES[dims])


def test_the_loss_of_a_u_net_is_that_of_its_definition() -> None:
    scores = torch.log(torch.tensor([[[[0.1, 0.7]], [[0.6, 0.1]], [[0.2, 0.1]], [[0.1, 0.1]]]]))
    labels = torch.tensor([[[[1, 0]]]])
    # Dice of class 1: 2 x 0.6 of 1 + 0.7; of classes that nobody has 0; the background is left out.
    dice = (1 - 1.2 / 1.7 + 1 + 1) / 3
    entropy = -(math.log(0.6) + math.log(0.7)) / 2
    loss = unet_training.DiceAndEntropy()(scores, labels)
    assert float(loss) == pytest.approx(dice + entropy, abs=1e-4)


def test_another_network_of_that_name_ends_the_program() -> None:
    check_size([25.6, 21.8], 21.8)
    check_size([0.334], 0.33)
    with pytest.raises(SystemExit, match="another network of that name"):
        check_size([25.6], 15.4)


def test_columns_give_what_a_convolution_of_three_dims_gives() -> None:
    torch.manual_seed(0)
    for bias, size, step in ((True, (3, 3, 1), 1), (False, (2, 1, 3), (2, 1, 1))):
        conv = torch.nn.Conv3d(2, 5, size, step, padding=(1, 1, 0), bias=bias)
        x = torch.randn(3, 2, 6, 7, 5)
        wanted = conv(x)
        model = torch.nn.Sequential(conv)
        use_columns(model)
        torch.testing.assert_close(model(x), wanted)


class Attention(torch.nn.Module):  # type: ignore[name-defined]
    """Attention of one head, as timm's is written."""

    scale = 0.25

    def forward(self, x: Any) -> Any:
        q, k, v = x, x.flip(-1), x
        q = q * self.scale
        attn = q @ k.transpose(-2, -1)
        attn = attn.softmax(dim=-1)
        return attn @ v


def test_scores_are_scaled_after_their_product() -> None:
    model = torch.nn.Sequential(Attention())
    x = torch.randn(2, 9, 16)
    wanted, seen = model(x), []
    scale_scores(model)

    class Sizes(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if func is torch.ops.aten.mul.Tensor:
                seen.append(tuple(args[0].shape))
            return func(*args, **(kwargs or {}))

    with Sizes():
        result = model(x)
    torch.testing.assert_close(result, wanted)
    assert seen == [(2, 9, 9)]
    # Another program's module of that class has its own text.
    with Sizes():
        torch.testing.assert_close(Attention()(x), wanted, rtol=0, atol=1.0)
    assert seen[1] == (2, 9, 16)
