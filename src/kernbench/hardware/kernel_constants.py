"""Constants of vendor libraries' kernels: a folder per GPU architecture, a file per family."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError, model_validator

from kernbench.errors import MachineError, UnknownNameError, nearest
from kernbench.hardware.spec_base import NotNegative, Positive, Spec
from kernbench.inputs import parse_yaml


class KernelConstants(Spec):
    """What is fitted of one kernel on one architecture; its structure is in ``library_kernels``.

    Shares are of the machine's peaks, so that machines of one architecture have one entry.
    """

    tensor_share: Positive = Fraction(1)
    """Share of the matrix engine's peak that a tile's inner loop reaches."""
    vector_share: Positive = Fraction(1)
    """Share of the vector engine's rates that it reaches."""
    memory_share: Positive = Fraction(1)
    """Share of the peak HBM bandwidth that the kernel reaches."""
    cache_share: Positive = Fraction(1)
    """Share of the cache's bandwidth that it reaches."""
    trip_ns: NotNegative = Fraction(0)
    """Latency of one trip of the inner loop beyond its arithmetic: barriers, issue, waits."""
    miss_ns: NotNegative = Fraction(0)
    """What a trip waits longer where its loads come from HBM rather than from the cache."""
    tile_ns: NotNegative = Fraction(0)
    """The time paid once per tile: what comes before and after its loop."""
    row_ns: NotNegative = Fraction(0)
    """Paid per row of a tile, beside ``tile_ns``: queries that come in, results that go out."""
    narrow_access_clocks: NotNegative = Fraction(17, 2)
    """Clocks of a PE for a warp's access of fewer than 16 bytes a lane: its address, its bounds,
    the way to shared memory and back."""
    store_share: NotNegative = Fraction(0)
    """Share of a PE's port at which a tile's results leave after its loop. 0: beside other
    loops."""
    fixed_us: NotNegative = Fraction(0)
    """The time paid once per launch, beyond the machine's front end."""
    ramp_us: NotNegative = Fraction(0)
    """In which memory reaches its rate: half of what cold bytes take, where they take as long."""
    like: str = ""
    """An architecture whose constants of this kernel hold where the entry gives none."""
    source: str
    """What the constants were fitted to, or ``assumed`` and why."""

    @model_validator(mode="before")
    @classmethod
    def _say_like_what(cls, entry: Any) -> Any:
        if isinstance(entry, dict) and "like" in entry:
            return {"source": f"assumed: as {entry['like']}", **entry}
        return entry

    @property
    def given(self) -> list[str]:
        """The names of the numbers that the entry gives itself."""
        own = self.model_fields_set - {"like", "source"}
        return [name for name in type(self).model_fields if name in own]

    def over(self, other: KernelConstants) -> KernelConstants:
        """Return these constants, with another entry's where this one gives none."""
        own = {name: getattr(self, name) for name in (*self.given, "like", "source")}
        return KernelConstants.model_construct(self.model_fields_set, **{**dict(other), **own})


class KernelFamily(Spec):
    """One file: the kernels of one family on one architecture."""

    kernels: dict[str, KernelConstants]
    """Constants by the name that the kernel's structure asks for."""


_CATEGORIES = {"products": "gemm", "gemm": "narrow gemm", "elementwise": "membound"}
"""Families of constants whose rows have another name in the published errors."""


