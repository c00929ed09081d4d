# Every clock that a program times itself by is modeled, as param's collectives need.
# run: kernbench torchrun --no-data --machine h100-sxm {file}
# expect: alike: True

import datetime
import time

import torch

CLOCKS = {
    "perf_counter": time.perf_counter,
    "monotonic": time.monotonic,
    "monotonic_ns": lambda: time.monotonic_ns() / 1e9,
    "time": time.time,
    "datetime": lambda: datetime.datetime.now().timestamp(),
}
x = torch.zeros(8192, 8192, device="cuda", dtype=torch.bfloat16)
torch.cuda.synchronize()
starts = {name: clock() for name, clock in CLOCKS.items()}
for _ in range(10):
    x @ x
torch.cuda.synchronize()
spent = {name: clock() - starts[name] for name, clock in CLOCKS.items()}
print(spent)
print("alike:", max(spent.values()) - min(spent.values()) < 20e-6)
