"""Triton's profiler inside of a run, as host code uses it: trees of modeled time."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import triton
import triton.language as tl

from kernbench import ops
from kernbench.errors import KernbenchError, UsageError
from kernbench.runtime_api import RuntimeContext
from kernbench.triton_backend import activate
from kernbench.triton_backend.proton import _ProtonLibrary, install, remove
from tests.programs import PROGRAMS
from tests.triton_backend.recording import RecordingLauncher, Tensor

# Before 3.8 Triton's profiler finds the backends of vendors only; ours is to be named.
NAMED: dict[str, Any] = {"backend": "kernbench"} if triton.__version__ < "3.8" else {}

proton = pytest.importorskip("triton.profiler")


def flops_of(grid: Any, metadata: Any, args: Any) -> dict[str, Any]:
    return {"name": f"add_{args['n']}", "flops32": args["n"]}


@triton.jit(launch_metadata=flops_of)
def named(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n) + 1, mask=at < n)


@triton.jit
def plain(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n) * 2, mask=at < n)


def tree(path: Path) -> dict[tuple[str, ...], dict[str, Any]]:
    """Return the metrics of every frame, by the names on the way to it."""
    result = {}

    def walk(node: dict[str, Any], above: tuple[str, ...]) -> None:
        here = (*above, node["frame"]["name"])
        result[here[1:]] = node["metrics"]
        for child in node["children"]:
            walk(child, here)

    root, device = json.loads(path.read_text())
    assert list(device) == ["KERNBENCH"]
    walk(root, ())
    return result


def test_a_run_replaces_the_library_wherever_the_profiler_has_imported_it() -> None:
    def users() -> dict[str, Any]:
        return {
            name: module.libproton
            for name, module in list(sys.modules.items())
            if name.startswith("triton.profiler") and hasattr(module, "libproton")
        }

    # A run of another test may be active still, as where one is kept for a notebook.
    was_replaced = isinstance(users()["triton.profiler.profile"], _ProtonLibrary)
    remove()
    before = users()
    assert len(before) > 3
    install()
    assert not [name for name, value in before.items() if users()[name] is value]
    remove()
    assert users() == before
    if was_replaced:
        install()


def test_what_the_shipped_kernels_launched_before_is_in_the_tree_too(tmp_path: Path) -> None:
    with RuntimeContext(machine="ahbm", ranks=1) as torch:
        x = torch.ones(64, 64)
        for _ in range(2):
            ops.relu(x)
        proton.start(str(tmp_path / "found"), **NAMED)
        for _ in range(3):
            ops.relu(x)
        proton.finalize()
        ops.relu(x)
    (metrics,) = [value for path, value in tree(tmp_path / "found.hatchet").items() if path]
    assert metrics["count"] == 3


@pytest.mark.adr("0050-D8")
def test_a_session_is_a_tree_of_scopes_and_launches_in_modeled_time(tmp_path: Path) -> None:
    with RuntimeContext(machine="ahbm", ranks=1) as torch:
        x, out = torch.ones(1000), torch.empty(1000)
        proton.start(str(tmp_path / "found"), hook="triton", **NAMED)
        with proton.scope("first", {"tokens": 3}):
            for _ in range(3):
                named[(4,)](x, out, 1000, BLOCK=256)
            plain[(4,)](x, out, 1000, BLOCK=256)
        proton.deactivate()
        plain[(4,)](x, out, 1000, BLOCK=256)
        proton.activate()
        plain[(4,)](out, x, 1000, BLOCK=256)
        triton.testing.do_bench(lambda: plain[(4,)](out, x, 1000, BLOCK=256))
        proton.finalize()
    launches = [
        instance for instance in torch.op_log.instances if instance.template.kind == "kernel"
    ]
    result = tree(tmp_path / "found.hatchet")
    assert result.keys() == {
        (), ("first",), ("first", "add_1000"), ("first", "plain"), ("plain",)
    }  # fmt: skip
    assert result["first",] == {"tokens": 3}
    of_named = result["first", "add_1000"]
    assert (of_named["count"], of_named["flops32"]) == (3, 3000)
    times_ns = [(launch.ends_ps[0] - launch.starts_ps[0]) / 1000 for launch in launches]
    assert len(times_ns) == 6
    assert of_named["time (ns)"] == pytest.approx(sum(times_ns[:3]))
    assert result["first", "plain"]["time (ns)"] == pytest.approx(times_ns[3])
    assert result["plain",]["time (ns)"] == pytest.approx(times_ns[5])


@pytest.mark.adr("0050-D8")
@pytest.mark.parametrize(
    ("options", "asked"),
    [
        ({"data": "trace"}, "data='trace'"),
        ({"context": "python"}, "context='python'"),
        ({"backend": "instrumentation"}, "backend='instrumentation'"),
    ],
)
def test_what_has_no_modeled_counterpart_is_refused_by_name(
    options: dict[str, str], asked: str
) -> None:
    with activate(RecordingLauncher()), pytest.raises(UsageError, match=asked):
        proton.start("x", **{**NAMED, **options})
    proton.finalize  # noqa: B018


def test_files_that_cannot_be_and_sessions_that_are_not_are_named(tmp_path: Path) -> None:
    with activate(RecordingLauncher()):
        session = proton.start(str(tmp_path / "missing" / "x"), **NAMED)
        with pytest.raises(KernbenchError, match=r"missing/x\.hatchet: cannot be written"):
            proton.finalize(session)
        with pytest.raises(UsageError, match=f"no session {session}"):
            proton.deactivate(session)


@pytest.mark.adr("0050-D8")
def test_outside_of_a_run_the_library_is_tritons_own() -> None:
    # In a process of its own: other tests keep runs open.
    subprocess.run([sys.executable, str(PROGRAMS / "profiler_outside.py")], check=True)


def test_kernels_are_recorded_without_their_hook_too(tmp_path: Path) -> None:
    with activate(RecordingLauncher()):
        proton.start(str(tmp_path / "plain"), **NAMED)
        plain[(4,)](Tensor("float32"), Tensor("float32", 8192), 1000, BLOCK=256)
        proton.finalize()
    assert tree(tmp_path / "plain.hatchet")["plain",]["time (ns)"] == 2000
