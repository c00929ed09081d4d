"""Constants of kernels that rows alone name: read beside those of programs, with their sources."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from kernbench import hardware
from kernbench.errors import MachineError
from validation.kernels import FOLDER, libraries, load_library


@pytest.mark.adr("0128-D1")
@pytest.mark.parametrize("architecture", sorted(path.name for path in FOLDER.iterdir()))
def test_every_kernel_of_a_stack_says_where_its_constants_are_from(architecture: str) -> None:
    library, shipped = load_library(architecture), hardware.load_library(architecture)
    own = set(library.names()) - set(shipped.names())
    assert own
    for name in own:
        source = library.constants(name).source
        assert source.startswith(("fitted", "assumed", "set to")), (name, source)
    assert all(library.constants(name) == shipped.constants(name) for name in shipped.names())


_FEW = {("sm89", "conv_tf32_planar")}
"""Two boards at one rate, of three programs each: what little there is."""


@pytest.mark.adr("0128-D9")
@pytest.mark.parametrize("architecture", hardware.known_libraries())
def test_no_constant_is_fitted_to_six_rows_or_fewer(architecture: str) -> None:
    has_own = (FOLDER / architecture).is_dir()
    library = load_library(architecture) if has_own else hardware.load_library(architecture)
    few = {
        (architecture, name)
        for name in library.names()
        if (said := re.match(r"fitted to (\d+) rows?", library.constants(name).source))
        and int(said[1]) <= 6
    }
    assert few <= _FEW


def test_a_kernel_that_programs_launch_too_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(hardware.library_folder(), tmp_path, dirs_exist_ok=True)
    (tmp_path / "sm80" / "products.yaml").rename(tmp_path / "sm80" / "twice.yaml")
    monkeypatch.setattr(libraries, "FOLDER", tmp_path)
    with pytest.raises(MachineError, match=r"sm80/attention.yaml: \w+ is a kernel of attention"):
        load_library.__wrapped__("sm80")
