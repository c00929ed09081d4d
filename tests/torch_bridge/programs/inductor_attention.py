"""Attention by blocks is tuned as on a device, and computes as on the host."""

import torch
from torch._inductor import config
from torch.nn.attention.flex_attention import create_block_mask, flex_attention


def near(result, expected, tolerance=1e-5):
    torch.testing.assert_close(result.cpu().float(), expected, rtol=tolerance, atol=tolerance)


# What is tried of attention by blocks are tensors with the numbers of a mask, on the device.
def causal(batch, head, query, key):
    return query >= key


mask = create_block_mask(causal, 1, None, 256, 256, device="cuda")
operands = torch.randn(3, 1, 1, 256, 16)
with config.patch("test_configs.autotune_choice_name_regex", "_[01]$"):
    attention = torch.compile(flex_attention, options={"max_autotune": True})
    result = attention(*operands.cuda(), block_mask=mask)
near(result, torch.nn.functional.scaled_dot_product_attention(*operands, is_causal=True), 1e-4)
# What was compiled holds for the next layer.
with torch._dynamo.config.patch(error_on_recompile=True):
    attention(*operands.cuda(), block_mask=mask)
