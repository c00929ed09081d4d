"""The compiler half of the plug-in: Triton's own passes up to TTIR, and nothing after it."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass, field
from functools import partial
from time import perf_counter
from typing import Any

from triton import knobs
from triton.backends.compiler import BaseBackend, GPUTarget

from kernbench.errors import UsageError
from kernbench.logs import logger

BACKEND_NAME = "kernbench"
_LOG = logger("compile")

TARGET = GPUTarget(BACKEND_NAME, "ttir", 32)
"""For every machine that does not say that it is CUDA's."""

PIPELINE_REVISION = 16
"""Part of the key of Triton's disk cache: raise it whenever the passes, the options or the metadata
below change, or what ``kernel_ir.tcm_use`` counts."""


def target_of(cuda_architecture: int) -> GPUTarget:
    """Return the target for a machine that kernels know by its compute capability.

    Of a machine, TTIR depends on nothing else. It is in Triton's key of what is compiled.
    """
    return GPUTarget(BACKEND_NAME, f"{TARGET.arch}-cuda{cuda_architecture}", TARGET.warp_size)


def compile_target(cuda_architecture: int | None) -> GPUTarget:
    """Return the target that kernels are compiled for on a machine."""
    return TARGET if cuda_architecture is None else target_of(cuda_architecture)


def architecture_of(target: GPUTarget) -> int | None:
    """Return the compute capability in a target of :func:`target_of`, None if there is none."""
    _, _, architecture = str(target.arch).partition("-cuda")
    return int(architecture) if architecture else None


def cuda_target(cuda_architecture: int) -> GPUTarget:
    """Return the name by which such a machine is announced."""
    return GPUTarget("cuda", cuda_architecture, TARGET.warp_size)


# In order. Triton drops passes between minor versions (block pointers went in 3.8), so one that
# this Triton does not have is left out. Descriptors become pointers: one form of memory access.
_PASSES = (
    ("common", "add_inliner"),
    ("ttir", "add_rewrite_tensor_pointer"),
    ("ttir", "add_rewrite_tensor_descriptor_to_pointer"),
    ("common", "add_canonicalizer"),
    ("ttir", "add_combine"),
    ("ttir", "add_reorder_broadcast"),
    ("common", "add_cse"),
    ("common", "add_symbol_dce"),
    ("ttir", "add_loop_unroll"),
)


# Of Gluon, whose layouts the kernel chooses: its functions are inlined and what it left open is
# settled. Copies through descriptors stay what they are.
_GLUON_PASSES = (
    ("gluon", "add_inliner"),
    ("gluon", "add_infer_coalesced_encodings"),
    ("gluon", "add_resolve_auto_encodings"),
    ("gluon", "add_canonicalizer"),
    ("common", "add_sccp"),
    ("ttir", "add_loop_aware_cse"),
    ("gluon", "add_canonicalizer"),
    ("common", "add_symbol_dce"),
)

_GLUON_CAPABILITY = 90
"""What layouts are held against where the machine is no CUDA device: the first with TMA."""


_HIP_STAGES = 2
"""The stages of a launch that names none. Source: ``HIPOptions`` of Triton's backend for AMD."""


class BadOptionError(UsageError, AssertionError):
    """A launch option that no machine has."""


def _eight_bit_floats() -> tuple[str, ...]:
    # Not for whoever only imports Triton.
    from kernbench.dtypes import ALL

    known = [dtype.triton for dtype in ALL if dtype.is_floating_point and dtype.itemsize == 1]
    return (*known, "fp8e4b15")


