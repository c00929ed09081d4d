"""Loads a :class:`Machine` from a preset or a YAML file; errors name the key."""

from __future__ import annotations

import typing
from collections.abc import Mapping
from functools import lru_cache
from importlib import resources
from math import prod
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from kernbench.errors import MachineError, UnknownNameError, UsageError, nearest
from kernbench.hardware.machine import Machine, build_machine
from kernbench.hardware.sizes import Size, host_size, of_hosts, sized, split_size
from kernbench.hardware.specs import MachineSpec, SipSpec
from kernbench.inputs import MOST_YAML_BYTES, parse_yaml, read_text
from kernbench.logs import logger

_LOG = logger("machine")


def known_machines() -> list[str]:
    """Return the names of the machines that ship with kernbench.

    >>> "ahbm" in known_machines()
    True
    """
    return sorted(
        path.name.removesuffix(".yaml")
        for path in _presets().iterdir()
        if path.name.endswith(".yaml")
    )


def load_machine(spec: str | Path | Machine, num_sips: int | None = None) -> Machine:
    """Return the machine that ``spec`` names, with room for ``num_sips`` ranks.

    ``spec`` is a preset (``"ahbm"``), a preset or file with a size (``"ahbm:64"``,
    ``"ahbm-mesh:4x8"``, ``"h100-sxm:16x8"`` for 16 nodes of 8), the path of a YAML file, or a
    machine, which is returned as it is. Without
    a size, the smallest of the machine's sizes that holds ``num_sips`` is taken, and the largest
    when no number is asked for.

    Raises:
        UnknownNameError: No such preset or file.
        MachineError: The file does not describe a machine; names the file and the key.
        UsageError: More ranks were asked for than the machine has SIPs.

    >>> load_machine("ahbm", 3).num_sips
    4
    """
    if num_sips is not None and num_sips < 1:
        raise UsageError(f"a run needs at least 1 rank, but {num_sips} were asked for")
    if isinstance(spec, Machine):
        _check_room(spec.name, spec.num_sips, num_sips)
        return spec
    name, numbers = split_size(str(spec))
    parsed, origin = _spec_named(name)
    size = Size(_fitting_size(parsed, num_sips))
    if numbers is not None:
        parsed, size = sized(parsed, numbers, origin)
    _check_room(parsed.name, size.num_sips, num_sips)
    return _built(parsed, size, origin)


def ranks_of(spec: str | Path | Machine) -> int:
    """Return how many ranks a run has that was asked for no number: one per SIP that was named.

    The SIPs of a machine, or of a size behind a name; a name alone is a machine of any size, and
    has one rank.

    >>> ranks_of("ahbm"), ranks_of("ahbm:4"), ranks_of("h100-sxm:2x8")
    (1, 4, 16)
    """
    if isinstance(spec, Machine):
        return spec.num_sips
    _, numbers = split_size(str(spec))
    return prod(numbers or (1,))


def nodes_of(spec: str, num_nodes: int, asked: str) -> str:
    """Return ``spec`` with the size of so many nodes, where it has no size or one in SIPs.

    Raises:
        UsageError: Its size is of fewer nodes, or of no whole number of them; the text begins with
            ``asked``. Or there is no such machine.

    >>> nodes_of("h100-sxm", 4, "--nnodes 4"), nodes_of("gb200:64", 16, "--nnodes 16")
    ('h100-sxm:4x8', 'gb200:16x4')
    """
    name, numbers = split_size(spec)
    per_host = host_size(_spec_named(name)[0], asked)
    if numbers is None:
        return f"{name}:{num_nodes}x{per_host}"
    if len(numbers) == 1:
        if numbers[0] % num_nodes or numbers[0] // num_nodes > per_host:
            raise UsageError(
                f"{asked}: the {numbers[0]} SIPs of {spec} are not {num_nodes} nodes of up to "
                f"{per_host}; take {name}:{num_nodes}x{per_host}"
            )
        return f"{name}:{num_nodes}x{numbers[0] // num_nodes}"
    if len(numbers) > 2 or numbers[0] < num_nodes:
        raise UsageError(
            f"{asked}: {spec} has {numbers[0]} nodes; take {name}:{num_nodes}x{numbers[-1]}"
        )
    return spec


def divided_machine(machine: Machine, sips_per_node: int, asked: str) -> Machine:
    """Return a machine whose SIPs are divided among other nodes.

    Raises:
        MachineError: It has no nodes, or none of that size, or its SIPs do not fill them; the text
            begins with ``asked``.
    """
    if sips_per_node < 1:
        raise MachineError(f"{asked}: a node has at least 1 rank")
    spec = of_hosts(machine.spec, sips_per_node, asked)
    num_nodes, left = divmod(machine.num_sips, sips_per_node)
    if left:
        raise MachineError(
            f"{asked}: the {machine.num_sips} SIPs of {machine.name} do not fill nodes of "
            f"{sips_per_node}"
        )
    return _built(spec, Size(machine.num_sips, None, num_nodes), asked)


