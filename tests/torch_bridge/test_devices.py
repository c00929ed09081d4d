"""Tensors say where they are in the simulation, and moves copy."""

from __future__ import annotations

from functools import partial

import pytest

torch = pytest.importorskip("torch")

from tests.torch_bridge.running import simulated  # noqa: E402

check = partial(simulated, "devices.py")


@pytest.mark.adr("0063-D1")
def test_results_views_and_gradients_are_where_their_operands_are() -> None:
    check("results_views_and_gradients_are_where_their_operands_are")


@pytest.mark.adr("0063-D1")
def test_the_types_of_old_programs_name_devices() -> None:
    check("the_types_of_old_programs_name_devices")


@pytest.mark.adr("0063-D1")
def test_operations_that_are_made_of_others_stay_on_the_device_below_autograd() -> None:
    """Handlers of DTensor run there, and meet ``aten.to.dtype`` whole."""
    check("operations_that_are_made_of_others_stay_on_the_device_below_autograd")


def test_operations_with_a_kernel_of_their_own_are_not_taken_apart() -> None:
    check("operations_with_a_kernel_of_their_own_are_not_taken_apart")


def test_a_result_that_nobody_waited_for_is_where_its_operand_is() -> None:
    check("a_result_that_nobody_waited_for_is_where_its_operand_is", nprocs=2)


def test_a_device_may_be_a_number() -> None:
    check("a_device_may_be_a_number")


@pytest.mark.adr("0063-D1")
def test_a_move_to_the_host_is_a_copy_and_a_move_to_where_it_is_is_none() -> None:
    check("a_move_to_the_host_is_a_copy_and_a_move_to_where_it_is_is_none")


@pytest.mark.adr("0063-D1")
def test_tensors_of_two_devices_do_not_mix() -> None:
    check("tensors_of_two_devices_do_not_mix")


@pytest.mark.adr("0077-D7")
def test_what_they_make_passes_through_modes_of_the_program() -> None:
    check("what_they_make_passes_through_modes_of_the_program")


@pytest.mark.adr("0077-D7")
def test_what_composite_operations_make_on_their_way_is_where_their_operands_are() -> None:
    check("what_composite_operations_make_on_their_way_is_where_their_operands_are")


@pytest.mark.adr("0077-D7")
def test_gradients_that_are_made_up_are_where_their_inputs_are() -> None:
    check("gradients_that_are_made_up_are_where_their_inputs_are")


def test_wrappers_and_subclasses_of_tensors_are_where_their_parts_are() -> None:
    check("wrappers_and_subclasses_of_tensors_are_where_their_parts_are")


@pytest.mark.adr("0063-D1")
def test_classes_of_tensors_may_be_called() -> None:
    before = torch.Tensor.__new__
    check("classes_of_tensors_may_be_called")
    assert torch.Tensor.__new__ is before


@pytest.mark.slow
def test_causal_biases_of_attention_mask_what_their_matrix_masks() -> None:
    check("causal_biases_of_attention_mask_what_their_matrix_masks")


def test_packed_sequences_keep_their_sizes_on_the_host() -> None:
    check("packed_sequences_keep_their_sizes_on_the_host")


def test_the_device_of_a_tensor_may_be_the_current_one_for_a_while() -> None:
    check("the_device_of_a_tensor_may_be_the_current_one_for_a_while")


def test_types_that_only_gpus_have_kernels_for_are_done_in_wider_ones() -> None:
    check("types_that_only_gpus_have_kernels_for_are_done_in_wider_ones")


def test_scripts_are_loaded_to_a_device() -> None:
    check("scripts_are_loaded_to_a_device")


def test_whole_numbers_are_refused_where_gpus_refuse_them() -> None:
    check("whole_numbers_are_refused_where_gpus_refuse_them")


def test_sparse_rows_of_a_device_multiply() -> None:
    check("sparse_rows_of_a_device_multiply")


def test_sparse_tensors_are_on_the_device_of_their_parts() -> None:
    check("sparse_tensors_are_on_the_device_of_their_parts")


def test_memory_of_sparse_tensors_is_the_devices() -> None:
    check("memory_of_sparse_tensors_is_the_devices")


def test_gradients_of_sparse_tensors_are_on_the_device() -> None:
    check("gradients_of_sparse_tensors_are_on_the_device")


def test_mistakes_beside_sparse_tensors_are_named() -> None:
    check("mistakes_beside_sparse_tensors_are_named")


def test_what_may_mix_does() -> None:
    check("what_may_mix_does")


@pytest.mark.adr("0063-D1")
def test_devices_survive_saving_copying_and_pickling() -> None:
    check("devices_survive_saving_copying_and_pickling")


@pytest.mark.adr("0063-D7")
def test_device_random_numbers_have_a_seed_and_an_offset() -> None:
    check("device_random_numbers_have_a_seed_and_an_offset")


def test_the_module_describes_the_machine() -> None:
    check("the_module_describes_the_machine")


def test_a_tensor_may_be_given_another_class() -> None:
    check("a_tensor_may_be_given_another_class")


def test_tensors_inside_of_transforms_are_where_those_are_that_were_given() -> None:
    simulated("transforms.py")
