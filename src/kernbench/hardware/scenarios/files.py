"""Scenarios in files of their own, and in words."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kernbench.errors import MachineError
from kernbench.hardware.loading import changed_machine, yaml_mapping
from kernbench.hardware.machine import Machine
from kernbench.hardware.scenarios.chosen import Wire
from kernbench.inputs import MOST_YAML_BYTES, read_text

_MOST_NAMED = 8


def with_scenario(machine: Machine, file: str) -> Machine:
    """Return a machine with the noise and faults that a file describes, in place of its own.

    The file has the keys of the section ``scenario``.

    Raises:
        MachineError: It cannot be read, or describes nothing that can be; names file and key.
    """
    path = Path(file)
    try:
        text = read_text(path, MOST_YAML_BYTES)
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise MachineError(f"--scenario {path}: cannot be read: {reason}") from None
    mapping = yaml_mapping(text, str(path), type(machine.spec.scenario))
    if set(mapping) == {"scenario"} and isinstance(mapping["scenario"], dict):
        raise MachineError(
            f"{path}: has the key scenario itself; write the keys in it at the left: "
            f"{', '.join(mapping['scenario'])}"
        )
    return changed_machine(machine, {"scenario": mapping}, origin=str(path))


def described(machine: Machine) -> list[str]:
    """Return what a report says of a machine's noise and faults."""
    scenario = machine.spec.scenario
    by_seed = f"by seed {scenario.seed}"
    slow, wires = scenario.slow_devices, scenario.slow_links
    lines = []
    if machine.slow_sips:
        parts = [f"{float(slow.clock):g}x the clock"] if slow.clock != 1 else []
        parts += [f"{float(slow.hbm):g}x the HBM bandwidth"] if slow.hbm != 1 else []
        chosen = "" if slow.sips else f" {by_seed}"
        lines.append(
            f"scenario: {len(machine.slow_sips)} of {machine.num_sips} devices at "
            f"{' and '.join(parts) or 'the usual speed'}{chosen}: "
            f"SIP {_listed([str(sip) for sip in machine.slow_sips])}"
        )
    if machine.slow_wires:
        lines.append(
            f"scenario: {len(machine.slow_wires)} wires between {wires.between} at "
            f"{float(wires.bandwidth):g}x the bandwidth {by_seed}: {_named(machine.slow_wires)}"
        )
    if machine.flapping_wires:
        flapping = scenario.flapping
        lines.append(
            f"scenario: {len(machine.flapping_wires)} wires between nodes are down for "
            f"{float(flapping.down_s):g} s after {float(flapping.up_s):g} s on average {by_seed}: "
            f"{_named(machine.flapping_wires)}"
        )
    jitter = scenario.host_jitter
    if jitter.per_s:
        lines.append(
            f"scenario: hosts are interrupted {float(jitter.per_s):g} times per second for "
            f"{float(jitter.us):g} us {by_seed}"
        )
    if scenario.collective_jitter.p99_over_p50 > 1:
        ratio = float(scenario.collective_jitter.p99_over_p50)
        lines.append(
            f"scenario: times of collectives have a log-normal factor {by_seed}, "
            f"{ratio:g} at the 99th percentile"
        )
    return lines


def _named(wires: Sequence[Wire]) -> str:
    return _listed([f"sip{max(wire)}" for wire in wires])


def _listed(texts: Sequence[str]) -> str:
    more = f" and {len(texts) - _MOST_NAMED} more" if len(texts) > _MOST_NAMED else ""
    return ", ".join(texts[:_MOST_NAMED]) + more
