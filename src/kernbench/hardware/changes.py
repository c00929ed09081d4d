"""What-if: keys of a machine changed by ``KEY=VALUE`` texts, absolute or by a factor."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from kernbench.errors import MachineError
from kernbench.hardware.loading import changed_machine
from kernbench.hardware.machine import Link, Machine
from kernbench.hardware.rates import PS_PER_NS
from kernbench.hardware.sources import leaves
from kernbench.hardware.spec_base import plain
from kernbench.inputs import parse_yaml

_DECIMAL = r"[0-9]{0,99}\.?[0-9]{1,99}(?:e[+-]?[0-9]{1,3})?"
"""A number, which fits into some hundred digits."""
_FACTOR = re.compile(rf"({_DECIMAL})x", re.IGNORECASE)
_NUMBER = re.compile(rf"[+-]?{_DECIMAL}", re.IGNORECASE)
_MOST_NAMED = 3
_OVERRIDES = "links.overrides"
_OF_LINK = ("bandwidth_gbps", "latency_ns")
"""What single links may have of their own."""
_MOST = 10**30
_MOST_SHOWN = 60
"""Characters of a value in an error; some keys hold long lists."""


@dataclass(frozen=True, slots=True)
class MachineChange:
    """One key of a machine, what it was and what it becomes."""

    key: str
    before: Any
    value: Any

    def __str__(self) -> str:
        return f"{self.key} = {_shown(self.value)} (was {_shown(self.before)})"


def set_keys(machine: Machine, settings: Sequence[str]) -> tuple[Machine, list[MachineChange]]:
    """Return a machine changed by ``KEY=VALUE`` texts, in their order, and what changed.

    ``KEY`` is any key of a machine file, as a dotted path, or one of a single link by its name in
    reports: ``sip0->sip1.bandwidth_gbps``. ``VALUE`` is what the file would say (a
    number in the key's unit, a name, a list), or a factor: ``2x``, ``0.5x``.

    Raises:
        MachineError: There is no such key, and the nearest ones with their values; or the value
            is impossible, a factor is of no number, or a key is given twice.

    >>> from kernbench.hardware import load_machine
    >>> machine, (change,) = set_keys(load_machine("h100-sxm", 1), ["sip.host_launch_us=2x"])
    >>> machine.sip.host_launch_us == 2 * change.before
    True
    """
    spec = machine.spec.model_dump()
    known = dict(leaves(spec))
    changes: dict[str, MachineChange] = {}
    for text in settings:
        key, equals, name = (part.strip() for part in text.partition("="))
        if not equals or not key or not name:
            raise MachineError(f"--set must be KEY=VALUE, but got {text!r}")
        link = _link_of(machine, key)
        if link is not None:
            key = f"{link.name}.{key.rpartition('.')[2]}"
        if key in changes:
            raise MachineError(f"--set gives {key} twice: {_shown(changes[key].value)} and {name}")
        before = _found(spec, key, machine.name, known) if link is None else _of_link(link, key)
        changes[key] = MachineChange(key, before, _value(key, before, name, machine.name))
    values = {key: change.value for key, change in changes.items() if "->" not in key}
    overrides = _overrides(machine, {key: change.value for key, change in changes.items()})
    if overrides:
        values[_OVERRIDES] = overrides
    return changed_machine(machine, values), list(changes.values())


def _link_of(machine: Machine, key: str) -> Link | None:
    """Return the link that a key names, as reports do; None for a key of the machine's file.

    Raises:
        MachineError: The machine has no such link, or a link has no such key.
    """
    if "->" not in key:
        return None
    name, _, last = key.replace(" ", "").rpartition(".")
    if last not in _OF_LINK:
        raise MachineError(f"--set {key}: a link has {' and '.join(_OF_LINK)}: {key}.{_OF_LINK[0]}")
    by_name = {link.name: link for link in machine.links}
    result = by_name.get(name)
    if result is None:
        close = difflib.get_close_matches(name, by_name, n=_MOST_NAMED) or list(by_name)[:1]
        instead = f"did you mean {' or '.join(close)}?" if close else "it has none"
        raise MachineError(f"--set {key}: machine {machine.name} has no link {name}; {instead}")
    return result


def _of_link(link: Link, key: str) -> Any:
    if key.endswith(_OF_LINK[0]):
        return plain(link.bandwidth_gbps)
    return plain(Fraction(link.latency_ps, PS_PER_NS))


def _overrides(machine: Machine, changes: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the single links that differ, with those that are changed; empty if none is."""
    if not any("->" in key for key in changes) or machine.spec.links is None:
        return []
    change = changes.get(
        _OVERRIDES, [override.model_dump() for override in machine.spec.links.overrides]
    )
    values = {(item["src_sip"], item["dst_sip"]): dict(item) for item in change}
    by_name = {link.name: link for link in machine.links}
    for key, value in changes.items():
        if "->" in key:
            name, _, last = key.rpartition(".")
            link = by_name[name]
            ends = {"src_sip": link.src_sip, "dst_sip": link.dst_sip}
            values.setdefault((link.src_sip, link.dst_sip), ends)[last] = value
    return list(values.values())


def _found(spec: Mapping[str, Any], key: str, name: str, known: Mapping[str, Any]) -> Any:
    """Return the value of a key, None for one that the file may have and does not."""
    group: Any = spec
    for part in key.split("."):
        if not isinstance(group, Mapping) or part not in group:
            raise MachineError(f"machine {name} has no key {key}; {_nearest(key, known)}")
        group = group[part]
    if isinstance(group, Mapping) and group:
        inside = ", ".join(f"{key}.{item}" for item in group)
        raise MachineError(f"{key} of machine {name} is a group; set one of {inside}")
    return group


def _nearest(key: str, known: Mapping[str, Any]) -> str:
    """Return which keys may have been meant, with their values: of that last name, or alike."""
    lasts = {name: name.rpartition(".")[2] for name in known}
    last = key.rpartition(".")[2]
    close = [name for name in known if lasts[name] == last]
    if "_" not in last:
        # A word, as hbm or bandwidth: names that have it, those of the device first.
        having = [name for name in known if last in lasts[name].split("_")]
        close = sorted(having, key=lambda name: name.startswith("scenario."))
    if not close:
        by_last = {lasts[item]: item for item in known}
        close = difflib.get_close_matches(key, known, n=_MOST_NAMED)
        close += [by_last[close_match] for close_match in difflib.get_close_matches(last, by_last)]
    named = [f"{item} ({_shown(known[item])})" for item in dict.fromkeys(close)]
    if not named:
        return "kernbench machine show prints all keys"
    return f"did you mean {' or '.join(named[:_MOST_NAMED])}?"


def _value(key: str, before: Any, text: str, name: str) -> Any:
    factor = _FACTOR.fullmatch(text)
    if factor is None:
        if _NUMBER.fullmatch(text):  # 4e3 too, a text to YAML 1.1
            return _plain(Fraction(text), key, text)
        try:
            return parse_yaml(text, "--set", MachineError)
        except MachineError:
            shown = repr(_shown(text))
            raise MachineError(f"--set {key}: {shown} is no value of a YAML file") from None
    if isinstance(before, bool) or not isinstance(before, int | float):
        what = "is not set" if before is None else f"is {_shown(before)}, which is no number"
        raise MachineError(f"--set {key}={text}: {key} of machine {name} {what}; give a value")
    return _plain(Fraction(str(before)) * Fraction(factor[1]), key, text)


def _plain(value: Fraction, key: str, text: str) -> int | float:
    if abs(value) > _MOST:
        raise MachineError(f"--set {key}={text}: the number is beyond those of machines")
    return plain(value)


def _shown(value: Any) -> str:
    text = "nothing" if value is None else str(value)
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."