def parse_machine(text: str, origin: str, num_sips: int | None = None) -> Machine:
    """Return the machine that YAML text describes; ``origin`` stands for the file in errors."""
    spec = _spec_of(text, origin)
    size = _fitting_size(spec, num_sips)
    _check_room(spec.name, size, num_sips)
    return _built(spec, Size(size), origin)


def changed_machine(
    machine: Machine,
    changes: Mapping[str, Any],
    num_sips: int | None = None,
    origin: str | None = None,
) -> Machine:
    """Return a machine with some keys changed, by dotted path, and perhaps another size.

    ``origin`` is what errors call it.

    Raises:
        MachineError: There is no such key, or the value is impossible; names the key. Or the links
            do not join that many SIPs.

    >>> changed_machine(load_machine("ahbm", 2), {"sip.host_launch_us": 3}).sip.host_launch_ps
    3000000
    """
    # The file's sources say nothing of numbers that are not the file's.
    data = {**machine.spec.model_dump(), "sources": {}}
    for path, value in changes.items():
        group: Any = data
        *outer, last = path.split(".")
        for name in outer:
            # What a file leaves out has no groups to look into.
            group = group.setdefault(name, {}) if isinstance(group, dict) else None
        if not isinstance(group, dict):
            raise MachineError(f"machine {machine.name}: there is no key {path} to change")
        group[last] = value
    origin = origin or f"machine {machine.name}, changed"
    spec = _validated(data, origin)
    size = Size(machine.num_sips, machine.shape, machine.num_hosts)
    if num_sips not in (None, machine.num_sips):
        size = Size(num_sips)
    return _built(spec, size, origin)


def machine_data(machine: Machine) -> dict[str, Any]:
    """Return all of a machine as values for JSON, for :func:`machine_of_data`."""
    return {
        "spec": machine.spec.model_dump(mode="json", exclude_defaults=True),
        "num_sips": machine.num_sips,
        "shape": machine.shape,
        "num_hosts": machine.num_hosts,
    }


def machine_of_data(data: Mapping[str, Any], origin: str) -> Machine:
    """Return the machine that :func:`machine_data` describes; ``origin`` is its name in errors.

    Raises:
        MachineError: This version of kernbench knows no such machine; names the key.
    """
    spec = _validated(dict(data["spec"]), origin)
    shape = data["shape"] and tuple(data["shape"])
    # Runs that were saved before there were nodes have one.
    return _built(spec, Size(data["num_sips"], shape, data.get("num_hosts", 1)), origin)


def _built(spec: MachineSpec, size: Size, origin: str) -> Machine:
    overrides = _overridden_sips(spec, origin)
    return build_machine(spec, size.num_sips, origin, size.shape, overrides, size.num_hosts)


def _presets() -> Any:
    return resources.files("kernbench.hardware") / "presets"


def machine_text(name: str) -> tuple[str, str]:
    """Return the YAML text of a preset or a file, and what errors call it.

    Raises:
        UnknownNameError: No such preset or file.
        MachineError: The file cannot be read.
    """
    if name in known_machines():
        path = _presets() / f"{name}.yaml"
        _LOG.debug("%s is the preset %s", name, path)
        return path.read_text(encoding="utf-8"), f"machine {name}"
    path = Path(name)
    if path.suffix in (".yaml", ".yml") or path.is_file():
        try:
            return read_text(path, MOST_YAML_BYTES), str(path)
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or error
            raise MachineError(f"{path}: cannot be read: {reason}") from None
    raise UnknownNameError(f"unknown machine {name!r}: {nearest(name, known_machines())}")


def _spec_named(name: str) -> tuple[MachineSpec, str]:
    """Return what a preset or a file describes, and what errors call it."""
    text, origin = machine_text(name)
    return _spec_of(text, origin, name in known_machines()), origin


@lru_cache(maxsize=64)
def _spec_of(text: str, origin: str, is_shipped: bool = False) -> MachineSpec:
    """Return what a file describes; a process that loads a machine again has it already."""
    return _validated(_parsed(text, origin, is_shipped), origin)


def _parsed(text: str, origin: str, is_shipped: bool = False) -> dict[str, Any]:
    """Return what a file says, on top of what the machine says that it names as its ``base``.

    Raises:
        MachineError: It is no mapping, or its base is not one that stands by itself.
    """
    data = yaml_mapping(text, origin, is_shipped=is_shipped)
    name = data.get("base")
    if not isinstance(name, str):
        return data
    if name not in known_machines():
        raise MachineError(
            f"{origin}: base must be a machine that ships with kernbench, but got {name!r}: "
            f"{nearest(name, known_machines())}"
        )
    base = yaml_mapping(*machine_text(name), is_shipped=True)
    if "base" in base:
        raise MachineError(
            f"{origin}: base is {name}, which has a base itself; name {base['base']}"
        )
    sources = {
        path: source
        for path, source in base.pop("sources", {}).items()
        if not any(path == own or path.startswith(f"{own}.") for own in _leaf_paths(data))
    }
    own_sources = data.get("sources") or {}
    return {**_merged(base, data), "sources": {**sources, **own_sources}}


