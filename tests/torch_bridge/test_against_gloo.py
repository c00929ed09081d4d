"""Simulated processes compute what real ones with gloo do, to the bit in groups of two."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from tests.torch_bridge.running import assert_same_bits, real, results, simulated  # noqa: E402


def folders(parent: Path, *names: str) -> list[Path]:
    parents = [parent / name for name in names]
    for item in parents:
        item.mkdir()
    return parents


@pytest.mark.slow
@pytest.mark.adr("0062-D3")
def test_hand_written_tensor_parallelism_has_the_bits_of_real_processes(tmp_path: Path) -> None:
    ours, theirs = folders(tmp_path, "ours", "theirs")
    simulated("tp_layers.py", ours)
    real("tp_layers.py", theirs)
    result, expected = results(ours), results(theirs)
    assert len(expected) == 2
    assert assert_same_bits(result, expected) == 12


@pytest.mark.campaign
@pytest.mark.slow
@pytest.mark.adr("0062-D3")
def test_training_on_a_mesh_and_from_a_checkpoint_has_the_bits_of_real_processes(
    tmp_path: Path,
) -> None:
    ours, theirs = folders(tmp_path, "cuda", "gloo")
    real("mesh_training.py", theirs, "cpu", "new", nprocs=4)
    simulated("mesh_training.py", ours, "cuda", "new", nprocs=4)
    expected = results(theirs)
    assert len(expected) == 4
    assert assert_same_bits(results(ours), expected) == 4 * 11
    # A checkpoint is one of PyTorch's: either side goes on from what the other has saved.
    theirs.joinpath("checkpoint").rename(tmp_path / "theirs")
    ours.joinpath("checkpoint").rename(theirs / "checkpoint")
    (tmp_path / "theirs").rename(ours / "checkpoint")
    real("mesh_training.py", theirs, "cpu", "resume", nprocs=4)
    simulated("mesh_training.py", ours, "cuda", "resume", nprocs=4)
    resumed = results(theirs, "resumed")
    assert assert_same_bits(results(ours, "resumed"), resumed) == 4 * 11
    assert resumed[0]["losses"][0] < expected[0]["losses"][0]


def test_collectives_write_below_autograd_as_the_backends_do(tmp_path: Path) -> None:
    real("written_versions.py", "cpu", tmp_path, nprocs=2)
    simulated("written_versions.py", "cuda", tmp_path, nprocs=2)
    assert results(tmp_path, "cuda") == results(tmp_path, "cpu")
    assert set(results(tmp_path, "cuda")[0].values()) == {0, 1}


@pytest.mark.parametrize("program", ["inference_tensors.py", "split_sizes.py"])
def test_tensors_of_inference_mode_and_sizes_of_numpy_are_taken_as_by_gloo(
    tmp_path: Path, program: str
) -> None:
    real(program, "cpu", tmp_path, nprocs=2)
    simulated(program, "cuda", tmp_path, nprocs=2)
    assert results(tmp_path, "cuda") == results(tmp_path, "cpu")
    assert len(results(tmp_path, "cuda")[0]) > 20


def test_ranks_are_inside_of_levels_of_forward_differentiation_at_once(tmp_path: Path) -> None:
    real("forward_levels.py", "cpu", tmp_path, nprocs=2)
    simulated("forward_levels.py", "cuda", tmp_path, nprocs=2)
    assert results(tmp_path, "cuda") == results(tmp_path, "cpu")
    assert "Nested forward mode AD" in str(results(tmp_path, "cpu"))
