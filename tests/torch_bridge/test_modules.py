"""What modules of a program caused, by PyTorch's own count of each one's operations."""

from __future__ import annotations

from collections import Counter
from functools import cache
from pathlib import Path

import pytest
from typer.testing import CliRunner

torch = pytest.importorskip("torch")

from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from kernbench.analysis import ModuleReport, program_modules, shown_modules  # noqa: E402
from kernbench.cli.app import app  # noqa: E402
from kernbench.page.contents import contents  # noqa: E402
from kernbench.runtime_api import RuntimeContext  # noqa: E402
from kernbench.saved import load_run, save_run  # noqa: E402
from tests.torch_bridge.programs.modules import LAYERS, TOKENS, WIDTH, Net, step  # noqa: E402
from tests.torch_bridge.running import simulated  # noqa: E402

PRODUCT = 2 * TOKENS * WIDTH * 4 * WIDTH
"""Floating-point operations of either linear layer of a block."""


@cache
def run(kind: str = "plain", nprocs: int = 1) -> RuntimeContext:
    return simulated(
        "modules.py", kind, nprocs=nprocs, data=False, record_lines=True, record_memory=True
    )


def report(kind: str = "plain", nprocs: int = 1) -> ModuleReport:
    return program_modules(run(kind, nprocs).op_log, nprocs)


def flops(kind: str) -> Counter[str]:
    """Return the operations of the products of each module, with those of the modules in it."""
    log = run(kind).op_log
    assert log.program_lines is not None
    result: Counter[str] = Counter()
    for instance in log.instances:
        path = log.program_lines.modules[log.program_lines.of_commands[instance.launch_id]]
        parts = path.split(".")
        for number in range(len(parts)):
            result[".".join(parts[: number + 1])] += instance.template.flops
    return result


def test_products_are_of_the_modules_for_which_pytorch_counts_them() -> None:
    """Of forward and backward passes."""
    with FlopCounterMode(display=False) as counted:
        step(Net())
    counts = counted.get_flop_counts()
    del counts["Global"]
    wanted = {name: sum(operations.values()) for name, operations in counts.items()}
    assert len(wanted) == 2 + 4 * LAYERS
    assert {name: flops("plain")[name] for name in wanted} == wanted


def test_what_is_computed_again_is_of_the_same_module() -> None:
    """The last product of a block is not, as nothing that is kept depends on it."""
    plain, again = flops("plain"), flops("checkpointed")
    for number in range(LAYERS):
        layer = f"Net.layers.{number}"
        assert again[layer] - plain[layer] == PRODUCT
        assert again[f"{layer}.up"] - plain[f"{layer}.up"] == PRODUCT
    assert again["Net.head"] == plain["Net.head"]


def test_modules_add_up() -> None:
    modules = report()
    rows = {row["module"]: row for row in modules["modules"]}
    for name in ("critical_path_ns", "host_ns", "device_ns", "launches", "allocated_bytes"):
        outermost = [row for path, row in rows.items() if "." not in path]
        assert sum(row[name] for row in outermost) == pytest.approx(modules["all"][name])
    assert modules["all"]["critical_path_ns"] == pytest.approx(modules["time_ns"])
    assert rows["Net.layers.*"]["modules"] == LAYERS


def test_equal_layers_are_a_row_and_what_holds_only_one_other_is_one_with_it() -> None:
    shown = [(depth, name) for depth, name, _ in shown_modules(report())]
    assert shown[shown.index((0, "Net")) :] == [
        (0, "Net"),
        (1, "embedding"),
        (1, f"layers.* ({LAYERS})"),
        *((2, name) for name in ("norm", "up", f"down.* ({2 * LAYERS})")),
        (1, "head"),
    ]


def test_a_collective_is_of_the_module_that_calls_it() -> None:
    rows = {row["module"]: row for row in report("summed", 2)["modules"]}
    log = run("summed", 2).op_log
    reduced = [item for item in log.instances if item.template.message_bytes == TOKENS * WIDTH * 4]
    assert len(reduced) == LAYERS
    device_ps = sum(sum(item.ends_ps) - sum(item.starts_ps) for item in reduced)
    inside = ("norm", "up", "down")
    own = rows["Net.layers.*"]["device_ns"]
    own -= sum(rows[f"Net.layers.*.{name}"]["device_ns"] for name in inside)
    # Beside it there are sums with the input, forward and backward.
    assert own * 1000 > device_ps > 0
    assert rows["Net"]["communicated_bytes"] == 2 * LAYERS * TOKENS * WIDTH * 4


def test_what_fsdp_moves_is_of_the_module_whose_parameters_it_moves() -> None:
    """Those of later layers are gathered while earlier ones' backward passes run."""
    ranks = 2
    log = run("sharded", ranks).op_log
    lines = log.program_lines
    assert lines is not None
    moved: Counter[str] = Counter()
    for item in log.instances:
        path = lines.modules[lines.of_commands[item.launch_id]]
        moved[path] += item.template.message_bytes or 0
    num_bytes = 4 * sum(parameter.numel() for parameter in Net().layers[0].parameters())
    # Two gathers and the gradients' scattering.
    wanted = {f"FSDPNet.layers.{number}": 3 * num_bytes for number in range(LAYERS)}
    assert {name: amount for name, amount in moved.items() if "layers" in name and amount} == wanted


def test_a_saved_run_keeps_them(tmp_path: Path) -> None:
    context = run()
    path = tmp_path / "modules.run"
    with path.open("wb") as out:
        save_run(out, context.op_log, context.machine, context.report())
    assert program_modules(load_run(path).log, 1) == report()


def test_the_command_line_shows_them_as_a_tree(tmp_path: Path) -> None:
    program = tmp_path / "plain.py"
    program.write_text("import torch\n(torch.ones(4, device='cuda') * 2).sum().item()\n")
    context = run()
    kept = tmp_path / "net.run"
    with kept.open("wb") as out:
        save_run(out, context.op_log, context.machine, context.report())
    shown = CliRunner().invoke(app, ["why", str(kept), "--modules"], env={"COLUMNS": "60"})
    assert shown.exit_code == 0
    rows = [
        line.split("  ") for line in shown.stdout.splitlines() if f"layers.* ({LAYERS})" in line
    ]
    assert len(rows) == 1
    assert all(len(line) <= 60 for line in shown.stdout.splitlines())
    without = ["run", str(program), "--no-data", "--save", str(tmp_path / "plain.run")]
    assert CliRunner().invoke(app, without).exit_code == 0
    shown = CliRunner().invoke(app, ["why", str(tmp_path / "plain.run"), "--modules"])
    assert "no forward of a module is known to have run" in shown.stdout


def test_a_page_has_them_for_each_part(tmp_path: Path) -> None:
    context = run()
    kept = tmp_path / "net.run"
    with kept.open("wb") as out:
        save_run(out, context.op_log, context.machine, context.report())
    first, *_ = contents(load_run(kept))["parts"]
    assert first["name"] == "all"
    assert [(row["depth"], row["name"], row["device_ns"]) for row in first["modules"]] == [
        (depth, name, row["device_ns"]) for depth, name, row in shown_modules(report())
    ]