@dataclass(frozen=True)
class KernbenchOptions:
    """What a launch may ask of the compiler. Triton refuses keywords that are not fields here.

    Only ``num_warps`` (on GPUs) and ``num_stages`` mean something to kernbench; others are read by
    Triton's front end, or taken so that kernels written for a GPU launch unmodified.
    """

    num_warps: int = 4
    num_ctas: int = 1
    num_stages: int = 3
    warp_size: int = 32
    maxnreg: int | None = None
    cluster_dims: tuple[int, ...] = (1, 1, 1)
    ir_override: str | None = None
    enable_fp_fusion: bool = True
    launch_cooperative_grid: bool = False
    launch_pdl: bool = False
    supported_fp8_dtypes: tuple[str, ...] = field(default_factory=_eight_bit_floats)
    deprecated_fp8_dot_operand_dtypes: tuple[str, ...] = ()
    default_dot_input_precision: str = "ieee"
    allowed_dot_input_precisions: tuple[str, ...] = ("ieee", "tf32", "tf32x3", "bf16x3", "bf16x6")
    max_num_imprecise_acc_default: int = 0
    extern_libs: tuple[tuple[str, str], ...] = ()
    debug: bool = False
    sanitize_overflow: bool = True
    backend_name: str = BACKEND_NAME
    arch: str = "ttir"
    instrumentation_mode: str = ""
    fpsan_homomorphic_casts: bool = False
    min_shared_mem: int | None = None
    # AMD's: configs for its GPUs name them.
    waves_per_eu: int = 0
    matrix_instr_nonkdim: int = 0
    kpack: int = 1
    schedule_hint: str = "none"
    allow_flush_denorm: bool = False

    @property
    def enable_iisan(self) -> bool:
        """Whether Gluon adds checks of alignment: never, its front end asks."""
        return False

    def __post_init__(self) -> None:
        for name in ("num_warps", "num_stages", "num_ctas"):
            value = getattr(self, name)
            if not isinstance(value, int):
                raise BadOptionError(f"{name} must be an integer, but got {value!r}")
        if self.num_warps <= 0 or self.num_warps & (self.num_warps - 1):
            # Triton's own backends assert it, in these words.
            raise BadOptionError(f"num_warps must be a power of 2, but got {self.num_warps}")
        if self.num_stages < 0:
            raise UsageError(f"num_stages must not be negative, but got {self.num_stages}")
        if self.num_ctas != 1:
            raise UsageError(
                f"num_ctas must be 1, but got {self.num_ctas}: a program runs on one PE"
            )

    def hash(self) -> str:
        """Return what tells these options apart in the disk cache."""
        return hashlib.sha256(repr(sorted(asdict(self).items())).encode()).hexdigest()


class KernbenchBackend(BaseBackend):  # type: ignore[misc]  # Triton ships no types
    """Compiles a kernel to TTIR text. Stateless; Triton makes one per target."""

    binary_ext = BACKEND_NAME
    """Not ``ttir``: the last stage comes as bytes, and tools expect ``asm["ttir"]`` to be text."""

    @staticmethod
    def supports_target(target: GPUTarget) -> bool:
        return bool(target.backend == BACKEND_NAME)

    def hash(self) -> str:
        """Return what tells kernels of this back end apart in the disk cache.

        With the precision that ``tl.dot`` takes where a kernel names none (``TRITON_F32_DEFAULT``),
        which Triton itself leaves out of its key.
        """
        precision = knobs.language.fp32_default
        name = f"{BACKEND_NAME}-{PIPELINE_REVISION}-{self.target.arch}"
        return name if precision is None else f"{name}-{precision}"

    def parse_options(self, options: dict[str, Any]) -> KernbenchOptions:
        from kernbench.kernel_ir import NO_CUDA

        known = KernbenchOptions.__dataclass_fields__
        vs = {k: v for k, v in options.items() if k in known and v is not None}
        if isinstance(vs.get("extern_libs"), dict):
            vs["extern_libs"] = tuple(vs["extern_libs"].items())
        if architecture_of(self.target) == NO_CUDA:
            vs.setdefault("num_stages", _HIP_STAGES)
        return KernbenchOptions(**vs)

    def pack_metadata(self, metadata: Any) -> tuple[int, ...]:
        return (metadata.num_warps, metadata.num_ctas, metadata.shared)

    def get_target_name(self, options: KernbenchOptions) -> str:
        """Return the GPU that Gluon's layouts are held against."""
        return f"cuda:{architecture_of(self.target) or _GLUON_CAPABILITY}"

    def load_dialects(self, context: Any) -> None:
        """Load what Gluon's kernels are made of; the dialects of TTIR are Triton's own."""
        from triton._C.libtriton import nvidia

        nvidia.load_dialects(context)

    def get_codegen_implementation(self, options: KernbenchOptions) -> dict[str, Any]:
        from kernbench.triton_backend.float8 import convert_custom_types

        return {
            "min_dot_size": lambda lhs, rhs: (1, 1, 1),
            "convert_custom_types": convert_custom_types,
        }

    def get_module_map(self) -> dict[str, Any]:
        """Return the libdevice that ``tl.extra.libdevice`` stands for: CUDA's, for its symbols."""
        try:
            from triton.language.extra.cuda import libdevice
        except ImportError:  # a Triton built without the CUDA language extras
            return {}
        return {"triton.language.extra.libdevice": libdevice}

    def add_stages(
        self, stages: dict[str, Any], options: KernbenchOptions, language: Any = None
    ) -> None:
        architecture = architecture_of(self.target)
        if getattr(language, "name", "TRITON") == "GLUON":
            stages["glir"] = lambda module, metadata: module
            stages["ttgir"] = partial(_make_ttgir, architecture)
        else:
            stages["ttir"] = partial(_make_ttir, architecture)
        stages[self.binary_ext] = lambda text, metadata: text


