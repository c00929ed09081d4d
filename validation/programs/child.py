"""The process in which programs run, one after another, each in a run of its own."""

from __future__ import annotations

import gc
import importlib
import os
import re
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import (
    ExitStack,
    contextmanager,
    nullcontext,
    redirect_stderr,
    redirect_stdout,
    suppress,
)
from importlib.util import find_spec
from io import TextIOBase
from multiprocessing.connection import Connection
from pathlib import Path

from kernbench.accuracy.rows import Category
from kernbench.errors import KernbenchError
from kernbench.hardware import Machine
from kernbench.runtime_api import Folding, RuntimeContext
from validation.programs.kept import ProgramAnswer
from validation.programs.old_inductor import old_inductor
from validation.programs.program import APART_S, Program

_LONGEST = 140
_FOLDERS = re.compile(r"(?<![\w.])/(?:[^/\s'\"]+/)+")
"""Of files that errors name: where they lie on one machine says nothing on a page."""
_COMPILER = "KERNBENCH_COMPILE"
_MISSING = re.compile(r"operator torchvision::(\w+) does not exist")
_LIBRARIES: list[object] = []
"""Declarations last as long as these."""


class _Lines(TextIOBase):
    """What a program prints; ends it at the line that says the time."""

    def __init__(self, program: Program) -> None:
        self._pattern = re.compile(program.reads)
        self._first = re.compile(program.reads_first) if program.reads_first else None
        self._left = program.line
        self._rest = ""
        self.time: float | None = None
        self.first = 0.0

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        *whole, self._rest = (self._rest + text).split("\n")
        for line in whole:
            first = self._first.search(line) if self._first is not None else None
            if first is not None:
                self.first = float(first.group(1))
            said = self._pattern.search(line)
            if said is not None and self.time is None:
                self._left -= 1
                if not self._left:
                    self.time = float(said.group(1).replace(",", ""))
                    raise SystemExit(0)
        return len(text)


def serve(pipe: Connection) -> None:
    """Answer each ``(program, machine)`` by ``(its answer, MiB of this process)``."""
    # Ctrl-C reaches all processes of a terminal; the one that asks ends this one.
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _prepare()
    while True:
        try:
            program, machine = pipe.recv()
        except EOFError:
            return
        answer = _answer(program, machine)
        gc.collect()
        pipe.send((answer, _most_mib()))


def _most_mib() -> int:
    """Return the most that this process has held; 0 where the system does not say.

    Its resource usage would count what the process that started it held then, too.
    """
    try:
        said = Path("/proc/self/status").read_text(encoding="utf-8")
    except OSError:
        return 0
    return int(said.partition("VmHWM:")[2].split()[0]) >> 10


def _prepare() -> None:
    """Import PyTorch and the bridge, without what libraries of programs would fetch or say."""
    os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error", TQDM_DISABLE="1")
    # Programs were measured with versions that ask flash attention before cuDNN's on all GPUs.
    os.environ["TORCH_CUDNN_SDPA_DEPRIORITIZED"] = "1"
    # ... and with Triton before 3.7.
    bursts = importlib.import_module("kernbench.kernel_time.costs.bursts")
    vars(bursts)["FIRST_AXIS_OF_EQUALS"] = True
    gc.disable()
    importlib.import_module("kernbench.torch_bridge.front.programs")
    import_torchvision()
    gc.enable()
    gc.freeze()


def import_torchvision() -> None:
    """Import torchvision, if there is one, though it may be built for another PyTorch.

    A build for CUDA cannot load its operators beside a PyTorch for the CPU. Those whose absence its
    import does not bear are declared; programs that call one fail.
    """
    import torch

    kept = []
    while find_spec("torchvision") is not None:
        try:
            importlib.import_module("torchvision")
        except RuntimeError as error:
            missing = _MISSING.search(str(error))
            if missing is None:
                return
            library = torch.library.Library("torchvision", "FRAGMENT")
            library.define(f"{missing.group(1)}(Tensor dets, Tensor scores, float at) -> Tensor")
            kept.append(library)
            for name in [
                module for module in sys.modules if module.partition(".")[0] == "torchvision"
            ]:
                del sys.modules[name]
        except ImportError:
            return
        else:
            break
    _LIBRARIES.extend(kept)


def _answer(program: Program, machine: Machine) -> ProgramAnswer:
    from kernbench.runtime_api import Folding

    if program.folded_to is None:
        return _answer_by(program, machine, None)
    folding = Folding(program.ranks, (), program.folded_to)
    while True:
        answer = _answer_by(program, machine, folding)
        if answer.step_us or folding.wanted is None:
            return answer
        # Some of the ranks that one has run for send to each other.
        axes = (*folding.axes, folding.wanted)
        folding = Folding(program.ranks, axes, program.folded_to)


