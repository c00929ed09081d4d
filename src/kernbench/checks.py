"""What a run looks for in kernels, and what it lets pass (ADR-0108)."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal

from kernbench.errors import UsageError, nearest

Check = bool | Literal["nan"] | None
"""What ``check=`` takes: all checks or none, ``"nan"`` for all and NaN an error, None for what the
environment says."""


class Allowed(StrEnum):
    """A mistake that a run may let pass."""

    MASKED_LANES = "masked-lanes"
    """Lanes that a load masks off without ``other=`` are zeros, as in code for NVIDIA's GPUs."""
    OUT_OF_BOUNDS_READS = "out-of-bounds-reads"
    """A load outside of its tensor reads zeros and is a warning."""


_REMEDIES = {
    Allowed.MASKED_LANES: "take such lanes as zeros",
    Allowed.OUT_OF_BOUNDS_READS: "read zeros there",
}
_BY_VARIABLE: Mapping[str, Check] = {"": False, "0": False, "1": True, "nan": "nan"}


def remedy(allowed: Allowed) -> str:
    """Return how an error ends that a run could let pass."""
    return f"or {_REMEDIES[allowed]} (--allow {allowed})"


@dataclass(frozen=True, kw_only=True, slots=True)
class Checks:
    """What one run checks.

    ``enabled``: whether the sanitizer looks on; bounds are checked in any case. ``nan_is_error``:
    whether the first NaN is an error and no warning. ``allowed``: what is let pass.
    """

    enabled: bool = False
    nan_is_error: bool = False
    allowed: frozenset[Allowed] = frozenset()

    @classmethod
    def of(cls, check: Check = None, allow: str | Iterable[str] | None = None) -> Checks:
        """Return the setting that ``check=`` and ``allow=`` of a run stand for.

        None leaves it to the environment: ``KERNBENCH_CHECK`` is 0 (as if it were not there), 1 or
        nan, and ``KERNBENCH_ALLOW`` holds names with commas between them.

        >>> Checks.of(True, "masked-lanes").allowed == {Allowed.MASKED_LANES}
        True

        Raises:
            UsageError: A value is none of these.
        """
        if check is None:
            given = os.environ.get("KERNBENCH_CHECK", "")
            if given not in _BY_VARIABLE:
                raise UsageError(f"KERNBENCH_CHECK must be 0, 1 or nan, but is {given!r}")
            check = _BY_VARIABLE[given]
        if not (check is True or check is False or check == "nan"):
            raise UsageError(f'check must be True, False, "nan" or None, but got {check!r}')
        what = "allow"
        if allow is None:
            what, allow = "KERNBENCH_ALLOW", os.environ.get("KERNBENCH_ALLOW", "")
        return cls(
            enabled=check is not False, nan_is_error=check == "nan", allowed=as_allowed(allow, what)
        )


def as_allowed(given: Any, what: str = "allow") -> frozenset[Allowed]:
    """Return the mistakes that names stand for: several, or a text with commas between them.

    Raises:
        UsageError: One of them is no such name; begins with ``what`` it is given as.
    """
    if isinstance(given, str):
        given = [name.strip() for name in given.split(",") if name.strip()]
    known = list(map(str, Allowed))
    if not isinstance(given, Iterable):
        raise UsageError(f"{what} must be names ({', '.join(known)}), but got {given!r}")
    found = []
    for name in given:
        if name not in known:
            raise UsageError(f"{what}: there is no {name!r} to allow; {nearest(str(name), known)}")
        found.append(Allowed(name))
    return frozenset(found)
