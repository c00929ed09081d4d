"""``torch.cond``, loops and scans as operations, and what else would be compiled."""

from __future__ import annotations

import warnings
from functools import partial

import pytest

torch = pytest.importorskip("torch")

from tests.torch_bridge.running import simulated  # noqa: E402

run = partial(simulated, "control_flow.py")


@pytest.mark.adr("0077-D6")
@pytest.mark.parametrize(
    "flow",
    [
        *("cond", "a chosen branch", "while_loop", "map", "scan", "associative_scan"),
        "foreach_map",
    ],
)
def test_control_flow_computes_and_differentiates_as_in_python(flow: str) -> None:
    run("flow_computes_and_differentiates_as_in_python", flow)


@pytest.mark.parametrize("case", ["scan_of_elements", "random_numbers_with_their_state"])
def test_operators_of_functions_run_eagerly(case: str) -> None:
    run(case)


@pytest.mark.adr("0077-D6")
def test_wrong_use_of_control_flow_is_pytorchs_error() -> None:
    with pytest.raises(RuntimeError, match="single-element tensor"):
        run("a_condition_of_two_elements")


def test_compiled_autograd_is_left_out_with_a_warning() -> None:
    with warnings.catch_warnings(record=True) as caught:
        run("compiled_autograd")
    assert any("compiled autograd is left out" in str(item.message) for item in caught)


@pytest.mark.parametrize("imports", ["before", "then"])
def test_asking_what_would_be_compiled_is_refused_by_name(
    imports: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERNBENCH_COMPILE", "eager")
    with pytest.raises(NotImplementedError, match=r"torch\._dynamo\.explain: nothing is compiled"):
        run("explain", imports)