def _leaf_paths(data: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Return the paths of all that a file says itself."""
    paths = []
    for key, value in data.items():
        if isinstance(value, dict):
            paths += _leaf_paths(value, f"{prefix}{key}.")
        else:
            paths.append(f"{prefix}{key}")
    return paths


def yaml_mapping(
    text: str, origin: str, model: type[BaseModel] = MachineSpec, *, is_shipped: bool = False
) -> dict[str, Any]:
    """Return the keys of a YAML text; ``model`` is what it describes.

    A text that ships with kernbench (``is_shipped``) is read faster.

    Raises:
        MachineError: It is none, or no mapping; names ``origin`` and the line.
    """
    data = parse_yaml(text, origin, MachineError, is_shipped=is_shipped)
    if not isinstance(data, dict):
        raise MachineError(
            f"{origin}: must be a mapping of keys, but got {type(data).__name__}; "
            f"the keys are {', '.join(model.model_fields)}"
        )
    return data


def _validated(data: dict[str, Any], origin: str) -> MachineSpec:
    try:
        spec = MachineSpec.model_validate(data)
    except ValidationError as error:
        raise _machine_error(error, MachineSpec, origin, ()) from None
    known = _key_paths(spec.model_dump())
    for path in spec.sources:
        if not any(name == path or name.startswith(f"{path}.") for name in known):
            raise MachineError(
                f"{origin}: sources names the key {path}, which the file does not have: "
                f"{nearest(path, known)}"
            )
    return spec


def _overridden_sips(spec: MachineSpec, origin: str) -> dict[int, SipSpec]:
    overridden_sips = {}
    base = spec.sip.model_dump()
    for sip_id, changes in spec.sip_overrides.items():
        if sip_id >= max(spec.sizes):
            raise MachineError(
                f"{origin}: sip_overrides names SIP {sip_id}, but the largest of sizes is "
                f"{max(spec.sizes)}"
            )
        try:
            overridden_sips[sip_id] = SipSpec.model_validate(_merged(base, changes))
        except ValidationError as error:
            raise _machine_error(error, SipSpec, origin, ("sip_overrides", sip_id)) from None
    return overridden_sips


def _merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    result = dict(base)
    for key, value in changes.items():
        old = result.get(key)
        if isinstance(old, dict) and isinstance(value, dict):
            value = _merged(old, value)
        result[key] = value
    return result


def _fitting_size(spec: MachineSpec, num_sips: int | None) -> int:
    if num_sips is None:
        return max(spec.sizes)
    return min((size for size in spec.sizes if size >= num_sips), default=max(spec.sizes))


def _check_room(name: str, size: int, num_sips: int | None) -> None:
    if num_sips is not None and num_sips > size:
        raise UsageError(
            f"{num_sips} ranks were asked for, but machine {name} has {size} SIPs, one per rank; "
            f"take {name}:{num_sips} for a machine of that size"
        )


def _machine_error(
    error: ValidationError, model: type[BaseModel], origin: str, prefix: tuple[str | int, ...]
) -> MachineError:
    lines = []
    for error_details in error.errors(include_url=False):
        loc = tuple(part for part in error_details["loc"] if part != "[key]")
        path = ".".join(str(part) for part in (*prefix, *loc)) or "the file"
        message = error_details["msg"].removeprefix("Value error, ")
        if error_details["type"] == "extra_forbidden":
            known = _known_keys(model, loc[:-1])
            lines.append(f"{path}: unknown key; {nearest(str(loc[-1]), known)}")
        elif error_details["type"] == "missing":
            lines.append(f"{path}: is missing")
        elif error_details["type"] == "value_error":
            lines.append(f"{path}: {message}")
        else:
            lines.append(
                f"{path}: {message[:1].lower()}{message[1:]}, but got {error_details['input']!r}"
            )
    if len(lines) == 1:
        return MachineError(f"{origin}: {lines[0]}")
    return MachineError("\n  ".join([f"{origin}: {len(lines)} keys are wrong", *lines]))


def _known_keys(model: type[BaseModel], loc: tuple[str | int, ...]) -> list[str]:
    """Return the keys that the group at ``loc`` may have."""
    for part in loc:
        if isinstance(part, int) or part not in model.model_fields:
            continue
        inner = _model_in(model.model_fields[part].annotation)
        if inner is not None:
            model = inner
    return list(model.model_fields)


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for part in typing.get_args(annotation):
        model = _model_in(part)
        if model is not None:
            return model
    return None


def _key_paths(data: Mapping[str, Any], prefix: str = "") -> list[str]:
    paths = []
    for key, value in data.items():
        paths.append(f"{prefix}{key}")
        if isinstance(value, dict) and key != "sources":
            paths += _key_paths(value, f"{prefix}{key}.")
    return paths
