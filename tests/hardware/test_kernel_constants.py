"""Constants of vendor libraries' kernels: every file reads, names where its numbers are from."""

import pytest

from kernbench.errors import UnknownNameError
from kernbench.hardware import known_libraries, known_machines, load_library, load_machine


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
