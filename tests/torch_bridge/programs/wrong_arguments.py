"""Calls with arguments of wrong types.

python wrong_arguments.py CASE
"""

import sys

import torch

CASES = {
    "a name of no device": lambda: torch.cuda.Stream("x"),
    "no device": lambda: torch.cuda.set_device([1]),
    "a move to a name": lambda: torch.ones(2).cuda("x"),
    "a move to a list": lambda: torch.ones(2).cuda([1]),
    "a tensor on a list": lambda: torch.ones(2, device=[1]),
    "a stream of any device": lambda: torch.Stream("x"),
    "priority": lambda: torch.cuda.Stream(priority="high"),
    "seed": lambda: torch.cuda.manual_seed("x"),
    "no seed": lambda: torch.cuda.manual_seed(None),
    "seed of a generator": lambda: torch.Generator("cuda").manual_seed([1]),
    "offset": lambda: torch.Generator("cuda").set_offset("x"),
    "event": lambda: torch.cuda.current_stream().wait_event("x"),
    "stream to wait for": lambda: torch.cuda.current_stream().wait_stream(None),
    "stream of an event": lambda: torch.cuda.Event().record("x"),
    "stream that waits": lambda: torch.cuda.Event().wait("x"),
    "end": lambda: torch.cuda.Event().elapsed_time(3),
    "stream": lambda: torch.cuda.stream("x").__enter__(),
    "chosen stream": lambda: torch.cuda.set_stream(3),
    "stream of a graph": lambda: torch.cuda.graph(torch.cuda.CUDAGraph(), stream="x"),
    "device of": lambda: torch.cuda.device_of(3),
    "cycles": lambda: torch.cuda._sleep("x"),
}


if __name__ == "__main__":
    CASES[sys.argv[1]]()
