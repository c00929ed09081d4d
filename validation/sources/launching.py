"""How a serving stack launched the products of a source's rows: in a graph, or from Python.

A row is the median over the releases of a stack that the source measured. Where some of them were
launched by Python, one by one, and the others by a graph, the median lies between.
"""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import BaseModel, ConfigDict, Field

from validation.sources.tables import Entry, table

_ALIGNED_ROWS = 4
"""Scales of 4 bytes are read in units of 16."""
_BLOCK = 128
"""Elements of K that share a scale; one column of scales needs no layout."""


class Launching(BaseModel):
    """How a stack launched a kernel on a machine, in microseconds."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    host_us: float = Field(default=0.0, ge=0)
    """The time in which Python launches one product; 0 in a graph."""
    share: float = Field(default=1.0, gt=0, le=1)
    """How much of what a graph would be faster the row shows: the weight in its median of releases
    that Python launched."""
    unaligned_us: float = Field(default=0.0, ge=0)
    """What more launches take that lay scales out anew where rows are no multiple of 4: of the host
    where Python launches them, else of the device."""
    added_us: float = Field(default=0.0, ge=0)
    """What launches beside the product and the quantization of its input take: conversions of
    scales, or the kernels of an older release in the median."""
    by_rows: bool = False
    """Whether each row of the input gets a scale of its own, by a kernel that reads it twice."""

    def host_of(self, m: int, k: int) -> float:
        """Return the least time of a product of ``m`` rows."""
        return self.host_us + self._anew_us(m, k) if self.host_us else 0.0

    def device_of(self, m: int, k: int) -> float:
        """Return what is added to the product's own time."""
        return self.added_us + (0.0 if self.host_us else self._anew_us(m, k))

    def _anew_us(self, m: int, k: int) -> float:
        return self.unaligned_us if m % _ALIGNED_ROWS and k > _BLOCK else 0.0


_GRAPH = Launching()
_ANY = 0
"""Number of releases: for all others."""


class Launched(Entry, Launching):
    """How a stack launched a kernel's rows of so many releases."""

    framework: str
    dtype: str
    kernel: str = ""
    """What the stack calls it; all others of the dtype where it is empty."""
    releases: int = Field(default=_ANY, ge=0)

    def key(self) -> tuple[str, str, str, str, int]:
        return self.framework, self.dtype, self.kernel, self.machine, self.releases


_LAUNCHED = {launched.key(): launched for launched in table("launching.yaml", "launched", Launched)}


def launching(fields: Mapping[str, str], machine: str) -> Launching:
    """Return how a row's product was launched; in a graph where nothing else is known."""
    framework, dtype, kernel = (fields.get(name, "") for name in ("framework", "dtype", "kernel"))
    releases = int(fields.get("n_releases") or _ANY)
    keys = (
        (kernel, machine, releases),
        (kernel, machine, _ANY),
        (kernel, "", _ANY),
        ("", machine, _ANY),
        ("", "", _ANY),
    )
    known = (_LAUNCHED.get((framework, dtype, *key)) for key in keys)
    return next((one for one in known if one is not None), _GRAPH)


class LaunchedLayer(Entry):
    """What the host takes to launch a layer of a machine, or of all others."""

    host_us: float = Field(gt=0)
    lead: float = Field(gt=0, le=1)

    def key(self) -> str:
        return self.machine


_LAYERS = {layer.machine: layer for layer in table("launching.yaml", "layers", LaunchedLayer)}


def layer_launching(machine: str) -> LaunchedLayer:
    """Return how a layer of DeepEP's context phase was launched on a machine."""
    return _LAYERS.get(machine) or _LAYERS[""]
