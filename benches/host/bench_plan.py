"""Question: how long does a plan take of a model of 70B parameters on 64 devices?

All layouts of ``llama-3-70b`` on ``h100-sxm`` for training, 64 sequences of 4,096 tokens, in a
process of its own: its CPU seconds include starting Python and importing kernbench.
"""

from __future__ import annotations

from conftest import Goal, measured_in_a_process

PLAN = """
from kernbench.plans import AllowedSizes, Job, model_of
from kernbench.cli.plans.ranking import rank
from kernbench.hardware import load_machine
job = Job(trains=True, devices=64, batch=64, seq=4096)
ranking = rank(model_of("llama-3-70b"), job, load_machine("h100-sxm:64"), AllowedSizes())
found = {"layouts": len(ranking.timed)}
"""


def test_a_plan_of_70b_on_64_devices(goal: Goal) -> None:
    measured = measured_in_a_process(PLAN)
    assert measured["layouts"] > 50
    goal("plan of 70B parameters on 64 devices, CPU time", measured["cpu_s"], 120, " s")
