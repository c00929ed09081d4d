"""The tables of docs/host.md about hosts say what machine files have."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kernbench.hardware import HostSpec, load_machine

PAGE = (Path(__file__).parents[2] / "docs" / "host.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| `([\w.]+_us)` \| ([\d.]+) \|", PAGE, re.MULTILINE)


def test_every_time_of_a_host_is_in_the_table() -> None:
    spec = HostSpec(cpu="any")
    of_operation = {f"operation.{model_field}" for model_field in type(spec.operation).model_fields}
    own = {model_field for model_field in HostSpec.model_fields if model_field.endswith("_us")}
    assert {name for name, _ in ROWS} == own | of_operation


@pytest.mark.parametrize(("name", "said"), ROWS)
def test_a_time_in_the_table_is_the_default(name: str, said: str) -> None:
    value: object = HostSpec(cpu="any")
    for part in name.split("."):
        value = getattr(value, part)
    assert float(str(said)) == pytest.approx(float(value))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("machine", "slowdown"),
    [("a100-sxm-80g", 1), ("v100", 1.32), ("h100-sxm", 0.5), ("h200", 0.5), ("b300", 0.5),
     ("gb200", 0.75), ("mi300x", 0.75), ("rtx-4090", 0.6), ("t4", 1)],
)  # fmt: skip
def test_machines_have_the_slowdown_that_the_page_says(machine: str, slowdown: float) -> None:
    host = load_machine(machine).spec.host
    assert host is not None
    assert float(host.slowdown) == slowdown
    assert re.search(rf"\| {slowdown:g} \|", PAGE)
