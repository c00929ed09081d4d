"""What an operation is, in kernel_ir/ops, and what it computes, in replay/numerics/ops, agree."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from kernbench import kernel_ir
from kernbench.kernel_ir import COSTS
from kernbench.kernel_ir.ops import reduce
from kernbench.replay.numerics.elementwise import NUMERICS, TABLES

STEMS = sorted(
    file.stem
    for file in (Path(kernel_ir.__file__).parent / "ops").glob("*.py")
    if file.stem not in ("__init__", "registry")
)


@pytest.mark.parametrize("stem", STEMS)
def test_what_a_dialect_emits_is_what_the_module_of_its_name_computes(stem: str) -> None:
    dialect = importlib.import_module(f"kernbench.kernel_ir.ops.{stem}").DIALECT
    assert set(dialect.costs) == set(TABLES.get(stem, {}))


def test_every_emitted_operation_is_computed_and_the_other_way_round() -> None:
    assert COSTS.keys() == NUMERICS.keys()
    assert set(TABLES) <= set(STEMS)


def test_combines_with_a_name_are_those_that_numpy_reduces_with() -> None:
    assert {name for name, item in NUMERICS.items() if item.combine} == reduce.NAMED
