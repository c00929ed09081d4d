# TF32, asked for in three ways, shortens a float32 product.
# run: kernbench torchrun --no-data --machine h100-sxm {file}
# expect: high +[3-4]\d\d TFLOP/s
# expect: allow_tf32 +[3-4]\d\d TFLOP/s
# expect: fp32_precision +[3-4]\d\d TFLOP/s

import time

import torch

x = torch.zeros(8192, 8192, device="cuda")


def tflops():
    x @ x
    torch.cuda.synchronize()
    start = time.perf_counter()
    x @ x
    torch.cuda.synchronize()
    return 2 * 8192**3 / (time.perf_counter() - start) / 1e12


print(f"highest         {tflops():.0f} TFLOP/s")
torch.set_float32_matmul_precision("high")
print(f"high            {tflops():.0f} TFLOP/s")
torch.set_float32_matmul_precision("highest")
torch.backends.cuda.matmul.allow_tf32 = True
print(f"allow_tf32      {tflops():.0f} TFLOP/s")
torch.backends.cuda.matmul.allow_tf32 = False
torch.backends.cuda.matmul.fp32_precision = "tf32"
print(f"fp32_precision  {tflops():.0f} TFLOP/s")
lin = torch.nn.Linear(8192, 8192, device="cuda")


def l():
    lin(x)
    torch.cuda.synchronize()
    start = time.perf_counter()
    lin(x)
    torch.cuda.synchronize()
    return 2 * 8192**3 / (time.perf_counter() - start) / 1e12


print(f"linear          {l():.0f} TFLOP/s")
