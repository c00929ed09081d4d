"""Errors of every kind come out of all that a launch calls; then one ends rank 1.

python raising_launches.py KIND PLACE, by their numbers
"""

import os
import sys

import greenlet
import simpy
import torch
import torch.distributed as dist
import triton
import triton.language as tl


@triton.jit
def one(x):
    tl.store(x, 1.0)


def boom(*args, **kwargs):
    raise kind("x")


class Pointer:
    dtype = torch.float32
    data_ptr = boom


class Own(BaseException):
    pass


dist.init_process_group("nccl")
x = torch.zeros(1, device="cuda")
hooks = triton.knobs.runtime.launch_enter_hook, triton.knobs.runtime.launch_exit_hook
tuned = triton.autotune([triton.Config({}, pre_hook=boom)], key=[])(one)


def hooked(hook):
    hook.add(boom)
    try:
        one[(1,)](x)
    finally:
        hook.remove(boom)


places = [
    lambda: one[lambda meta: boom()](x),
    lambda: one[(1,)](Pointer()),
    lambda: tuned[(1,)](x),
    lambda: hooked(hooks[0]),
    lambda: hooked(hooks[1]),
]
kinds = [
    StopIteration,
    StopAsyncIteration,
    GeneratorExit,
    SystemExit,
    KeyboardInterrupt,
    greenlet.GreenletExit,
    simpy.Interrupt,
    simpy.core.StopSimulation,
    simpy.core.EmptySchedule,
    Own,
]
for place in places:
    for kind in kinds:
        try:
            place()
        except kind:
            continue
        raise AssertionError(f"{kind} does not come out")
kind = kinds[int(sys.argv[1])]
if os.environ["RANK"] == "1":
    places[int(sys.argv[2])]()
dist.barrier()
