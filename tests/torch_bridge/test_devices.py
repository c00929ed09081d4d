"""Tensors say where they are in the simulation, and moves copy."""

from __future__ import annotations

from functools import partial

import pytest

torch = pytest.importorskip("torch")

from tests.torch_bridge.running import cases_of, simulated  # noqa: E402

check = partial(simulated, "devices.py")


MARKED = (
    (
        pytest.mark.adr("0063-D1"),
        (
            "results_views_and_gradients_are_where_their_operands_are",
            "the_types_of_old_programs_name_devices",
            "operations_that_are_made_of_others_stay_on_the_device_below_autograd",
            "a_move_to_the_host_is_a_copy_and_a_move_to_where_it_is_is_none",
            "tensors_of_two_devices_do_not_mix",
            "devices_survive_saving_copying_and_pickling",
        ),
    ),
    (
        pytest.mark.adr("0077-D7"),
        (
            "what_they_make_passes_through_modes_of_the_program",
            "what_composite_operations_make_on_their_way_is_where_their_operands_are",
            "gradients_that_are_made_up_are_where_their_inputs_are",
        ),
    ),
    (pytest.mark.slow, ("causal_biases_of_attention_mask_what_their_matrix_masks",)),
    (pytest.mark.adr("0063-D7"), ("device_random_numbers_have_a_seed_and_an_offset",)),
)
OTHER = (
    "a_result_that_nobody_waited_for_is_where_its_operand_is",
    "classes_of_tensors_may_be_called",
)
"""Cases that other tests run."""


@pytest.mark.parametrize("case", cases_of("devices.py", MARKED, OTHER))
def test_devices_do_what_is_said(case: str) -> None:
    check(case)


def test_a_result_that_nobody_waited_for_is_where_its_operand_is() -> None:
    check("a_result_that_nobody_waited_for_is_where_its_operand_is", nprocs=2)


@pytest.mark.adr("0063-D1")
def test_classes_of_tensors_may_be_called() -> None:
    before = torch.Tensor.__new__
    check("classes_of_tensors_may_be_called")
    assert torch.Tensor.__new__ is before


def test_tensors_inside_of_transforms_are_where_those_are_that_were_given() -> None:
    simulated("transforms.py")