def _answer_by(program: Program, machine: Machine, folding: Folding | None) -> ProgramAnswer:
    """Return the answer of those ranks that a folding lets run."""
    from kernbench.runtime_api import RuntimeContext

    lines = _Lines(program)
    context = RuntimeContext(machine=machine, data=False, check=False)
    if folding is not None:
        folding.begin(context.run)
    reason = "prints no time of a step"
    try:
        with redirect_stdout(lines), redirect_stderr(lines):
            time_program(program, context)
    except SystemExit as end:
        reason = f"exits with {end.code}" if end.code else reason
    except (Exception, BaseExceptionGroup) as error:
        reason = _reason(error)
    if lines.time is None:
        return ProgramAnswer(why_not=reason)
    step_us = lines.time * program.unit_us
    if program.units_per_step:
        step_us = program.units_per_step / lines.time * 1e6 if lines.time else 0.0
    host_share = 0.0 if program.of_kernels else _host_share(context, step_us)
    window_us = step_us + (APART_S * 1e6 if program.of_kernels else 0.0)
    shares = _shares(context, window_us, host_share)
    peak_bytes = _peak_bytes(context)
    return ProgramAnswer(
        step_us=step_us,
        first_us=lines.first * program.unit_us,
        host_share=host_share,
        shares=shares,
        peak_bytes=peak_bytes,
    )


_PEAK = re.compile(r"([\d.]+) GiB reserved of")
"""As reports say it."""


def _peak_bytes(context: RuntimeContext) -> float:
    """Return what the allocator of the rank that needs most has reserved; 0 where none says it."""
    lines = [
        line
        for remark in context.run.remarks
        for line in (remark() if callable(remark) else [remark])
    ]
    return max((float(gib) * 2**30 for line in lines for gib in _PEAK.findall(line)), default=0.0)


def _shares(context: RuntimeContext, window_us: float, host_share: float) -> dict[str, float]:
    """Return what the latest step's time is of: kinds of kernels, collectives, the host."""
    from kernbench.report import HOST, kind_of

    times: Counter[str] = Counter()
    timed = ("kernel", "collective")
    launches = [
        instance for instance in context.op_log.instances if instance.template.kind in timed
    ]
    since_ps = max((launch.ends_ps[0] for launch in launches), default=0) - int(window_us * 1e6)
    for launch in launches:
        if launch.starts_ps[0] >= since_ps:
            is_kernel = launch.template.kind == "kernel"
            kind = kind_of(launch.template) if is_kernel else Category.COLLECTIVES.value
            times[kind] += launch.ends_ps[0] - launch.starts_ps[0]
    scale = (1 - host_share) / (times.total() or 1)
    shares = {kind: round(time_ps * scale, 3) for kind, time_ps in times.items()}
    values = {**shares, **({HOST: round(host_share, 3)} if host_share else {})}
    return {kind: share for kind, share in values.items() if share}


def _host_share(context: RuntimeContext, step_us: float) -> float:
    """Return the share of the latest step in which devices waited for their hosts."""
    from kernbench.report import idle_parts

    step_ps, log = int(step_us * 1e6), context.op_log
    if not step_ps or not log.host_spans:
        return 0.0
    end_ps = max(span.end_ps for span in log.host_spans)
    parts = idle_parts(log, since_ps=end_ps - step_ps)
    folding = context.run.folding
    num_ranks = context.world_size if folding is None else len(folding.running)
    return parts.of_host_ps / (step_ps * num_ranks)


def time_program(program: Program, context: RuntimeContext) -> None:
    """Run a program to its end."""
    from kernbench.torch_bridge import run_torchrun

    _restore_defaults()
    code = compile(program.text(), str(program.script), "exec")
    argv = [str(program.script), *program.args]
    with _surroundings(program), warnings.catch_warnings(), ExitStack() as stack:
        warnings.simplefilter("ignore")
        _import_libraries(program)
        stack.enter_context(context)
        run_torchrun(
            context,
            program.script,
            code,
            argv,
            program.ranks // program.nodes,
            shown={0, program.ranks - 1},
            module=program.module or None,
            variables={
                **({"MASTER_ADDR": "localhost"} if program.nodes == 1 else {}),
                **dict(program.variables),
            },
            num_nodes=program.nodes,
        )


def _import_libraries(program: Program) -> None:
    """Import what a program needs before its run, which drops what it imports itself.

    So a library is imported once for all programs, which takes as long as a program.
    """
    for name in program.needs:
        # A program says better than this what is wrong with a library.
        with suppress(Exception):
            importlib.import_module(name)


def _restore_defaults() -> None:
    """Undo what an earlier program has set for its thread or process."""
    import torch

    torch.set_grad_enabled(True)
    torch.set_default_dtype(torch.float32)
    torch.set_float32_matmul_precision("highest")
    torch.use_deterministic_algorithms(False)
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.allow_tf32 = True
    torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(False)


@contextmanager
def _surroundings(program: Program) -> Iterator[None]:
    """Give a program its compiler, its working directory, and the folders to import from."""
    folder, paths = Path.cwd(), list(sys.path)
    compiler = os.environ.get(_COMPILER)
    os.environ[_COMPILER] = "inductor" if program.is_compiled else "eager"
    sys.path[:0] = [str(path) for path in program.paths]
    if program.folder is not None:
        os.chdir(program.folder)
    try:
        with old_inductor() if program.is_before_2_8 else nullcontext():
            yield
    finally:
        sys.path[:] = paths
        os.environ.pop(_COMPILER)
        if compiler is not None:
            os.environ[_COMPILER] = compiler
        with suppress(OSError):
            os.chdir(folder)


def _reason(error: BaseException) -> str:
    """Return why a program failed: the first rank's reason, in one line."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    lines = str(error).splitlines() or [""]
    # An error in a kernel's source begins with its place, and ends with what is wrong.
    text = (lines[-1] if lines[0].endswith(":") else lines[0]).split(";")[0]
    named = text if isinstance(error, KernbenchError) else f"{type(error).__name__}: {text}"
    return _FOLDERS.sub("", named)[:_LONGEST]
