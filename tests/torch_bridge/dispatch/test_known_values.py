"""Numbers of a device that a run without data knows all the same."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from kernbench.errors import BadPointerError, NoDataError  # noqa: E402
from kernbench.runtime_api import KernelEngine, LivePlan  # noqa: E402
from tests.torch_bridge.running import cases_of, simulated  # noqa: E402

run = partial(simulated, "known_values.py", data=False)
run_kernels = partial(simulated, "known_by_kernels.py", machine="h100-sxm")


MARKED = (
    (pytest.mark.adr("0098-D1"), ("what_follows_from_the_program_is_known",)),
    (
        pytest.mark.adr("0098-D2"),
        (
            "what_is_written_with_unknown_numbers_reads_as_zero",
            "what_is_written_unsaid_or_through_a_lazy_view_reads_as_zero",
            "what_nobody_knows_reads_as_zero",
            "a_move_to_meta_leaves_the_device",
            "what_a_kernel_or_a_capture_has_written_is_unknown",
        ),
    ),
    (pytest.mark.adr("0098-D8"), ("what_a_kernel_computes_of_known_numbers_is_known",)),
    (pytest.mark.adr("0098-D3"), ("a_generator_comes_to_its_longest_length",)),
    (
        pytest.mark.adr("0098-D4"),
        (
            "shapes_that_known_numbers_decide_are_known",
            "shapes_that_unknown_numbers_decide_are_refused_by_name",
        ),
    ),
)
OTHER = (
    "routers_choose_experts_evenly",
    "masks_of_chosen_experts_are_known",
    "routers_whose_choices_nobody_reads",
    "ranks_exchange_what_each_knows",
    "counts_that_nobody_knows",
    "ranks_agree_on_what_each_knows",
    "numbers_of_a_device_among_others_are_read_by_the_host",
)
"""Cases that other tests run."""


@pytest.mark.parametrize("case", cases_of("known_values.py", MARKED, OTHER))
def test_values_are_known_or_not(case: str) -> None:
    run(case)


@pytest.mark.slow
@pytest.mark.adr("0098-D1")
def test_chains_of_operations_are_those_of_the_host() -> None:
    run("chains_of_operations_are_those_of_the_host", 60)


@pytest.mark.adr("0098-D5")
def test_ranks_agree_on_what_each_knows() -> None:
    run("ranks_agree_on_what_each_knows", nprocs=2)


@pytest.mark.adr("0098-D5")
def test_ranks_exchange_what_each_knows() -> None:
    run("ranks_exchange_what_each_knows", nprocs=2)


def test_an_exchange_by_counts_that_nobody_knows_says_that_it_lacks_data() -> None:
    run("counts_that_nobody_knows", nprocs=2)


def remarks_on(case: str) -> list[str]:
    return [line for remarks in run(case).run.remarks for line in remarks()]


@pytest.mark.adr("0193-D1")
def test_routers_choose_experts_evenly() -> None:
    said = remarks_on("routers_choose_experts_evenly")
    assert any("is taken to be even" in item and "known_values.py" in item for item in said)


@pytest.mark.adr("0098-D9")
def test_masks_of_chosen_experts_are_known() -> None:
    said = remarks_on("masks_of_chosen_experts_are_known")
    assert sum("is taken to be even" in item for item in said) == 1


@pytest.mark.adr("0193-D2")
def test_choices_that_decide_nothing_are_not_mentioned() -> None:
    said = remarks_on("routers_whose_choices_nobody_reads")
    assert not any("is taken to be even" in item for item in said)


@pytest.mark.adr("0098-D6")
def test_kernels_decide_by_known_numbers_and_take_the_time_that_data_takes() -> None:
    names = ("sum_rows", "find_offsets", "double_each")
    result = []
    for data in (True, False):
        context = run_kernels("what_the_program_knows", data=data)
        result.append(
            [
                (instance.template.name, instance.ends_ps[0] - instance.starts_ps[0])
                for instance in context.op_log.instances
                if instance.template.name in names
            ]
        )
    assert len(result[0]) == 5
    assert result[0] == result[1]


@pytest.mark.adr("0098-D6")
@pytest.mark.parametrize("data", [True, False])
def test_kernels_decide_by_a_few_numbers_of_a_large_table(data: bool) -> None:
    run_kernels("what_is_in_a_large_table", data=data)


@pytest.mark.adr("0277-D3")
def test_launches_that_read_the_same_numbers_take_the_same_time_without_running(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    executed, run_live = [], KernelEngine.run_live

    def counted(self: KernelEngine, plan: LivePlan, *value: Any) -> Any:
        executed.append(plan.kernel.name)
        return run_live(self, plan, *value)

    monkeypatch.setattr(KernelEngine, "run_live", counted)
    times = []
    for data in (True, False):
        executed.clear()
        log = run_kernels("launches_that_are_alike", data=data).op_log
        times.append(
            [
                (instance.template.name, instance.ends_ps[0] - instance.starts_ps[0])
                for instance in log.instances
                if instance.template.name in ("sum_rows", "find_offsets")
            ]
        )
    assert times[0] == times[1]
    # Of five launches on two lists of lengths, and four that write numbers: the third finds what
    # it writes, and the last what the first has found.
    assert executed == ["sum_rows", "sum_rows", "find_offsets", "find_offsets"]


@pytest.mark.adr("0098-D6")
@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("lengths_that_are_computed", "scf.for .* needs data"),
        ("pointers_that_are_drawn", r"known_by_kernels\.py:.* needs data: .* run has none"),
        (
            "what_a_kernel_would_write_to_decide",
            r"scf.* in kernel find_offsets at .*known_by_kernels\.py:.* needs data",
        ),
        ("what_was_known_and_is_drawn_anew", "scf.for .* needs data"),
        ("a_pointer_to_a_tensor_that_is_gone", "belongs to no live tensor"),
    ],
)
def test_what_nobody_knows_stays_an_error(case: str, words: str) -> None:
    with pytest.raises((NoDataError, BadPointerError), match=words):
        run_kernels(case, data=False)


def test_scores_that_nobody_knows_take_a_sampler_one_pass() -> None:
    took = {}
    for data in (True, False):
        context = run_kernels("what_scores_decide", data, data=data)
        took[data], _ = (
            instance.ends_ps[0] - instance.starts_ps[0]
            for instance in context.run.op_log.instances
            if instance.template.name == "largest"
        )
        said = [line for remark in context.run.remarks for line in remark() if "equal" in line]
        assert len(said) == (not data)
        assert all("in one pass: largest" in item for item in said)
    assert took[False] < took[True]


def test_what_a_kernel_writes_of_unknown_numbers_is_unknown() -> None:
    run_kernels("what_a_kernel_writes_of_unknown_numbers_is_unknown", data=False)


@pytest.mark.parametrize("data", [True, False])
def test_numbers_of_a_device_among_others_are_read_by_the_host(data: bool) -> None:
    context = run("numbers_of_a_device_among_others_are_read_by_the_host", data=data)
    copies = [
        instance
        for instance in context.op_log.instances
        if instance.template.name == "copy_to_host"
    ]
    assert len(copies) >= 12
