"""Write what devices draw into the presets: calibrated, so that products draw the board's limit.

    python tools/fit_power.py            print the groups
    python tools/fit_power.py --write    put them into hardware/presets

Given are, per device, its limit, its idle draw, its memory and its process. Energies per byte and
per element of the vector engine come from those (see ``_HBM`` and ``_PROCESS``); the energy of a
flop is what is left when a product of 16384 x 16384 x 16384 in 16 bits draws the limit, and that
of other dtypes goes with their rates: at any rate that an engine reaches it draws about the same
(measured: 661.7 W with FP8 and 662.8 W with bfloat16, H200).
"""

from __future__ import annotations

import argparse
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernbench.hardware import PowerSpec, SipSpec, changed_machine, load_library, load_machine
from kernbench.library_kernels import Product, product_kernels, time_kernel
from kernbench.op_log import Energy, WorkCounts, pace_of

_PRESETS = Path(__file__).resolve().parents[1] / "src/kernbench/hardware/presets"
_SIZE = 16384
_ACTIVE_SHARE = 0.13
"""Of the board's limit, that an active device takes whatever it does."""
_VECTOR_SHARE = 0.85
"""Of what products on matrix engines draw, that products on vector engines do: training in float32
on a V100 then draws what Zeus measured under 200 W and less."""

_HBM = {
    "HBM2": (51, "O'Connor et al., Fine-Grained DRAM, MICRO 2017: HBM2 takes 3.9 pJ/bit; 2.5 for "
             "interface and controller are assumed"),
    "HBM2e": (48, "estimate: below HBM2's 51, of O'Connor et al., MICRO 2017"),
    "HBM3": (43, "estimate: below HBM2's 51, of O'Connor et al., MICRO 2017"),
    "HBM3e": (40, "estimate: below HBM2's 51, of O'Connor et al., MICRO 2017"),
    "GDDR6": (78, "Micron, GDDR6X technical brief, 2020: 7.5 pJ/bit of GDDR6; 2.3 for the "
              "controller are assumed"),
    "GDDR6X": (76, "Micron, GDDR6X technical brief, 2020: 7.25 pJ/bit; 2.3 for the controller are "
               "assumed"),
    "GDDR7": (60, "estimate: below GDDR6X's 76"),
}  # fmt: skip
"""Picojoules per byte, and their source."""
_PROCESS = {"12 nm": 2.4, "8 nm": 1.7, "7 nm": 1.5, "6 nm": 1.4, "5 nm": 1.05, "4 nm": 1.0}
"""Energies of logic and SRAM relative to 4 nm: estimates."""
_CACHE_PJ, _TCM_PJ = 14, 6
_C2C_PJ, _PCI_EXPRESS_PJ = 10.4, 52
_NVLINK = "NVIDIA, What Is NVLink?, 2023"
_C2C_HOSTS = ("gh200",)
"""Devices whose host link in the preset is NVLink-C2C."""
_MATH_PJ = {"simple": 7, "divide": 45, "transcendental": 28, "convert": 8, "reduce": 9}
"""At 4 nm: estimates. All lanes of an H100 at full rate draw 220 W with simple operations."""


@dataclass(frozen=True)
class Board:
    """What is known of a device."""

    watts: float
    idle_w: float
    memory: str
    process: str
    idle_source: str = "estimate"


_ZEUS = "Zeus (You, Chung and Chowdhury, NSDI 2023), traces of power"
_HOW = "time and mean power of training BERT under seven to nine limits"
_CURVES = {
    "V100": (0.84, 1.1, 0.0, f"fitted on V100: {_ZEUS}: {_HOW}, off by 4 % (RMS)"),
    "A40": (0.80, 2.7, 53 / 300, f"fitted on A40: {_ZEUS}: {_HOW}, off by 3 %"),
    "RTX 6000": (0.71, 1.5, 48 / 260, f"fitted on Quadro RTX 6000: {_ZEUS}: {_HOW}, off by 10 %"),
}
"""Per measured device: the lowest voltage, how it falls with the clock, and the share of the limit
that a device draws on top of idle whatever its clock; ``tools/fit_voltage.py`` finds them."""
_OWN_CURVE = {"v100": "V100", "rtx-a6000": "A40", "rtx-3090": "A40", "t4": "RTX 6000"}
"""Devices that are measured, or of the chip that is."""
_STANDBY_W = {
    "rtx-3090": (77, "Janky AI, Power limiting RTX 3090 GPU: tokens per second of one query "
                 "fall to zero with the limit at 102 W, less idle_w"),
}  # fmt: skip

