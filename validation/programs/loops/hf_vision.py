"""Forward of a vision model of Hugging Face's transformers, without gradients, from its config.

arguments: checkpoint, batch, and for a compiled one the mode of ``torch.compile``. The picture has
the size that the checkpoint's processor makes of one of 640 x 480. The source gives means of 300
forwards and not its loop: each is taken to be timed by itself.

Source: huggingface/transformers, docs/source/en/perf_torch_compile.md; configs of the checkpoints.
"""

import sys
from typing import Any

import torch

from validation.programs.loops.timing import say, seconds_of


def _built(kind: Any, config: Any) -> Any:
    """Return the model with attention in plain operations, as transformers had it in 2023."""
    return kind._from_config(config, attn_implementation="eager")


def vit() -> tuple[Any, tuple[int, int]]:
    from transformers import ViTConfig, ViTForImageClassification

    return _built(ViTForImageClassification, ViTConfig(num_labels=1000)), (224, 224)


def beit() -> tuple[Any, tuple[int, int]]:
    from transformers import BeitConfig, BeitForImageClassification

    config = BeitConfig(
        image_size=224, use_relative_position_bias=True, use_mask_token=False, num_labels=21841
    )
    return _built(BeitForImageClassification, config), (224, 224)


def segformer() -> tuple[Any, tuple[int, int]]:
    from transformers import SegformerConfig, SegformerForSemanticSegmentation

    return _built(SegformerForSemanticSegmentation, SegformerConfig(num_labels=150)), (512, 512)


def owlvit() -> tuple[Any, tuple[int, int]]:
    from transformers import OwlViTConfig, OwlViTForObjectDetection

    return _built(OwlViTForObjectDetection, OwlViTConfig()), (768, 768)


def convnext() -> tuple[Any, tuple[int, int]]:
    from transformers import ConvNextConfig, ConvNextForImageClassification

    config = ConvNextConfig(
        depths=[3, 3, 27, 3], hidden_sizes=[192, 384, 768, 1536], num_labels=1000
    )
    _norm_planes()
    return _built(ConvNextForImageClassification, config), (224, 224)


def _norm_planes() -> None:
    """Norm the channels of images by plain operations, as releases of 2023 did.

    So images stay planes; later ones norm them channels-last, and leave them so.
    """
    from transformers.models.convnext import modeling_convnext as module

    kind = module.ConvNextLayerNorm

    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        if self.data_format != "channels_first":
            return torch.nn.LayerNorm.forward(self, x)
        mean = x.mean(1, keepdim=True)
        variance = (x - mean).pow(2).mean(1, keepdim=True)
        x = (x - mean) / torch.sqrt(variance + self.eps)
        return self.weight[:, None, None] * x + self.bias[:, None, None]

    kind.forward = forward


def resnet() -> tuple[Any, tuple[int, int]]:
    from transformers import ResNetConfig, ResNetForImageClassification

    return _built(ResNetForImageClassification, ResNetConfig(num_labels=1000)), (224, 224)


def swin() -> tuple[Any, tuple[int, int]]:
    from transformers import SwinConfig, SwinForImageClassification

    return _built(SwinForImageClassification, SwinConfig(num_labels=1000)), (224, 224)


def mobilenet() -> tuple[Any, tuple[int, int]]:
    from transformers import MobileNetV2Config, MobileNetV2ForSemanticSegmentation

    config = MobileNetV2Config(image_size=513, num_labels=21, output_stride=8)
    return _built(MobileNetV2ForSemanticSegmentation, config), (513, 513)


def mask2former() -> tuple[Any, tuple[int, int]]:
    from transformers import Mask2FormerConfig, Mask2FormerForUniversalSegmentation, SwinConfig

    stages = ["stage1", "stage2", "stage3", "stage4"]
    backbone = SwinConfig(
        embed_dim=96, depths=[2, 2, 6, 2], num_heads=[3, 6, 12, 24], out_features=stages
    )
    config = Mask2FormerConfig(backbone_config=backbone, num_queries=100, num_labels=133)
    _read_sizes()
    return _built(Mask2FormerForUniversalSegmentation, config), (384, 384)


