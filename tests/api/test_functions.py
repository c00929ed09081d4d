from __future__ import annotations

import inspect
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_type_hints

import pandas
import pytest

import kernbench
from kernbench.analysis import explain
from kernbench.api import RunResult
from kernbench.api.runs import _options
from kernbench.judging import Judge, Verdict
from tests.retiming.retiming import run_and_keep

FUNCTIONS: tuple[tuple[Callable[..., Any], type], ...] = (
    (kernbench.run, kernbench.RunResult),
    (kernbench.retime, kernbench.RunResult),
    (kernbench.why, kernbench.WhyResult),
    (kernbench.sweep, kernbench.SweepResult),
    (kernbench.plan, kernbench.PlanResult),
    (kernbench.judge, Verdict),
)
SCRIPT = """
import kernbench

run = kernbench.run("gemm", machine="h100-sxm", params={"m": 256}, data=False, save="g.run")
total: float = run.time_ns
kernels: list[str] = [each["name"] for each in run.report["kernels"]]
why = kernbench.why(run, range="all")
spent: float = sum(each["time_ns"] for each in why.report["spent"])
again = kernbench.retime(run, machine="h200", settings={"host.slowdown": "2x"})
swept = kernbench.sweep("gemm", {"m": [128, 256]}, machine="h100-sxm", data=False)
best: str = swept.best.values["m"]
plan = kernbench.plan(
    "llama-3-8b", machine="h100-sxm", devices=8, sizes={"tp": [8], "pp": [1]}, run=0
)
label: str = plan.best.layout.label
verdict = kernbench.judge("candidate.py", "task.py", machines=["h100-sxm"])
right: bool = verdict.is_right
launches: int = len(run.log)
for result in (run, why, again, swept, plan):
    print(repr(result), str(result), result.rows()[0])
with kernbench.RuntimeContext("ahbm", ranks=2) as torch:
    print(torch.ones(4, 4), torch.current_rank(), torch.report()["time_ns"])
print(kernels, spent, again.time_ns / total, best, label, right, launches)
"""


@pytest.fixture
def result(tmp_path: Path) -> RunResult:
    def program(torch: Any) -> None:
        (torch.ones(64, 64) @ torch.ones(64, 64)).sum().item()

    return RunResult(run_and_keep(program, "ahbm:1", tmp_path / "a.run")[1])


@pytest.mark.adr("0270-D1")
@pytest.mark.parametrize(("function", "returned"), FUNCTIONS, ids=lambda item: item.__name__)
def test_a_command_is_a_documented_function_with_a_typed_result(
    function: Callable[..., Any], returned: type
) -> None:
    # Types that are imported for checks alone have no names at run time.
    own = {"StrPath": str, "Grid": dict, "Path": str}
    hints = get_type_hints(function, {**vars(sys.modules[function.__module__]), **own})
    assert hints.pop("return") is returned
    assert Any not in hints.values()
    documented = Judge.__call__ if function is kernbench.judge else function
    assert set(inspect.signature(documented).parameters) - {"self"} == set(hints)
    said = inspect.getdoc(documented) or ""
    assert all(f"{name}: " in said for name in hints if name != "run"), function.__name__
    assert function.__name__ in dir(kernbench)


@pytest.mark.adr("0270-D1")
@pytest.mark.campaign
def test_a_script_that_uses_all_of_them_has_no_any(tmp_path: Path) -> None:
    (tmp_path / "user.py").write_text(SCRIPT)
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--disallow-any-expr", "--config-file=",
         "user.py"],
        cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert checked.returncode == 0, checked.stdout


@pytest.mark.adr("0270-D3")
def test_a_result_prints_what_the_command_prints_and_is_a_table(result: RunResult) -> None:
    assert repr(result).startswith("RunResult(, 1 rank of ahbm, ")
    assert "compute  exposed comm" in str(result)
    assert str(result).splitlines()[0] in result._repr_html_()
    table = result.to_pandas()
    assert isinstance(table, pandas.DataFrame)
    assert table["time_ns"].sum() == sum(item["time_ns"] for item in result.report["kernels"])


@pytest.mark.adr("0270-D2")
def test_why_is_what_explains_the_log(result: RunResult) -> None:
    assert kernbench.load_run(result.path).report == result.report
    for asked in (result, result.path):
        why = kernbench.why(asked)
        assert why.report == explain(result.log, result.machine, 1)
        assert why.to_pandas()["time_ns"].sum() == pytest.approx(result.time_ns)
    with pytest.raises(kernbench.errors.UnknownNameError, match="no range or step"):
        kernbench.why(result, range="step 7")


def test_options_are_those_of_the_kind_of_a_program(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import torch\n")
    (tmp_path / "script.py").write_text("import triton\n")
    train, script = str(tmp_path / "train.py"), str(tmp_path / "script.py")
    assert _options("gemm", 2, 1, {"m": 8}) == ["-p", "m=8", "--ranks", "2"]
    assert _options(train, 16, 2, {}) == ["--nnodes", "2", "--nproc-per-node", "8"]
    with pytest.raises(kernbench.errors.UsageError, match="15 ranks do not fill 2 nodes"):
        _options(train, 15, 2, {})
    with pytest.raises(kernbench.errors.UsageError, match=r"takes no params; give it args"):
        _options(script, None, 1, {"m": 8})
    with pytest.raises(kernbench.errors.UsageError, match="nodes are for PyTorch programs"):
        _options("gemm", None, 2, {})


def test_what_a_command_refuses_is_raised_with_its_words() -> None:
    with pytest.raises(kernbench.errors.UsageError, match="cannot be read as a saved run"):
        kernbench.retime("no.run")
    with pytest.raises(kernbench.errors.UsageError, match="the grid has no points"):
        kernbench.sweep("gemm", {})


@pytest.mark.campaign
def test_a_run_is_kept_retimed_and_swept(tmp_path: Path) -> None:
    kept = tmp_path / "kept.run"
    params = {"m": 64, "n": 64, "k": 64}
    run = kernbench.run("gemm", machine="ahbm", params=params, data=False, save=kept)
    printed = tmp_path / "report.json"
    words = ["-p", "m=64", "-p", "n=64", "-p", "k=64", "--machine", "ahbm", "--no-data"]
    command = [sys.executable, "-m", "kernbench", "run", "gemm", *words, "--json", str(printed)]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    assert run.report["kernels"] == json.loads(printed.read_text())["kernels"]
    again = kernbench.retime(run)
    assert again.time_ns == run.time_ns
    place = again.path
    assert place.exists()
    del again
    assert not place.exists()
    swept = kernbench.sweep(
        "gemm", {"m": [64]}, params={"n": 64, "k": 64}, machine="ahbm", data=False
    )
    assert swept.best.time_ns == run.time_ns
    with pytest.raises(kernbench.RunError, match="longer than"):
        kernbench.run("gemm", timeout_s=0.01)
