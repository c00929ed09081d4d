"""A program that puts a module of its own into sys.modules leaves libraries' modules shared."""

import sys
from types import ModuleType

import torch
import torch.distributed as dist

module = ModuleType("stand_in_of_the_program")
module.__dict__.update({"rank": None})
sys.modules["stand_in_of_the_program"] = module

dist.init_process_group("nccl")
module.__dict__["rank"] = dist.get_rank()
# What the first rank imports is there for the second, which would register everything again.
x = torch.compile(lambda x: x + 1)(torch.ones(2, device="cuda"))
dist.barrier()
import stand_in_of_the_program  # noqa: E402

assert stand_in_of_the_program is module
assert stand_in_of_the_program.rank == dist.get_rank()