def _read_sizes() -> None:
    """Read the sizes of levels from the device, where releases of 2023 had them.

    Host and device wait for each other 12 times in a layer, and as often before all of them.
    """
    from transformers.models.mask2former import modeling_mask2former as module

    table: dict[Any, torch.Tensor] = {}
    encoder = module.Mask2FormerPixelDecoderEncoderOnly
    # A program before this one may have left its own.
    attend = getattr(module, "plain_attention", module.multi_scale_deformable_attention)
    points = getattr(module, "plain_points", encoder.get_reference_points)
    module.plain_attention, module.plain_points = attend, points

    def sizes_of(shapes: Any) -> torch.Tensor:
        key = tuple(map(tuple, shapes))
        if key not in table:
            table[key] = torch.as_tensor(key, dtype=torch.long, device="cuda")
        return table[key]

    def attend_by(value: Any, shapes: Any, *rest: Any) -> Any:
        # To split by levels, and to give each its shape.
        for _ in range(2):
            for height, width in sizes_of(shapes):
                height.item(), width.item()
        return attend(value, shapes, *rest)

    def points_of(shapes: Any, *rest: Any, **more: Any) -> Any:
        for each in sizes_of(shapes):
            for size in each:
                (size - 0.5).item(), size.item()
        return points(shapes, *rest, **more)

    module.multi_scale_deformable_attention = attend_by
    encoder.get_reference_points = staticmethod(points_of)


def maskformer() -> tuple[Any, tuple[int, int]]:
    from transformers import (
        DetrConfig,
        MaskFormerConfig,
        MaskFormerForInstanceSegmentation,
        MaskFormerSwinConfig,
    )

    backbone = MaskFormerSwinConfig(
        image_size=384,
        embed_dim=128,
        depths=[2, 2, 18, 2],
        num_heads=[4, 8, 16, 32],
        window_size=12,
        out_features=["stage1", "stage2", "stage3", "stage4"],
    )
    config = MaskFormerConfig(
        backbone_config=backbone, decoder_config=_detr(DetrConfig, 50), num_labels=133
    )
    return _built(MaskFormerForInstanceSegmentation, config), (384, 384)


def _detr(config: Any, depth: int, **more: Any) -> Any:
    from transformers import ResNetConfig

    depths = {50: [3, 4, 6, 3], 101: [3, 4, 23, 3]}[depth]
    backbone = ResNetConfig(depths=depths, out_features=["stage4"])
    return config(use_timm_backbone=False, backbone_config=backbone, backbone=None, **more)


def detr(depth: int = 50) -> tuple[Any, tuple[int, int]]:
    from transformers import DetrConfig, DetrForObjectDetection

    return _built(DetrForObjectDetection, _detr(DetrConfig, depth)), (800, 1066)


def conditional_detr() -> tuple[Any, tuple[int, int]]:
    from transformers import ConditionalDetrConfig, ConditionalDetrForObjectDetection

    config = _detr(ConditionalDetrConfig, 50, num_queries=300)
    return _built(ConditionalDetrForObjectDetection, config), (800, 1066)


MODELS = {
    "google/vit-base": vit,
    "microsoft/beit-base": beit,
    "nvidia/segformer-b0": segformer,
    "google/owlvit-base-patch32": owlvit,
    "facebook/convnext-large": convnext,
    "microsoft/resnet-50": resnet,
    "microsoft/swin-tiny": swin,
    "google/deeplabv3_mobilenet_v2": mobilenet,
    "facebook/mask2former-swin-tiny": mask2former,
    "facebook/maskformer-swin-base": maskformer,
    "facebook/detr-resnet-50": detr,
    "facebook/detr-resnet-101": lambda: detr(101),
    "microsoft/conditional-detr-resnet-50": conditional_detr,
}


def main() -> None:
    """Time forwards."""
    checkpoint, batch = sys.argv[1], int(sys.argv[2])
    known = [each for each in MODELS if checkpoint.startswith(each)]
    if not known:
        raise SystemExit(f"no config of {checkpoint}")
    torch.set_grad_enabled(False)
    with torch.device("cuda"):
        model, size = MODELS[max(known, key=len)]()
        model.to("cuda").eval()
        given = {"pixel_values": torch.randn(batch, 3, *size)}
        if "owlvit" in checkpoint:
            # Two texts for each picture.
            given["input_ids"] = torch.randint(0, 1000, (2 * batch, 16))
            given["attention_mask"] = torch.ones(2 * batch, 16, dtype=torch.int64)
    if len(sys.argv) > 3:
        model = torch.compile(model, mode=sys.argv[3])
        # A graph is captured at the second call.
        model(**given)
    model(**given)
    say(seconds_of(lambda: model(**given), 3, waits=True))


if __name__ == "__main__":
    main()
