"""Decoding by gpt-fast's own model and loop, with random weights.

arguments: name of the model, tensor-parallel or not by WORLD_SIZE; ``compiled`` for --compile,
``int8`` or ``int4.g32`` for the weights of a checkpoint that quantize.py made.

Runs model.py, tp.py, quantize.py and the functions of generate.py of the folder that it is given.
What is said is the mean of a call of ``generate``: the README divides its tokens by all its time.
"""

import os
import sys

import torch

from validation.programs.loops.timing import say, seconds_of

WARM_TOKENS = 3
NEW_TOKENS = 200
"""What generate.py makes where nothing else is asked for; the first is of the prompt."""
TIMED_TOKENS = 3


def load(name: str, settings: list[str], is_parallel: bool) -> torch.nn.Module:
    """Return the model of ``_load_model`` in generate.py, whose weights hold nothing."""
    from model import Transformer

    with torch.device("meta"):
        model = Transformer.from_name(name)
        for each in settings:
            if each.startswith("int"):
                model = quantised(model, each)
    if is_parallel:
        from tp import apply_tp

        apply_tp(model)
    return model.to(dtype=torch.bfloat16).to_empty(device="cuda").eval()


def quantised(model: torch.nn.Module, weights: str) -> torch.nn.Module:
    """Return the model with linear layers of quantised weights."""
    import quantize

    if weights.startswith("int4.g"):
        handler = quantize.WeightOnlyInt4QuantHandler(model, int(weights.removeprefix("int4.g")))
    elif hasattr(quantize, "WeightOnlyBit8QuantHandler"):
        # That of mixtral-moe.
        handler = quantize.WeightOnlyBit8QuantHandler(model, torch.int8)
    else:
        handler = quantize.WeightOnlyInt8QuantHandler(model)
    return handler.convert_for_runtime()


def main() -> None:
    """Time tokens."""
    import generate
    from generate import decode_n_tokens, prefill

    torch.set_grad_enabled(False)
    rank = int(os.environ.get("LOCAL_RANK", "0"))
    is_parallel = int(os.environ.get("WORLD_SIZE", "1")) > 1
    if is_parallel:
        torch.cuda.set_device(rank)
        torch.distributed.init_process_group("nccl")
    model = load(sys.argv[1], sys.argv[2:], is_parallel)
    with torch.device("cuda"):
        model.setup_caches(max_batch_size=1, max_seq_length=208)
    prompt = torch.zeros(1, 6, dtype=torch.int, device="cuda")
    given = {"temperature": 0.8, "top_k": 200}

    def begin() -> torch.Tensor:
        return prefill(model, prompt, torch.arange(6, device="cuda"), **given)

    token = begin()
    place = torch.tensor([6], device="cuda", dtype=torch.int)
    if "compiled" in sys.argv[2:]:
        generate.decode_one_token = torch.compile(
            generate.decode_one_token, mode="reduce-overhead", fullgraph=True
        )
    # A graph is captured at the second token.
    for _ in range(WARM_TOKENS):
        decode_n_tokens(model, token.view(1, -1), place, 1, **given)
    first = seconds_of(begin)
    others = seconds_of(
        lambda: decode_n_tokens(model, token.view(1, -1), place, TIMED_TOKENS, **given)
    )
    if rank == 0:
        say((first + others / TIMED_TOKENS * (NEW_TOKENS - 1)) / NEW_TOKENS)


if __name__ == "__main__":
    main()