_LIMITS = {
    "a100-sxm-330w": (330, "meta-pytorch/gpt-fast, README.md: 330 W"),
    "h100-sxm-500w": (
        500,
        "pytorch/torchtitan, benchmarks/llama3_h100_202412_torchtitan.md: 500 W",
    ),
}
"""What is set below the board's own limit."""
_CUT_DOWN = {"h20": "h100-sxm", "mi308x": "mi300x"}
"""Devices whose few engines cannot draw the limit, and whose chip it is."""
_BOARDS = {
    "v100": Board(300, 35, "HBM2", "12 nm", f"measured: {_ZEUS}: training that all but idles"),
    "t4": Board(70, 10, "GDDR6", "12 nm"),
    "a30": Board(165, 30, "HBM2", "7 nm"),
    "a100-pcie-80g": Board(300, 50, "HBM2e", "7 nm"),
    "a100-sxm-40g": Board(400, 55, "HBM2", "7 nm"),
    "a100-sxm-80g": Board(400, 60, "HBM2e", "7 nm"),
    "a100-sxm-330w": Board(400, 60, "HBM2e", "7 nm"),
    "h100-pcie": Board(350, 50, "HBM2e", "4 nm"),
    "h100-sxm": Board(700, 75, "HBM3", "4 nm"),
    "h100-sxm-500w": Board(700, 75, "HBM2e", "4 nm"),
    "h20": Board(400, 75, "HBM3", "4 nm"),
    "h200": Board(700, 80.3, "HBM3e", "4 nm", "measured: Alice benchmark, H200 SXM, idle, 2026"),
    "gh200": Board(700, 80, "HBM3e", "4 nm"),
    "b200": Board(1000, 140, "HBM3e", "4 nm"),
    "b300": Board(1100, 150, "HBM3e", "4 nm"),
    "gb200": Board(1200, 150, "HBM3e", "4 nm"),
    "gb300": Board(1400, 160, "HBM3e", "4 nm"),
    "l4": Board(72, 16, "GDDR6", "4 nm"),
    "l40": Board(300, 35, "GDDR6", "4 nm"),
    "l40s": Board(350, 35, "GDDR6", "4 nm"),
    "rtx-3090": Board(350, 25, "GDDR6X", "8 nm"),
    "rtx-a6000": Board(300, 22, "GDDR6", "8 nm"),
    "rtx-4090": Board(450, 20, "GDDR6X", "4 nm"),
    "rtx-5090": Board(575, 25, "GDDR7", "4 nm"),
    "rtx-pro-6000": Board(600, 30, "GDDR7", "4 nm"),
    "rtx-pro-6000-max-q": Board(300, 20, "GDDR7", "4 nm"),
    "mi100": Board(300, 35, "HBM2", "7 nm"),
    "mi210": Board(300, 40, "HBM2e", "6 nm"),
    "mi300x": Board(750, 140, "HBM3", "5 nm"),
    "mi308x": Board(650, 130, "HBM3", "5 nm"),
    "mi325x": Board(1000, 150, "HBM3e", "5 nm"),
    "mi350x": Board(1000, 150, "HBM3e", "4 nm"),
    "mi355x": Board(1400, 160, "HBM3e", "4 nm"),
    "arc-pro-b60": Board(200, 30, "GDDR6", "5 nm"),
    "ahbm": Board(500, 60, "HBM3", "5 nm"),
    "ahbm-mesh": Board(500, 60, "HBM3", "5 nm"),
    "tpu-v5e-like": Board(200, 40, "HBM2e", "7 nm"),
    "wormhole-like": Board(160, 25, "GDDR6", "12 nm"),
}
"""Limits are those of the vendors' data sheets, but for machines that no vendor sells."""

