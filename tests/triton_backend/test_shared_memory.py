"""What host code is told of shared memory, and what is refused by it."""

from __future__ import annotations

import pickle
import re
from pathlib import Path

import pytest
import triton
import triton.language as tl
from triton.runtime.errors import OutOfResources

from kernbench import RuntimeContext
from kernbench.commands import UNKNOWN_LINE
from kernbench.errors import MachineError
from kernbench.hardware import load_machine, machine_text
from kernbench.kernel_ir import TcmTile
from kernbench.triton_backend.binary import describe_largest

# Source: CUDA C++ Programming Guide, technical specifications per compute capability.
PER_BLOCK = {"v100": 98_304, "a100-sxm-80g": 166_912, "l40s": 101_376, "h100-sxm": 232_448}


@triton.jit
def product(x, y, out, n, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    rows, columns, inner = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    total = tl.zeros((M, N), tl.float32)
    for start in range(0, n, K):
        a = tl.load(x + rows[:, None] * n + start + inner[None, :])
        b = tl.load(y + (start + inner[:, None]) * N + columns[None, :])
        total = tl.dot(a, b, total)
    tl.store(out + rows[:, None] * N + columns[None, :], total)


def announced() -> int:
    driver = triton.runtime.driver.active
    number: int = driver.utils.get_device_properties(driver.get_current_device())["max_shared_mem"]
    return number


@pytest.mark.adr("0006-D8")
@pytest.mark.parametrize("machine", PER_BLOCK)
def test_gpus_announce_the_shared_memory_of_a_block(machine: str) -> None:
    with RuntimeContext(machine=machine):
        assert announced() == PER_BLOCK[machine]


def bytes_of(line: str) -> int:
    return int(line.split()[0].replace(",", ""))


def listed_bytes(error: BaseException) -> int:
    """Return the sum of the tiles that an error lists."""
    return sum(map(bytes_of, str(error).splitlines()[2:]))


@pytest.mark.adr("0006-D8")
def test_other_machines_announce_tcm_less_the_registers(tmp_path: Path) -> None:
    for name in ("ahbm", "mi300x"):
        sip = load_machine(name, 1).sip
        with RuntimeContext(machine=name):
            assert announced() == (sip.pe.tcm_kib - sip.pe.register_kib) * 1024 > 0
    path = tmp_path / "odd.yaml"
    text, _ = machine_text("h100-sxm")
    path.write_text(text.replace("shared_memory_kib: 227", "shared_memory_kib: 485"))
    with pytest.raises(MachineError, match="shared_memory_kib"):
        load_machine(str(path), 1)


@pytest.mark.adr("0006-D8")
def test_stages_that_shared_memory_does_not_hold_are_refused_and_pruned_as_by_triton() -> None:
    m, n, k, stage = 64, 128, 64, (64 + 128) * 64 * 2
    most = PER_BLOCK["h100-sxm"] // stage
    configs = [triton.Config({}, num_stages=stages) for stages in (most, most + 1)]
    tuned = triton.autotune(configs, key=["n"])(product)
    with RuntimeContext(machine="h100-sxm") as torch:
        x, y = torch.ones(m, 4 * k, dtype=torch.float16), torch.ones(4 * k, n, dtype=torch.float16)
        out = torch.empty(m, n)
        sizes = {"M": m, "N": n, "K": k}
        compiled = product[(1,)](x, y, out, 4 * k, **sizes, num_stages=most)
        assert compiled.metadata.shared == most * stage
        assert out.tolist() == [[4.0 * k] * n] * m
        limit = PER_BLOCK["h100-sxm"]
        # Triton's own words.
        said = str(OutOfResources((most + 1) * stage, limit, "shared memory"))
        said = rf"(?s){re.escape(said)}\nkernel product with num_stages={most + 1}"
        for _ in range(2):
            with pytest.raises(OutOfResources, match=said):
                product[(1,)](x, y, out, 4 * k, **sizes, num_stages=most + 1)
        tuned[(1,)](x, y, out, 4 * k, **sizes)
        assert tuned.best_config.num_stages == most
    # The same kernels, loaded by now, on a machine that has the room, and back.
    for machine, fits in (("ahbm", True), ("h100-sxm", False)):
        with RuntimeContext(machine=machine) as torch:
            x, y = (
                torch.ones(m, 4 * k, dtype=torch.float16),
                torch.ones(4 * k, n, dtype=torch.float16),
            )
            out = torch.empty(m, n)
            if fits:
                product[(1,)](x, y, out, 4 * k, **sizes, num_stages=most + 1)
            else:
                with pytest.raises(OutOfResources, match="shared memory"):
                    product[(1,)](x, y, out, 4 * k, **sizes, num_stages=most + 1)


@triton.jit
def sum_rows(x, out, n, COLUMNS: tl.constexpr):
    at = tl.arange(0, COLUMNS)
    row = tl.load(x + tl.program_id(0) * n + at, mask=at < n, other=0.0)
    tl.store(out + tl.program_id(0), tl.sum(row))


@pytest.mark.parametrize(("machine", "most"), [("h100-sxm", 32), ("mi300x", 16)])
def test_warps_that_a_block_cannot_have_are_refused_and_pruned_as_by_triton(
    machine: str, most: int
) -> None:
    lanes = 1024 // most
    tuned = triton.autotune(
        [triton.Config({}, num_warps=warps) for warps in (2 * most, most)], key=["n"]
    )(sum_rows)
    with RuntimeContext(machine=machine, data=False) as torch:
        x, out = torch.empty(1, 64), torch.empty(1)
        said = re.escape(str(OutOfResources(2 * most * lanes, 1024, "threads")))
        for _ in range(2):
            with pytest.raises(OutOfResources, match=said) as refused:
                sum_rows[(1,)](x, out, 64, COLUMNS=64, num_warps=2 * most)
        assert f"use {most} or fewer" in str(refused.value)
        assert str(pickle.loads(pickle.dumps(refused.value))) == str(refused.value)
        tuned[(1,)](x, out, 64, COLUMNS=64)
        assert tuned.best_config.num_warps == most
    with RuntimeContext(machine="ahbm", data=False) as torch:
        x, out = torch.empty(1, 64), torch.empty(1)
        sum_rows[(1,)](x, out, 64, COLUMNS=64, num_warps=2 * most)


def test_host_code_that_divides_by_what_a_program_takes_finds_room_for_one() -> None:
    # A tile of 256 KiB lies in registers: more than shared memory, and less than TCM.
    with RuntimeContext(machine="h100-sxm", data=False) as torch:
        x, out = torch.empty(1, 65536), torch.empty(1)
        compiled = sum_rows[(1,)](x, out, 65536, COLUMNS=65536)
        assert compiled.metadata.tcm_bytes > announced()
        assert announced() // compiled.metadata.shared >= 1


@pytest.mark.adr("0006-D8")
def test_tensor_cores_that_read_registers_free_a_buffer_earlier() -> None:
    m, n, k, stage = 64, 128, 64, (64 + 128) * 64 * 2
    most = PER_BLOCK["a100-sxm-80g"] // stage + 1
    with RuntimeContext(machine="a100-sxm-80g") as torch:
        x, y = torch.ones(m, 4 * k, dtype=torch.float16), torch.ones(4 * k, n, dtype=torch.float16)
        arguments = (x, y, torch.empty(m, n), 4 * k, m, n, k)
        compiled = product[(1,)](*arguments, num_stages=most)
        assert compiled.metadata.shared == (most - 1) * stage
        for _ in range(2):  # When it is compiled, and from Triton's cache.
            with pytest.raises(OutOfResources, match=f"Required: {most * stage},") as refused:
                product[(1,)](*arguments, num_stages=most + 1)
            assert listed_bytes(refused.value) == most * stage


@pytest.mark.parametrize("machine", ["h100-sxm", "a100-sxm-80g"])
def test_the_tiles_that_are_listed_add_up_to_what_is_needed(machine: str) -> None:
    m, n, k, stage = 64, 128, 64, (64 + 128) * 64 * 2
    stages = PER_BLOCK["h100-sxm"] // stage + 3
    with RuntimeContext(machine="ahbm") as torch:
        x, y = torch.ones(m, 4 * k, dtype=torch.float16), torch.ones(4 * k, n, dtype=torch.float16)
        # Loaded by now: what follows is refused where it is launched.
        product[(1,)](x, y, torch.empty(m, n), 4 * k, m, n, k, num_stages=stages)
    with RuntimeContext(machine=machine) as torch:
        x, y = torch.ones(m, 4 * k, dtype=torch.float16), torch.ones(4 * k, n, dtype=torch.float16)
        buffers = stages if machine == "h100-sxm" else stages - 1
        with pytest.raises(OutOfResources, match=f"Required: {buffers * stage},") as refused:
            product[(1,)](x, y, torch.empty(m, n), 4 * k, m, n, k, num_stages=stages)
        assert listed_bytes(refused.value) == buffers * stage


def test_tiles_that_are_not_listed_one_by_one_are_counted() -> None:
    tiles = tuple(TcmTile(1 << size, 2, "load", UNKNOWN_LINE) for size in range(8))
    lines = describe_largest(tiles)
    assert len(lines) == 6
    assert lines[-1].endswith("3 smaller tiles")
    assert sum(map(bytes_of, lines)) == 2 * 255


@pytest.mark.adr("0136-D8")
def test_waves_of_64_have_a_buffer_less_and_shared_memory_of_their_own() -> None:
    """By hand: 128 x 128 and 128 x 256 bytes of loads, of which one stage is in registers."""

    def launch(torch: RuntimeContext, stages: int) -> None:
        x = torch.empty(128, 512, dtype=torch.float8_e4m3fn)
        y = torch.empty(512, 256, dtype=torch.float8_e4m3fn)
        out = torch.empty(128, 256)
        product[(1,)](x, y, out, 512, 128, 256, 128, num_stages=stages)

    with RuntimeContext(machine="mi300x", data=False) as torch:
        launch(torch, 2)
        with pytest.raises(OutOfResources) as refused:
            launch(torch, 3)
    assert refused.value.required == 2 * (128 + 256) * 128
    assert refused.value.limit == 65_536