@dataclass(frozen=True, slots=True)
class KernelLibrary:
    """The kernels of one architecture."""

    architecture: str
    """What machine files call it, such as ``sm90``."""
    families: Mapping[str, KernelFamily]
    """Families by name: attention, gemm, ..."""

    def constants(self, kernel: str) -> KernelConstants:
        """Return the constants of a kernel.

        Raises:
            UnknownNameError: The architecture has no such kernel; names the nearest.
        """
        for family in self.families.values():
            constants = family.kernels.get(kernel)
            if constants is not None:
                return constants
        raise UnknownNameError(
            f"{self.architecture} has no kernel {kernel!r}: {nearest(kernel, self.names())}"
        )

    def family_of(self, kernel: str) -> str:
        """Return the family of measured rows whose error the times of a kernel have."""
        for name, family in self.families.items():
            if kernel in family.kernels:
                return _CATEGORIES.get(name, name)
        return ""

    def names(self) -> list[str]:
        """Return the names of all kernels."""
        return [name for family in self.families.values() for name in family.kernels]

    def changed(self, kernels: Mapping[str, KernelConstants]) -> KernelLibrary:
        """Return the library with other constants for some of its kernels."""
        families = {
            name: KernelFamily(
                kernels={name: kernels.get(name, old) for name, old in family.kernels.items()}
            )
            for name, family in self.families.items()
        }
        return KernelLibrary(self.architecture, families)


def known_libraries() -> list[str]:
    """Return the architectures whose kernels are known.

    >>> "sm80" in known_libraries()
    True
    """
    return sorted(path.name for path in library_folder().iterdir() if path.is_dir())


@cache
def load_library(architecture: str) -> KernelLibrary:
    """Return the kernels of an architecture.

    Raises:
        UnknownNameError: There is no folder of that architecture.
        MachineError: A file has a key that is unknown, an impossible value, or a kernel of another
            file.
    """
    if architecture not in known_libraries():
        raise UnknownNameError(
            f"no kernels of architecture {architecture!r}: "
            f"{nearest(architecture, known_libraries())}"
        )
    return KernelLibrary(architecture, read_families(library_folder() / architecture))


def read_families(
    folder: Path, others: Mapping[str, KernelFamily] | None = None
) -> dict[str, KernelFamily]:
    """Return the families of kernels that the files of a folder describe, beside ``others``.

    Raises:
        MachineError: A file has a key that is unknown, an impossible value, a kernel of another
            file, or one like that of an architecture that has none.
    """
    families = dict(others or {})
    for file in sorted(folder.iterdir()):
        kernels = {name: _constants_in(file, name) for name in _family_in(file).kernels}
        family = KernelFamily(kernels=kernels)
        for other, before in families.items():
            twice = before.kernels.keys() & family.kernels.keys()
            if twice:
                raise MachineError(
                    f"{folder.name}/{file.name}: {min(twice)} is a kernel of {other}.yaml too"
                )
        families[file.name.removesuffix(".yaml")] = family
    return families


@cache
def _family_in(file: Path) -> KernelFamily:
    return read_constants(KernelFamily, file, f"{file.parent.name}/{file.name}")


def _constants_in(file: Path, kernel: str, asking: tuple[Path, ...] = ()) -> KernelConstants:
    """Return a kernel's constants, with what its entry leaves to another architecture's file."""
    constants = _family_in(file).kernels[kernel]
    if not constants.like:
        return constants
    other = file.parents[1] / constants.like / file.name
    if other in asking or not other.is_file() or kernel not in _family_in(other).kernels:
        raise MachineError(
            f"{file.parent.name}/{file.name}: kernels.{kernel}: {constants.like} has no constants "
            "of its own that these could be like"
        )
    return constants.over(_constants_in(other, kernel, (*asking, file)))


def library_folder() -> Path:
    """Return the folder that has one folder per architecture."""
    return Path(str(resources.files("kernbench.hardware"))) / "kernel_libraries"


_S = TypeVar("_S", bound=Spec)


def read_constants(model: type[_S], file: Traversable, origin: str) -> _S:
    """Return what a file of fitted constants says, as ``model`` describes it.

    Raises:
        MachineError: A key is unknown, or a value impossible; names ``origin`` and the key.
    """
    text = file.read_text(encoding="utf-8")
    try:
        return model.model_validate(parse_yaml(text, origin, MachineError, is_shipped=True))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise MachineError(f"{origin}: {where}: {first['msg']}") from None