_UNMEASURED = ("ahbm", "ahbm-mesh", "wormhole-like")
"""Machines none of whose rates was measured."""


def power_of(name: str, board: Board) -> dict[str, Any]:
    """Return the group ``sip.power`` of a preset."""
    machine = load_machine(f"{_PRESETS / name}.yaml", 1)
    factor = _PROCESS[board.process]
    rates = machine.sip.pe.gemm.flops_per_clock
    dtype = "bfloat16" if "bfloat16" in rates else "float16"
    group: dict[str, Any] = {
        "board_w": board.watts,
        **({} if name in _UNMEASURED else {"measured_w": board.watts}),
        "idle_w": board.idle_w,
        "active_w": round(board.watts * _ACTIVE_SHARE),
        "gemm_pj_per_flop": {dtype: 0},
        "math_pj_per_element": {k: round(pj * factor, 1) for k, pj in _MATH_PJ.items()},
        "tcm_pj_per_byte": round(_TCM_PJ * factor, 1),
        "cache_pj_per_byte": round(_CACHE_PJ * factor, 1),
        "hbm_pj_per_byte": _HBM[board.memory][0],
        "link_pj_per_byte": 40,
        "network_pj_per_byte": _PCI_EXPRESS_PJ,
        "host_pj_per_byte": _C2C_PJ if name in _C2C_HOSTS else _PCI_EXPRESS_PJ,
    }
    floor, slope, share, _ = _CURVES[_curve(name, board)]
    standby_w = _STANDBY_W[name][0] if name in _STANDBY_W else round(share * board.watts)
    group |= {"standby_w": standby_w, "voltage_slope": slope, "voltage_floor": floor}
    probe = changed_machine(machine, {"sip.power": group})
    flops, taken_s, joules = _product(probe, dtype)
    left_w = board.watts - board.idle_w - joules / taken_s
    pj = left_w * taken_s / flops * 1e12
    if name in _CUT_DOWN:
        sibling = load_machine(_CUT_DOWN[name], 1).sip.power
        assert sibling is not None
        pj = float(sibling.gemm_pj_per_flop[dtype])
    group["gemm_pj_per_flop"] = {k: _of_dtype(k, pj, rates, dtype) for k in rates}
    if name in _LIMITS:
        group["cap_w"] = _LIMITS[name][0]
    PowerSpec.model_validate(group)
    return group


def _curve(name: str, board: Board) -> str:
    """Return which measured device one is like: those with GDDR keep their memory awake."""
    return _OWN_CURVE.get(name, "A40" if board.memory.startswith("GDDR") else "V100")


def _of_dtype(name: str, pj: float, rates: dict[str, int], dtype: str) -> float:
    share = rates[name] / rates[dtype]
    if name == "float64":
        single = _VECTOR_SHARE * pj * rates[dtype] / rates["float32"]
        return round(min(pj / share, 4 * single), 3)
    if name == "float32":
        return round(_VECTOR_SHARE * pj / share, 3)
    # What a device is slow at on purpose keeps few of its engines busy.
    return round(min(pj / share, 2 * pj), 3)


def _product(machine: Any, dtype: str) -> tuple[float, float, float]:
    """Return the flops, the seconds and the joules, but for the flops' own, of the product."""
    flops = 2.0 * _SIZE**3
    sip: SipSpec = machine.sip
    architecture = machine.spec.kernel_library
    library = None if architecture is None else load_library(architecture)
    if library is not None and "blas_half" in library.names():
        asked = Product(m=_SIZE, n=_SIZE, k=_SIZE, dtype=dtype)
        (kernel,) = product_kernels(asked, sip, library).kernels
        time = time_kernel(kernel, sip, library.constants(kernel.name))
        energies, taken_s, flops = time.energy_pj, time.total_us / 1e6, kernel.flops
    else:
        loss = 0 if sip.sustained is None else float(sip.sustained.clock_loss)
        rate = float(sip.peak_flops_per_s(dtype) * sip.pe.gemm.efficiency) / (1 + loss)
        taken_s = flops / rate
        # A and B are read once by every tile of 128 x 128 that needs them.
        work = WorkCounts(port_bytes=flops / 64, hbm_bytes=6 * _SIZE**2)
        energies = pace_of(sip.power, work, round(taken_s * 1e12), 0).energy_pj
    return flops, taken_s, sum(energies.values()) / 1e12 - energies[Energy.GEMM] / 1e12


