"""A model of timm as its benchmark.py runs it: random pictures, each step ends with a wait.

arguments: model, height and width of pictures, batch, amp or a dtype, memory format (nchw, nhwc),
infer or train, millions of parameters; then what is on of: fast-norm (norms in the dtype of
autocast), fused-attention, reparameterized (branches that add up are one convolution), foreach (the
optimizer's operations).

Source: huggingface/pytorch-image-models, benchmark.py.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch

from validation.programs.loops.timing import say, seconds_of

DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "amp_bf16": torch.bfloat16}
CASTS = {"amp": torch.float16, "amp_bf16": torch.bfloat16}


@contextmanager
def unset() -> Iterator[None]:
    """Leave weights as they are allocated; setting them takes longer here than a step."""
    from timm.layers import weight_init

    inits = [(torch.nn.init, each) for each in dir(torch.nn.init) if each.endswith("_")]
    patched = [(at, name, getattr(at, name)) for at, name in inits if not name.startswith("_")]
    patched.append((weight_init, "_trunc_normal_", weight_init._trunc_normal_))
    for at, name, _ in patched:
        setattr(at, name, lambda tensor, *args, **kwargs: tensor)
    try:
        yield
    finally:
        for at, name, function in patched:
            setattr(at, name, function)


def millions_of(model: torch.nn.Module) -> float:
    """Return how many millions of parameters a model has."""
    found: int = sum(each.numel() for each in model.parameters())
    return found / 1e6


def check_size(found: list[float], said: float) -> None:
    """End where a release of timm has another network by the name: so it is by its parameters."""
    if all(abs(each - said) > max(0.03 * said, 0.01) for each in found):
        raise SystemExit("timm has another network of that name")


def main() -> None:
    """Time steps."""
    import timm
    from timm.layers import set_fast_norm, set_fused_attn
    from timm.utils.model import reparameterize_model

    name, size, batch, dtype, form, phase, millions, *on = sys.argv[1:]
    set_fast_norm("fast-norm" in on)
    set_fused_attn("fused-attention" in on)
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cudnn.benchmark = True
    layout = torch.channels_last if form == "nhwc" else torch.contiguous_format
    kept = None if dtype in (*CASTS, "float32") else DTYPES[dtype]
    given: dict[str, Any] = {} if phase == "infer" else {"drop_rate": 0.0}
    with torch.device("cuda"), unset():
        try:
            model = timm.create_model(name, img_size=int(size), **given)
        except TypeError:
            # Convolutions take pictures of any size.
            model = timm.create_model(name, **given)
    sizes = [millions_of(model)]
    if "reparameterized" in on:
        model = reparameterize_model(model)
        sizes.append(millions_of(model))
    check_size(sizes, float(millions))
    model.to(device="cuda", dtype=kept, memory_format=layout)
    picture = (int(batch), 3, int(size), int(size))
    inputs = torch.randn(picture, device="cuda", dtype=kept).contiguous(memory_format=layout)

    def cast() -> Any:
        return torch.autocast("cuda", CASTS[dtype]) if dtype in CASTS else nullcontext()

    def infer() -> None:
        with cast():
            model(inputs)

    def train() -> None:
        optimizer.zero_grad()
        with cast():
            output = model(inputs)
        output = output[0] if isinstance(output, tuple) else output
        loss(output, target).backward()
        optimizer.step()

    if phase == "infer":
        model.eval()
        torch.set_grad_enabled(False)
        step = infer
    else:
        model.train()
        loss = torch.nn.CrossEntropyLoss().to("cuda")
        given = {"momentum": 0.9, "nesterov": True, "foreach": "foreach" in on}
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, **given)
        target = torch.randint(0, model.num_classes, (int(batch),), device="cuda")
        step = train
    step()
    say(seconds_of(step, 1, waits=True))


if __name__ == "__main__":
    main()
