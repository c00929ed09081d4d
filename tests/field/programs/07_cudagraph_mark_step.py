# What programs for mode="reduce-overhead" call in every step.
# run: kernbench torchrun {file}
# expect: mark ok
# expect: reset ok

import torch

step = torch.compile(torch.nn.Linear(8, 8).cuda(), mode="reduce-overhead")
for name, call in (
    ("mark", torch.compiler.cudagraph_mark_step_begin),
    ("reset", torch._dynamo.reset),
):
    try:
        call()
        step(torch.ones(2, 8, device="cuda"))
        print(name, "ok")
    except ImportError as error:
        print(name, "ImportError:", error)
