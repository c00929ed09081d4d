"""Constants of vendor libraries' kernels: every file reads, names where its numbers are from."""

from pathlib import Path

import pytest

from kernbench.errors import MachineError, UnknownNameError
from kernbench.hardware import (
    known_libraries,
    known_machines,
    load_library,
    load_machine,
    read_families,
)


@pytest.mark.adr("0128-D1")
@pytest.mark.parametrize("architecture", known_libraries())
def test_every_kernel_says_where_its_constants_are_from(architecture: str) -> None:
    library = load_library(architecture)
    for name in library.names():
        source = library.constants(name).source
        assert source.startswith(("fitted", "assumed", "set to")), (name, source)


@pytest.mark.adr("0128-D1")
def test_machines_name_libraries_that_exist() -> None:
    named = {load_machine(name).spec.kernel_library for name in known_machines()} - {None}
    assert named <= set(known_libraries())
    assert "sm80" in named


def test_an_unknown_kernel_and_architecture_are_named() -> None:
    with pytest.raises(UnknownNameError, match="did you mean flash2_forward"):
        load_library("sm80").constants("flash2_forwar")
    with pytest.raises(UnknownNameError, match="no kernels of architecture 'sm81'"):
        load_library("sm81")


@pytest.mark.adr("0128-D1")
def test_no_two_architectures_repeat_the_numbers_of_a_kernel() -> None:
    entries: dict[object, str] = {}
    for architecture in known_libraries():
        library = load_library(architecture)
        for name in library.names():
            constants = library.constants(name)
            numbers = tuple((key, getattr(constants, key)) for key in constants.given)
            if numbers:
                before = entries.setdefault((name, numbers), architecture)
                assert before == architecture, f"{name} of {architecture} is like {before}"


def write_entries(folder: Path, **entries: str) -> None:
    for architecture, entry in entries.items():
        (folder / architecture).mkdir()
        (folder / architecture / "products.yaml").write_text(f"kernels: {{{entry}}}\n")


@pytest.mark.adr("0128-D1")
def test_an_entry_gives_what_differs_from_another_architecture(tmp_path: Path) -> None:
    write_entries(
        tmp_path,
        old="blas: {tensor_share: 0.5, trip_ns: 7, source: fitted}",
        mid="blas: {like: old}",
        new="blas: {like: mid, trip_ns: 9, source: set to a datasheet}",
    )
    mid, new = (
        read_families(tmp_path / name)["products"].kernels["blas"] for name in ("mid", "new")
    )
    assert [float(item.tensor_share) for item in (mid, new)] == [0.5, 0.5]
    assert [float(item.trip_ns) for item in (mid, new)] == [7, 9]
    assert [item.source for item in (mid, new)] == ["assumed: as old", "set to a datasheet"]
    assert [item.given for item in (mid, new)] == [[], ["trip_ns"]]


@pytest.mark.parametrize(
    "entries",
    [
        {"new": "blas: {like: old}"},
        {"new": "blas: {like: old}", "old": "other: {source: assumed}"},
        {"new": "blas: {like: old}", "old": "blas: {like: new}"},
        {"new": "blas: {like: new}"},
    ],
)
def test_an_entry_like_none_is_refused(entries: dict[str, str], tmp_path: Path) -> None:
    write_entries(tmp_path, **entries)
    with pytest.raises(MachineError, match=r"/products.yaml: kernels.blas: \w+ has no constants"):
        read_families(tmp_path / "new")
