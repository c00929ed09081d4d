"""Whose tests are run, where they are, and how."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

try:
    from outcomes import UNENDED, ended_in  # type: ignore[import-not-found]
except ImportError:  # as a module of the tests
    from tests.conformance.outcomes import UNENDED, ended_in

HERE = Path(__file__).resolve().parent
DOCS = HERE.parents[1] / "docs"

_TRITON_INI = """[pytest]
markers =
  interpreter: may run in the interpreter
  enable_warmup: may be compiled without being run
  disable_warmup: must not be
"""
_OPTIONS = ("-q", "--tb=line", "--disable-warnings", "-W", "ignore")
_PLAIN = ("-p", "no:cacheprovider", "-p", "no:benchmark", "-p", "outcomes")

Run = Callable[["Suite", Path, Path, Sequence[str], float], None]
"""Runs a suite's tests in a folder: outcomes go to a file; pytest's arguments, seconds a file."""


@dataclass(frozen=True, kw_only=True)
class Suite:
    """One project's tests."""

    project: str
    commit: str
    """The one that the numbers in ``allowed`` are of; empty for that of the installed package."""
    under: str
    """The folder of the tests in the repository; empty where a folder of tests is given itself."""
    parts: tuple[str, ...]
    """What is taken of it: files and folders."""
    files: tuple[str, ...]
    """The tests, by patterns below ``under``."""
    ini: str
    allowed: Path
    report: Path
    title: str
    command: str
    how: str
    """For the page's readers, after where the tests are from."""
    packages: tuple[str, ...]
    """Those whose versions the page names."""
    explained: tuple[tuple[str, str], ...]
    """What an error text means, for the page's readers."""
    run: Run
    machine: str = "ahbm:4"
    """On which programs run."""


def environment(folder: Path) -> dict[str, str]:
    """Return the variables that tests are run with."""
    result = {
        **os.environ,
        # Many of the suites' kernels read what nobody wrote; what counts are their results.
        "KERNBENCH_CHECK": "0",
        "PYTHONPATH": os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]),
        "OMP_NUM_THREADS": "1",
    }
    result.setdefault("TRITON_CACHE_DIR", str(folder / "cache"))
    return result


def run_together(
    suite: Suite, folder: Path, outcomes: Path, extra: Sequence[str], limit_s: float
) -> None:
    """Run all files by one pytest, each test in a run of its own."""
    files = [] if any(".py" in item for item in extra) else [f"language/{f}" for f in suite.files]
    command = [sys.executable, "-m", "pytest", "-p", "kernbench_conformance", "--device=cpu"]
    command += [f"--outcomes={outcomes}", *_OPTIONS, *_PLAIN, *files, *extra]
    subprocess.run(command, cwd=folder / "unit", env=environment(folder), check=False)


def run_as_programs(
    suite: Suite, folder: Path, outcomes: Path, extra: Sequence[str], limit_s: float
) -> None:
    """Run each file as a program on the suite's machine, until its time is over."""
    value = [item for item in extra if ".py" in item]
    rest = [item for item in extra if item not in value]
    paths = [folder / item for item in value]
    paths = paths or sorted(path for name in suite.files for path in folder.glob(name))
    for path in paths:
        command = [
            str(Path(sys.executable).with_name("kernbench")),
            "torchrun",
            "--machine",
            suite.machine,
        ]
        command += [str(HERE / "pytest_program.py"), f"--outcomes={outcomes}", *_OPTIONS, *_PLAIN]
        command += [f"--rootdir={folder}", str(path), *rest]
        log = folder / f"{path.name}.log"
        with log.open("w") as file:
            try:
                done = subprocess.run(
                    command,
                    cwd=path.parent,
                    env=environment(folder),
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    timeout=limit_s,
                    check=False,
                )
                status = f"status {done.returncode}"
            except subprocess.TimeoutExpired:
                status = f"cut off after {limit_s:g} s"
        print(f"{path.relative_to(folder)}: {status}", flush=True)


