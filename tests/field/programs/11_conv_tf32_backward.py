# Convolutions take TF32 by default, and their backward is not much slower than their forward.
# run: kernbench torchrun --no-data --machine a100-sxm-80g {file}
# expect: alike: True

import time

import torch


def tflops(flops, work):
    work()
    torch.cuda.synchronize()
    start = time.perf_counter()
    work()
    torch.cuda.synchronize()
    return flops / (time.perf_counter() - start) / 1e12


rates = {}
for dtype in (torch.float32, torch.float16):
    for form in (torch.contiguous_format, torch.channels_last):
        x = torch.zeros(256, 128, 28, 28, device="cuda", dtype=dtype, requires_grad=True)
        conv = torch.nn.Conv2d(128, 128, 3, padding=1, bias=False, device="cuda", dtype=dtype)
        x.data = x.data.to(memory_format=form)
        conv = conv.to(memory_format=form)
        flops = 2 * 256 * 28 * 28 * 128 * 128 * 3 * 3
        y = conv(x)
        gradient = torch.zeros_like(y)
        forward = tflops(flops, lambda: conv(x))
        backward = tflops(
            2 * flops,
            lambda: torch.autograd.grad(y, (x, conv.weight), gradient, retain_graph=True),
        )
        rates[dtype, form] = forward, backward
        print(f"{dtype} {form}: forward {forward:.0f}, backward {backward:.0f} TFLOP/s")
# float32's vector units give 19.5 TFLOP/s on this machine.
tf32 = min(rates[torch.float32, torch.channels_last])
halves_forward, halves_backward = rates[torch.float16, torch.channels_last]
print("alike:", tf32 > 25 and halves_backward > halves_forward / 2)
