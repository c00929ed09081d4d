"""What a run looks for in kernels, and what it lets pass (ADR-0108)."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from kernbench.errors import UsageError, nearest


class Allowed(StrEnum):
    """A mistake that a run may let pass."""

    MASKED_LANES = "masked-lanes"
    """Lanes that a load masks off without ``other=`` are zeros, as in code for NVIDIA's GPUs."""
    OUT_OF_BOUNDS_READS = "out-of-bounds-reads"
    """A load outside of its tensor reads zeros and is a warning."""
    STREAM_RACES = "stream-races"
    """Operations that nothing orders may touch the same bytes: streams, copies, collectives."""
    UNINITIALIZED_READS = "uninitialized-reads"
    """Operations and kernels may use what nothing has written, as benchmarks do."""


_REMEDIES = {
    Allowed.MASKED_LANES: "take such lanes as zeros",
    Allowed.OUT_OF_BOUNDS_READS: "read zeros there",
    Allowed.STREAM_RACES: "let operations race",
    Allowed.UNINITIALIZED_READS: "use what lies there",
}
_BY_VARIABLE = {"": (False, False), "0": (False, False), "1": (True, False), "nan": (True, True)}
"""Whether a run checks and whether NaN is an error, by what ``KERNBENCH_CHECK`` says."""


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
    def of(
        cls,
        check: bool | None = None,
        allow: str | Iterable[str] | None = None,
        nan_is_error: bool | None = None,
    ) -> Checks:
        """Return the setting that ``check=``, ``allow=`` and ``nan_is_error=`` stand for.

        None leaves it to the environment: ``KERNBENCH_CHECK`` is 0 (as if it were not there), 1 or
        nan, and ``KERNBENCH_ALLOW`` holds names with commas between them.

        >>> Checks.of(True, "masked-lanes").allowed == {Allowed.MASKED_LANES}
        True

        Raises:
            UsageError: A value is none of these.
        """
        if isinstance(check, str) and check == "nan":
            raise UsageError('check="nan" is spelled check=True, nan_is_error=True')
        for name, value in (("check", check), ("nan_is_error", nan_is_error)):
            if value is not None and type(value) is not bool:
                raise UsageError(f"{name} must be True, False or None, but got {value!r}")
        if check is None:
            environ = os.environ.get("KERNBENCH_CHECK", "")
            if environ not in _BY_VARIABLE:
                raise UsageError(f"KERNBENCH_CHECK must be 0, 1 or nan, but is {environ!r}")
            check, by_variable = _BY_VARIABLE[environ]
            nan_is_error = by_variable if nan_is_error is None else nan_is_error
        if nan_is_error and not check:
            raise UsageError("nan_is_error=True says what a check does; add check=True")
        what = "allow"
        if allow is None:
            what, allow = "KERNBENCH_ALLOW", os.environ.get("KERNBENCH_ALLOW", "")
        return cls(enabled=check, nan_is_error=bool(nan_is_error), allowed=as_allowed(allow, what))


def as_allowed(value: Any, what: str = "allow") -> frozenset[Allowed]:
    """Return the mistakes that names stand for: several, or a text with commas between them.

    Raises:
        UsageError: One of them is no such name; begins with ``what`` it is given as.
    """
    if isinstance(value, str):
        value = [name.strip() for name in value.split(",") if name.strip()]
    known = list(map(str, Allowed))
    if not isinstance(value, Iterable):
        raise UsageError(f"{what} must be names ({', '.join(known)}), but got {value!r}")
    result = []
    for name in value:
        if name not in known:
            raise UsageError(f"{what}: there is no {name!r} to allow; {nearest(str(name), known)}")
        result.append(Allowed(name))
    return frozenset(result)