def text_of(group: dict[str, Any]) -> str:
    """Return the group as lines of a preset."""
    lines = ["  power:"]
    for key, value in group.items():
        if isinstance(value, dict):
            inside = ", ".join(f"{name}: {item:g}" for name, item in value.items())
            lines.append(f"    {key}: {{{inside}}}")
        else:
            lines.append(f"    {key}: {value:g}")
    return "\n".join(lines) + "\n"


def sources_of(name: str, board: Board) -> dict[str, str]:
    """Return where each number is from."""
    curve = _curve(name, board)
    *_, found_on = _CURVES[curve]
    like = found_on if name in _OWN_CURVE else f"assumed: as {curve}'s, {found_on}"
    standby = _STANDBY_W[name][1] if name in _STANDBY_W else f"{like}; by the limit"
    is_made_up = name in (*_UNMEASURED, "tpu-v5e-like")
    pci_express = f"{_NVLINK}: 5 times the 1.3 pJ/bit of NVLink-C2C, PCI Express 5.0"
    result = {"sip.power.cap_w": _LIMITS[name][1]} if name in _LIMITS else {}
    return result | {
        "sip.power": "estimate",
        "sip.power.board_w": "assumed" if is_made_up else "the vendor's data sheet",
        "sip.power.idle_w": board.idle_source,
        "sip.power.active_w": "estimate: 13 % of the board's limit",
        "sip.power.standby_w": standby,
        "sip.power.voltage_slope": like,
        "sip.power.voltage_floor": like,
        "sip.power.gemm_pj_per_flop": f"assumed: as {_CUT_DOWN[name]}, whose chip it is"
        if name in _CUT_DOWN
        else "calibrated: a product of 16384 x 16384 x 16384 in 16 bits draws the board's limit; "
        "other dtypes by their rates",
        "sip.power.math_pj_per_element": f"estimate for {board.process}",
        "sip.power.tcm_pj_per_byte": f"estimate for {board.process}",
        "sip.power.cache_pj_per_byte": f"estimate for {board.process}",
        "sip.power.hbm_pj_per_byte": _HBM[board.memory][1],
        "sip.power.link_pj_per_byte": "estimate: 5 pJ/bit, a serial link of 100 Gb/s",
        "sip.power.network_pj_per_byte": f"{pci_express}; to the network's interface",
        "sip.power.host_pj_per_byte": f"{_NVLINK}: 1.3 pJ/bit over NVLink-C2C"
        if name in _C2C_HOSTS
        else pci_express,
    }


def main() -> None:
    """Print or write the groups of all presets."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    for name, board in _BOARDS.items():
        group = power_of(name, board)
        print(name, text_of(group), sep="\n")
        if args.write:
            _write(_PRESETS / f"{name}.yaml", text_of(group), sources_of(name, board))


def _write(path: Path, text: str, sources: dict[str, str]) -> None:
    kept = path.read_text(encoding="utf-8")
    kept = re.sub(r"  power:\n(    .*\n)+", "", kept)
    kept = re.sub(r"  sip\.power[.\w]*: .*\n", "", kept)
    kept = kept.replace("  host_link:\n", f"{text}  host_link:\n", 1)
    kept += "".join(f'  {key}: "{source}"\n' for key, source in sources.items())
    path.write_text(kept, encoding="utf-8")


if __name__ == "__main__":
    main()