def _make_ttir(architecture: int | None, module: Any, metadata: dict[str, Any]) -> str:
    _run_passes(module, _PASSES, "make_ttir")
    return _finished(architecture, module, metadata)


def _make_ttgir(architecture: int | None, module: Any, metadata: dict[str, Any]) -> str:
    _run_passes(module, _GLUON_PASSES, "gluon_to_ttgir")
    # Such a kernel says itself what runs ahead; no compiler does.
    metadata["num_stages"] = 1
    return _finished(architecture, module, metadata)


def _run_passes(module: Any, names: tuple[tuple[str, str], ...], title: str) -> None:
    from triton._C.libtriton import ir, passes

    begun_s = perf_counter()
    manager = ir.pass_manager(module.context)
    for group, name in names:
        add = getattr(getattr(passes, group, None), name, None)
        if add is not None:
            add(manager)
    manager.run(module, title)
    name = module.get_entry_func_name()
    _LOG.info("%s: %s in %.3f s", name, title, perf_counter() - begun_s)


def _finished(architecture: int | None, module: Any, metadata: dict[str, Any]) -> str:
    """Return the text of a module, and note what launches ask of it."""
    from kernbench.kernel_ir import tcm_use
    from kernbench.triton_backend.binary import describe_largest, read_module
    from kernbench.triton_backend.places import files_of

    metadata["name"] = module.get_entry_func_name()
    text = str(module)
    # Host code divides a GPU's shared memory by what a program takes of it. The machine that
    # is then in use is compared with both at launch.
    tcm = tcm_use(read_module(text), metadata["num_stages"])
    warps = metadata["num_warps"]
    metadata["shared"] = tcm.shared_bytes(architecture, warps)
    metadata["tcm_bytes"] = tcm.total_bytes
    metadata["tcm_tiles"] = describe_largest(tcm.tiles)
    metadata["shared_tiles"] = describe_largest(tcm.shared_tiles(architecture, warps))
    metadata["spills"] = architecture is not None
    metadata["files"] = files_of(text)
    return text


# A method that a later Triton adds to its base class must not make this class abstract: Triton
# then finds no backend here, and `import triton` fails for everybody in the environment.
KernbenchBackend.__abstractmethods__ = frozenset()


def products_library() -> Any | None:
    """Return Triton's module of cuBLASLt, or None where it was built without NVIDIA's backend."""
    from triton._C import libtriton

    return getattr(getattr(libtriton, "nvidia", None), "cublas", None)
