"""ADR-0123: packages have rooms, in an order that the contracts hold and the page shows."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from tools import house

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "kernbench"
ORDERED = ("kernel_ir", "kernel_time", "replay", "runtime_api", "sanitizer", "torch_bridge")


@pytest.mark.adr("0123-D1")
def test_every_room_has_its_place_in_an_order() -> None:
    houses = house.contracts()
    for package in ORDERED:
        listed = {name for layer in houses[f"kernbench.{package}"] for name in layer}
        folder = PACKAGE / package
        rooms = {path.parent.name for path in folder.glob("*/__init__.py")}
        assert rooms <= listed
        assert listed <= rooms | {path.stem for path in folder.glob("*.py")}


@pytest.mark.adr("0123-D2")
def test_the_time_of_kernels_knows_no_clock_and_plans_know_no_user_of_theirs() -> None:
    lines = [set(layer) for layer in house.contracts()["kernbench"]]
    height = {name: -number for number, layer in enumerate(lines) for name in layer}
    assert height["sanitizer"] == height["interleaved"] == height["kernel_time"]
    assert height["kernel_time"] > height["links"] == height["clock"] == height["replay"]
    importing = [
        str(path.relative_to(PACKAGE))
        for room in ("kernel_time", "links")
        for path in (PACKAGE / room).rglob("*.py")
        if "from kernbench.clock" in path.read_text(encoding="utf-8")
    ]
    assert not importing
    accuracy = {path.parent.name for path in (PACKAGE / "accuracy").glob("*/__init__.py")}
    assert accuracy == {"rows", "predictors", "calibration", "measurement"}


@pytest.mark.adr("0123-D3")
def test_imports_for_types_count() -> None:
    config = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert not config["tool"]["importlinter"]["exclude_type_checking_imports"]


@pytest.mark.adr("0123-D4")
def test_the_picture_on_the_page_is_that_of_the_contracts() -> None:
    shown = house.PAGE.read_text(encoding="utf-8")
    assert shown == house.page(), "run: python tools/house.py --write"
