"""Where the numbers of a machine come from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from kernbench.hardware.specs import MachineSpec

FITTED = "fitted"
"""How the source of a number starts that was fitted to measurements."""


def leaves(data: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every value of a description, by its key path; ``sources`` aside."""
    for key, value in data.items():
        if isinstance(value, dict) and value:
            if prefix or key != "sources":
                yield from leaves(value, f"{prefix}{key}.")
        elif value is not None:
            yield f"{prefix}{key}", value


def source_of(spec: MachineSpec, key: str) -> str | None:
    """Return what the file says of a number: the entry of ``sources`` with the longest path to it.

    >>> from kernbench.hardware import load_machine
    >>> source_of(load_machine("h200", 1).spec, "sip.cube.hbm_page_bytes")
    'assumed: one DRAM page of a pseudo channel'
    """
    parts = key.split(".")
    for count in range(len(parts), 0, -1):
        source = spec.sources.get(".".join(parts[:count]))
        if source is not None:
            return source
    return None


def fitted_constants(spec: MachineSpec) -> tuple[str, ...]:
    """Return the numbers of a machine that were fitted to measurements, by their key paths.

    A number that is tied to another one (its source says so) is not counted beside it.
    """
    described = spec.model_dump(mode="json", exclude_defaults=True)
    return tuple(
        key
        for key, value in leaves(described)
        if isinstance(value, int | float)
        and not isinstance(value, bool)
        and (source_of(spec, key) or "").startswith(FITTED)
    )