def run_compiled(
    suite: Suite, folder: Path, outcomes: Path, extra: Sequence[str], limit_s: float
) -> None:
    """Run each file as a program whose compiler is PyTorch's, and go on where one ends early.

    ``limit_s`` is for one test here: a longer one is ended, with its program, and is a failure.
    """
    value = [item for item in extra if ".py" in item]
    rest = [item for item in extra if item not in value]
    kernbench = str(Path(sys.executable).with_name("kernbench"))
    asked = {
        "KERNBENCH_COMPILE": "inductor",
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        # Their tests of the CPU compile C++, and no device is asked.
        "PYTORCH_TESTING_DEVICE_ONLY_FOR": "cuda",
    }
    for name in value or suite.files:
        command = [kernbench, "torchrun", "--machine", "h100-sxm", str(HERE / "pytest_program.py")]
        command += [f"--outcomes={outcomes}", "--go-on", *_OPTIONS, *_PLAIN]
        command += [f"--rootdir={folder}", str(folder / name), *rest]
        goes_on, before = True, -1
        while goes_on:
            with (folder / f"{name}.log").open("a") as log:
                program = subprocess.Popen(
                    command,
                    cwd=folder,
                    env=environment(folder) | asked,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                )
                status = end_of(program, outcomes, limit_s)
            print(f"{name}: {status}", flush=True)
            ended, left = ended_in(outcomes)
            # A program that ends none would be run for ever.
            goes_on = bool(left) and len(ended) > before
            before = len(ended)


def end_of(program: subprocess.Popen[bytes], outcomes: Path, limit_s: float) -> str:
    """Wait for a program, or end it where nothing was noted for ``limit_s``; say how it ended."""
    size, since_s = -1, time.monotonic()
    while True:
        try:
            return f"status {program.wait(timeout=min(1.0, limit_s))}"
        except subprocess.TimeoutExpired:
            now = outcomes.stat().st_size if outcomes.exists() else -1
            if now != size:
                size, since_s = now, time.monotonic()
            elif time.monotonic() - since_s > limit_s:
                program.kill()
                program.wait()
                return f"ended after {limit_s:g} s in one test"


TRITON = Suite(
    project="Triton",
    # Shortly before Triton 3.8.
    commit="192cdbe70c5a6b4c8724cac4bd83fc45b0f406ee",
    under="python/test",
    parts=("unit/language", "conftest.py"),
    files=("test_core.py", "test_standard.py", "test_random.py", "test_tuple.py"),
    ini=_TRITON_INI,
    allowed=HERE / "allowed.txt",
    report=DOCS / "conformance.md",
    title="Conformance with Triton's own tests",
    command="make conformance TRITON=path ARGS=--update",
    how="with `--device=cpu`: CPU tensors of PyTorch as arguments, on the machine `ahbm`. Nothing "
    "of them is kept in this repository.",
    packages=("triton", "torch", "numpy"),
    explained=(
        (
            r"Unknown key: '(ttgir|llir|ptx)'",
            "reads the IR of a later stage; kernbench ends at TTIR",
        ),
        (
            r"not compiled with CUDA|pin_memory|NoneType.*and 'int'|DID NOT RAISE ValueError",
            "asks PyTorch for a GPU, or expects that a CPU tensor is refused",
        ),
        (
            r"too many indices for tensor of rank|Block pointers have been removed"
            r"|CompileTimeAssert|does not compile",
            "the test is older than the installed Triton, whose front end refuses it",
        ),
        (
            r"Tensor-likes are not close",
            "one element whose terms nearly cancel: PyTorch's 16-bit product, or float32 sums in "
            "another order, differ by more than the test allows",
        ),
        (
            r"assert None is not None",
            "expects a compilation, but clears the kernel cache of PyTorch's device and not ours",
        ),
        (r"scf\.|cf\.cond_br|needs data", "control flow that depends on data"),
    ),
    run=run_together,
)

DISTRIBUTED = Suite(
    project="PyTorch",
    commit="",
    under="test/distributed",
    parts=("tensor", "_composable/fsdp"),
    files=("tensor/test_*.py", "_composable/fsdp/test_*.py"),
    ini="[pytest]\n",
    allowed=HERE / "allowed_distributed.txt",
    report=DOCS / "conformance-distributed.md",
    title="Conformance with PyTorch's own tests of DTensor and FSDP2",
    command="make conformance-distributed PYTORCH=path ARGS=--update",
    how="each file as a program on four simulated devices of the machine `ahbm`. The tests start "
    "their ranks themselves, as processes and as threads, and find CUDA devices. Nothing of them "
    "is kept in this repository.",
    packages=("torch", "numpy"),
    explained=(
        (
            r"length of the sequences mismatch",
            "each rank patches a function of PyTorch's to note its calls; all ranks share PyTorch, "
            "so one notes the calls of all",
        ),
        (r"nccl_log", "reads the log that NCCL writes"),
        (r"bernoulli_", "dropout of DTensors is made of other operations than on a GPU"),
        (r"torch\.export|_custom_class_base", "needs torch.export or torch.compile, left out here"),
        (r"torch\.compile|dynamo|inductor", "needs torch.compile, which is left out"),
        (
            r"Tensor-likes are not close",
            "sums of bfloat16 in another order: a few elements of millions",
        ),
        (r"symm|Symm", "needs symmetric memory, which PyTorch programs have not here"),
    ),
    run=run_as_programs,
)

