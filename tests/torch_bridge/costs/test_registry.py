"""ADR-0239: one way from an operation to its time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from kernbench.errors import InternalError  # noqa: E402
from kernbench.hardware import load_machine  # noqa: E402
from kernbench.op_log import Template  # noqa: E402
from kernbench.torch_bridge.base.operations import describe  # noqa: E402
from kernbench.torch_bridge.costs import OperationCosts, families, operations  # noqa: E402
from kernbench.torch_bridge.processes.float32 import Float32  # noqa: E402

aten = torch.ops.aten
MACHINE = load_machine("ahbm", 2)
WAIT_PS = 10**9
FAMILY = f"""
from kernbench.torch_bridge.costs.by_bytes import timing_by_bytes
from kernbench.torch_bridge.costs.registry import Family

TIMED = []


def key(costs, call):
    rows = call.args[0].shape[0]
    return rows if rows > 1 else None


def kernels(costs, name, rows, sip_id):
    TIMED.append(rows)
    return timing_by_bytes(name, costs.machine.sip_at(sip_id), 0, 0, chain_ps=rows * {WAIT_PS})


FAMILY = Family(
    matches=lambda func: func._schema.name == "aten::NAME", key=key, kernels=kernels
)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder whose modules are families, too."""
    monkeypatch.setattr(families, "__path__", [*families.__path__, str(tmp_path)])
    for item in (operations._families, operations.family_of):
        item.cache_clear()
    yield tmp_path
    for entry in (operations._families, operations.family_of):
        entry.cache_clear()


def template(costs: OperationCosts, func: Any, *shape: int, sip_id: int = 0) -> Template:
    x = torch.empty(shape, device="meta")
    return costs.timing(func, describe(func), (x,), {}, x, sip_id).template(True)


@pytest.mark.adr("0239-D1")
def test_a_module_is_all_that_a_family_takes(folder: Path) -> None:
    (folder / "planted.py").write_text(FAMILY.replace("NAME", "erfinv"))
    costs = OperationCosts(MACHINE, Float32())
    start_ps = MACHINE.sip.queued_front_end_ps + MACHINE.sip.hbm_latency_ps
    result = template(costs, aten.erfinv.default, 3, 8)
    assert result.duration_ps == start_ps + 3 * WAIT_PS
    # What has no key streams its bytes, as what is in no family.
    streamed, other = (
        template(costs, item, 1, 8) for item in (aten.erfinv.default, aten.i0.default)
    )
    assert streamed.hbm_bytes == 2 * 8 * 4
    assert streamed.duration_ps == other.duration_ps < WAIT_PS


@pytest.mark.adr("0239-D1")
def test_no_operation_of_pytorch_is_in_two_families(folder: Path) -> None:
    packets = [getattr(aten, name) for name in dir(aten)]
    overloads = [
        getattr(packet, name)
        for packet in packets
        if isinstance(packet, torch._ops.OpOverloadPacket)
        for name in packet.overloads()
    ]
    assert len(overloads) > 2000
    named = {str(overload): operations.family_of(overload) for overload in overloads}
    assert named["aten.mm.default"] is not named["aten.convolution.default"]
    (folder / "second.py").write_text(FAMILY.replace("NAME", "mm"))
    for item in (operations._families, operations.family_of):
        item.cache_clear()
    with pytest.raises(InternalError, match=r"aten\.mm.*gemm, second"):
        operations.family_of(aten.mm.default)


@pytest.mark.adr("0239-D2")
def test_equal_problems_are_timed_once_on_sips_of_a_kind(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "counted.py").write_text(FAMILY.replace("NAME", "erfinv"))
    costs = OperationCosts(MACHINE, Float32())
    timed = import_of("counted").TIMED
    func = aten.erfinv.default
    first, second = (template(costs, func, 2, 8, sip_id=number) for number in (0, 1))
    assert first is second
    template(costs, func, 2, 9)
    assert timed == [2]
    monkeypatch.setattr(operations, "_MOST_KNOWN", 1)
    for rows in (3, 4, 3):
        template(costs, func, rows, 8)
    assert timed == [2, 3, 4, 3]


def import_of(name: str) -> Any:
    operations._families()
    return __import__(f"{families.__name__}.{name}", fromlist=["TIMED"])
