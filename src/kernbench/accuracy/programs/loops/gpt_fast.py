"""Decoding by gpt-fast's own model and loop, with random weights.

arguments: name of the model, tensor-parallel or not by WORLD_SIZE; ``compiled`` for --compile.

Runs model.py, tp.py and the functions of generate.py of the folder that it is given.
"""

import os
import sys

import torch

from kernbench.accuracy.programs.loops.timing import say, seconds_of

WARM_TOKENS = 3


def main() -> None:
    """Time tokens."""
    import generate
    from generate import decode_n_tokens, prefill
    from model import Transformer

    torch.set_grad_enabled(False)
    rank = int(os.environ.get("LOCAL_RANK", "0"))
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        torch.cuda.set_device(rank)
        torch.distributed.init_process_group("nccl")
    with torch.device("meta"):
        model = Transformer.from_name(sys.argv[1])
    model = model.to(dtype=torch.bfloat16).to_empty(device="cuda")
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        from tp import apply_tp

        apply_tp(model)
    model = model.eval()
    with torch.device("cuda"):
        model.setup_caches(max_batch_size=1, max_seq_length=208)
    prompt = torch.zeros(1, 6, dtype=torch.int, device="cuda")
    token = prefill(model, prompt, torch.arange(6, device="cuda"), temperature=0.8, top_k=200)
    place = torch.tensor([6], device="cuda", dtype=torch.int)
    given = {"temperature": 0.8, "top_k": 200}
    if "compiled" in sys.argv[2:]:
        generate.decode_one_token = torch.compile(
            generate.decode_one_token, mode="reduce-overhead", fullgraph=True
        )
    # A graph is captured at the second token.
    for _ in range(WARM_TOKENS):
        decode_n_tokens(model, token.view(1, -1), place, 1, **given)
    found = seconds_of(lambda: decode_n_tokens(model, token.view(1, -1), place, 3, **given))
    if rank == 0:
        say(found / 3)


if __name__ == "__main__":
    main()