INDUCTOR = Suite(
    project="PyTorch",
    commit="",
    under="",
    parts=("test_torchinductor.py",),
    files=("test_torchinductor.py",),
    ini="[pytest]\n",
    allowed=HERE / "allowed_inductor.txt",
    report=DOCS / "conformance-inductor.md",
    title="Conformance with PyTorch's own tests of Inductor",
    command="make conformance-inductor TESTS=folder ARGS=--update",
    how="as a program on one simulated device of the machine `h100-sxm`, with "
    "`KERNBENCH_COMPILE=inductor`. PyTorch's test utilities find a CUDA device and Triton "
    "(`HAS_GPU`, `GPU_TYPE`, `requires_gpu`), and so make the classes of GPU tests. Nothing of "
    "the tests is kept in this repository.",
    packages=("torch", "triton", "numpy"),
    explained=(
        (
            r"complex_memory_overlap|(object|module .*|OpNamespace.*) has no attribute"
            r"|does not have the attribute|'NullHandler' object|addmv input|isDifferentiableType"
            r"|Expected to find|evic\[",
            "the test is of another release than the installed PyTorch, by what it asks for",
        ),
        (
            r"Scalars are not equal",
            "the test counts kernels or graph breaks; numbers of another release than the "
            "installed PyTorch's (by what the tests say, not each looked into)",
        ),
        (r"CompilationError", "block pointers, which the installed Triton no longer has"),
        (r"RuntimeError not raised", "a GPU refuses in eager mode what the host computes here"),
        (r"_cudnn_rnn", "cuDNN's own kernel, which a build for the CPU has not"),
        (r"SparseTensorImpl", "sparse gradients, which C++ makes on a device that it knows"),
        (
            r"GeneratorImpl with nullptr",
            "a generator is given to a compiled function, which C++ would take to pieces",
        ),
        (
            r"Please convert all Tensors to FakeTensors|Tensor device mismatch",
            "C++ makes the tensor of a list of numbers, on a device that it does not know",
        ),
        (
            r"HigherOrderOperator|'list' object has no attribute",
            "called outside of what is compiled, as another release of PyTorch has it",
        ),
        (
            r"_scaled_dot_product_efficient_attention",
            "calls the kernel of a GPU by its name, which a build for the CPU has not",
        ),
        (UNENDED, "longer than the limit, or more memory than the host has"),
    ),
    run=run_compiled,
)

GLUON = Suite(
    project="Triton",
    # Triton 3.7: what later releases renamed is still there in 3.8.
    commit="9d9a2d7ac0b8b22d1888cb95056c94a64a4beed4",
    under="python/tutorials/gluon",
    parts=("",),
    files=("0[1-9]-*.py", "1*-*.py"),
    ini="[pytest]\npython_files = *.py\n",
    allowed=HERE / "allowed_gluon.txt",
    report=DOCS / "conformance-gluon.md",
    title="Triton's tutorials of Gluon",
    command="make conformance-gluon TRITON=path ARGS=--update",
    how="the tests in each tutorial as a program on one simulated device of the machine "
    "`h100-sxm`, so that those for Blackwell are skipped by the tutorials themselves. Nothing of "
    "them is kept in this repository.",
    packages=("triton", "torch", "numpy"),
    explained=(
        (
            r"error encountered during parsing",
            "the tutorial is older than the installed Triton, which refuses to see four buffers of "
            "its B as one of C: source and result must have the same logical storage size",
        ),
        (r"ttg\.warp_specialize", "refused by name, with its line: see docs/kernels.md"),
    ),
    run=run_as_programs,
    machine="h100-sxm:1",
)

SUITES = {"triton": TRITON, "distributed": DISTRIBUTED, "inductor": INDUCTOR, "gluon": GLUON}
