"""Entering PyTorch's compiler: what a run replaces in it, once a program compiles something.

Importing the compiler takes seconds, so that only a program that compiles pays for it.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
import os
import pkgutil
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import torch
import torch._library.triton
import torch.compiler.config
import torch.export
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves

import kernbench
from kernbench.errors import KernbenchError, UnsupportedOpError, UsageError, nearest
from kernbench.logs import logger
from kernbench.runtime_api import Run
from kernbench.torch_bridge.base.patches import Patches, while_it_lives
from kernbench.torch_bridge.compiler import (
    estimates,
    fakes,
    graph_calls,
    graphed,
    guards,
    interface,
    kept,
    source_lines,
    traced,
    trials,
    wrappers,
)
from kernbench.torch_bridge.compiler.numbering import Numbering
from kernbench.torch_bridge.device import streams
from kernbench.torch_bridge.device.lacking import refusing
from kernbench.torch_bridge.dispatch.kernels import TorchLauncher
from kernbench.torch_bridge.dispatch.observe import EagerObserver, Observer
from kernbench.torch_bridge.processes.call_counts import uncounted, unseen
from kernbench.torch_bridge.processes.compiling import COMPILING, Views
from kernbench.torch_bridge.processes.process import HERE
from kernbench.torch_bridge.processes.python_calls import ThreadCalls
from kernbench.torch_bridge.python import environ
from kernbench.torch_bridge.replaced import without_compiler
from kernbench.torch_bridge.replaced.attention import operations
from kernbench.torch_bridge.replaced.compiled import compile_nothing
from kernbench.triton_backend import compile_target

_LOG = logger("compile")
_compile = torch.compile
_INDUCTOR, _NOTHING = "inductor", "eager"
_INSTEAD = (
    "while it was compiled for a simulated device; KERNBENCH_COMPILE=eager runs the program "
    "operation by operation"
)
_AT_LAUNCH = (
    "in a kernel of what torch.compile made; KERNBENCH_COMPILE=eager runs the program operation by "
    "operation"
)
_CHOICES = (_INDUCTOR, _NOTHING)
_ON_THE_WAY = ("optimize", "optimize_assert", "explain", "export")
"""What programs call of ``torch._dynamo`` to have something compiled."""
_UNTRACED = ("simpy", "greenlet")
_PROGRAMS = ("__main__", "plans")
"""Parts of kernbench that are or have programs, which are compiled as a user's are."""
_OF_CPP = ("aoti_compile_and_package", "aot_compile")
_NO_CPP = "C++ of a GPU cannot be run; torch.compile the module() of the exported program"
_NO_TRACE = "nothing is traced, as KERNBENCH_COMPILE=eager asks; leave it out, or call the module"
_OF_DEVICES: tuple[Any, ...] = (
    Observer.__torch_dispatch__,
    EagerObserver.__torch_dispatch__,
    TorchLauncher.launch,
    # The compiler asks first what to do with a function that it meets, and counting would pause in
    # the middle of a pause.
    ThreadCalls.pause,
    ThreadCalls.stop,
    ThreadCalls.resume,
    ThreadCalls.start,
)
"""What is never compiled, with all that it calls."""
_OF_STREAMS = (streams.Stream, streams.Event, streams.StreamContext)
"""What graphs break at: streams and events that C++ does not know."""
_BY_FUNCTION = ("get_torch_obj_rule_map", "get_tensor_method")
"""What makes Dynamo's rules by function, and keeps them."""
_TORCH = str(Path(torch.__file__).parent)
_ENTRIES = (
    ("torch._dynamo.convert_frame", "CatchErrorsWrapper.__call__"),
    ("torch._dynamo.aot_compile", "aot_compile_fullgraph"),
    ("torch._inductor.compile_fx", "compile_fx"),
    ("torch._inductor.compile_fx", "compile_fx_inner"),
)
"""Where the compiler is entered."""


class Compiler:
    """The compiler of one run: in place from the first call of ``torch.compile``."""

    def __init__(
        self, patches: Patches, run: Run, for_all: Callable[[], AbstractContextManager[None]]
    ) -> None:
        self._patches = patches
        self._run = run
        self._for_all = for_all
        """What surrounds what is put in place for all processes, whichever compiles first."""
        self._is_imported = self._is_there = False
        self.views = Views(patches, environ.plain, environ.of_processes)
        self._numbering = Numbering()
        self._lines = source_lines.SourceLines()

    def compile(self, model: Any = None, **options: Any) -> Any:
        """``torch.compile``: PyTorch's own, behind the first import of the compiler."""
        self.prepare()
        if model is None:
            return lambda value: self.compile(value, **options)
        with uncounted():
            return _compile(model, **options)

    @contextmanager
    def tracing(self) -> Iterator[None]:
        """Show what the compiler sees of PyTorch to another one, which is made of its parts."""
        self.prepare()
        with self.views.compiling(), _disable_current_modes(), fakes.WithIndices():
            yield

    def import_tracer(self) -> None:
        """Import ``torch._dynamo``, which programs also ask for other things than to compile."""
        if not self._is_imported:
            # No other rank runs meanwhile, as all locks are real.
            with self.views.compiling(), self._for_all():
                _expect_deprecations()
                self._is_imported = True
                self._import_tracer()

    def prepare(self) -> None:
        """Import the whole compiler, and let it compile for simulated devices."""
        if not self._is_there:
            begun_s = perf_counter()
            self.import_tracer()
            with self.views.compiling(), self._for_all():
                _expect_deprecations()
                self._is_there = True
                self._prepare()
            _LOG.info("PyTorch's compiler is there, after %.1f s", perf_counter() - begun_s)

    def leave(self) -> None:
        """Let go of the run, at its end: the compiler keeps what was put in place in its caches."""
        self._is_imported = self._is_there = True
        del self._run, self._for_all

    def _import_tracer(self) -> None:
        without_compiler.leave()
        os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
        wrappers.install_early(self._patches)
        # Dynamo has handlers by function, so that no two names may have one.
        for name, value in list(vars(torch.accelerator).items()):
            if callable(value) and not name.startswith("_"):
                self._patches.set(torch.accelerator, name, unseen(value))
        module = importlib.import_module("torch._dynamo")
        for name in _ON_THE_WAY:
            self._patches.set(module, name, self._prepared(getattr(module, name)))

    def _prepared(self, original: Callable[..., Any]) -> Callable[..., Any]:
        prepare = while_it_lives(self.prepare)

        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            prepare()
            return original(*args, **kwargs)

        return call

    def _prepare(self) -> None:
        import torch._inductor.compile_fx
        from torch._dynamo import device_interface, trace_rules
        from torch._inductor import cudagraph_trees
        from torch._inductor.fx_passes import fuse_attention
        from torch.nn.attention.bias import CausalBias

        traced.BIASES = CausalBias
        patches, views = self._patches, self.views
        # Code of a library is there for the next run, too, which may be of another machine.
        patches.on_close(torch._dynamo.reset)
        device_interface.init_device_reg()
        interface.install(patches)
        fakes.install(patches, views)
        wrappers.install(patches, self._numbering)
        trials.install(patches, views)
        guards.install(patches, views)
        kept.install(patches, self._numbering)
        estimates.install(patches, self._run)
        for name in _OF_CPP:
            patches.set(torch._inductor, name, refusing(f"torch._inductor.{name}", _NO_CPP))
        graphs = graphed.Graphs()
        patches.set(torch._inductor.compile_fx, "cudagraphify", graphs.cudagraphify)
        patches.set(cudagraph_trees, "cudagraphify_impl", graphs.of_backend)
        # Once PyTorch has called an operator of kernels eagerly, it holds what the bridge set.
        views.over[torch._library.triton, "wrap_triton_enabled"] = threading.local()
        views.over[torch.nn.functional, "scaled_dot_product_attention"] = traced.attention
        # What Inductor puts in the place of a program's own products and softmax.
        patches.set(fuse_attention, "_scaled_dot_product_attention", traced.attention)
        self._compile_kernels()
        self._enter()
        graph_calls.install(patches, views)
        self._lines.install(patches)
        self._leave_untraced(trace_rules)

    def _compile_kernels(self) -> None:
        from torch._functorch._aot_autograd import autograd_cache
        from torch._inductor import codecache, config
        from torch._inductor.runtime import triton_helpers, triton_heuristics

        target = compile_target(self._run.machine.spec.cuda_architecture)
        patches = self._patches
        patches.set(triton_helpers, "set_driver_to_gpu", lambda: None)
        patches.set(triton_heuristics, "GPUTarget", lambda *args: target)
        tuner = triton_heuristics.CachingAutotuner
        patches.set(tuner, "run", unseen(_with_advice(tuner.run, self._lines)))
        # Libraries of a GPU's compiler; kernbench's kernels have none.
        if hasattr(torch.utils._triton, "_extern_libs_key"):
            patches.set(torch.utils._triton, "_extern_libs_key", lambda *args: "")
        for module in (codecache, autograd_cache):
            patches.set(module, "add_ephemeral_timeout_increase_for_distributed", lambda ns: 0)
        # All keys of what is kept on disk have it.
        tag = torch.compiler.config.cache_key_tag + kept.kept_for(self._run)
        self._configure(torch.compiler.config, cache_key_tag=tag)
        kept.keep_choices(patches, tag)
        self._configure(
            config,
            compile_threads=1,
            use_static_triton_launcher=False,
            use_static_cuda_launcher=False,
        )

    def _configure(self, config: Any, **values: Any) -> None:
        """Set defaults: what is set otherwise holds for one thread, and each rank has its own."""
        for name, value in values.items():
            entry = config._config.get(name)
            if entry is not None:
                self._patches.set(entry, "default", value)
        config._hash_dirty_var.set(True)

    def _enter(self) -> None:
        import torch._dynamo.config as dynamo_config
        import torch._functorch.config as functorch_config

        for module, path in _ENTRIES:
            *owners, name = path.split(".")
            owner = functools.reduce(getattr, owners, importlib.import_module(module))
            self._patches.set(owner, name, self._while_compiling(getattr(owner, name)))
        most = dynamo_config.accumulated_recompile_limit * self._run.machine.num_sips
        self._configure(dynamo_config, accumulated_recompile_limit=most)
        self._configure(functorch_config, force_non_lazy_backward_lowering=True)

    def _while_compiling(self, original: Callable[..., Any]) -> Callable[..., Any]:
        from torch._dynamo.exc import TorchDynamoException, Unsupported

        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            if COMPILING.depth:
                return original(*args, **kwargs)
            _wait_for_collectives(args)
            # Dynamo itself disables modes, but not for DDP.
            begun_s, spent_s = perf_counter(), process_time()
            with self.views.compiling(), _disable_current_modes():
                try:
                    result = original(*args, **kwargs)
                    _log_compiled(args, perf_counter() - begun_s)
                except TorchDynamoException as error:
                    if not isinstance(error, Unsupported):
                        error.add_note(_INSTEAD)
                    raise
            self._let_pass(process_time() - spent_s)
            return result

        return call

    def _let_pass(self, spent_s: float) -> None:
        """Let the time that compiling has taken pass for the program, if it is asked for."""
        host = self._run.machine.spec.host
        share = 0 if host is None else host.compile_share
        if share and HERE.process is not None:
            passed_ps = int(share * int(spent_s * 1e12))
            HERE.process.session.compiled_ps += passed_ps
            HERE.process.host.work("torch.compile", passed_ps)

    def _leave_untraced(self, trace_rules: Any) -> None:
        from torch._C._dynamo import guards as c_guards
        from torch._C._dynamo.eval_frame import set_code_exec_strategy
        from torch._dynamo.types import FrameAction, FrameExecStrategy
        from torch._dynamo.variables.user_defined import UserDefinedClassVariable

        traceable = (*trace_rules.BUILTIN_INLINE_WHEN_CALLED, traced.__file__, operations.__file__)
        self._patches.set(trace_rules, "BUILTIN_INLINE_WHEN_CALLED", traceable)
        parts = (module.name for module in pkgutil.iter_modules(kernbench.__path__))
        own = (f"{kernbench.__name__}.{part}" for part in parts if part not in _PROGRAMS)
        for name in (*own, *_UNTRACED):
            trace_rules.add(name)
        skip = FrameExecStrategy(FrameAction.SKIP, FrameAction.SKIP)
        for function in _OF_DEVICES:
            set_code_exec_strategy(function.__code__, skip)
        # C++ reads the environment of the real process, not the rank's.
        name = "_TORCHINDUCTOR_PYOBJECT_TENSOR_DATA_PTR"
        value = str(c_guards._torchinductor_pyobject_tensor_data_ptr)
        ctypes.CDLL(None).setenv(name.encode(), value.encode(), 1)
        for name in _BY_FUNCTION:
            rules = functools.cache(self._as_compiling(getattr(trace_rules, name).__wrapped__))
            self._patches.set(trace_rules, name, rules)
        trace_rules.clear_lru_cache()
        for function in _OF_STREAMS:
            UserDefinedClassVariable._in_graph_classes().discard(function)

    def _as_compiling(self, make: Callable[[], Any]) -> Callable[[], Any]:
        """Return what makes rules of PyTorch's functions: of those that show while compiling.

        A group that is joined later has them made anew.
        """

        @functools.wraps(make)
        def rule_table() -> Any:
            with self.views.compiling():
                rules = make()
            if isinstance(rules, dict):
                for function in _OF_STREAMS:
                    rules.pop(function, None)
            return rules

        return rule_table


def _wait_for_collectives(args: tuple[Any, ...]) -> None:
    """Wait for functional collectives, as AOTAutograd would in the middle of compiling."""
    from torch.distributed._functional_collectives import AsyncCollectiveTensor

    values = [dict(arg.f_locals) if hasattr(arg, "f_locals") else arg for arg in args]
    for value in tree_leaves(values):
        inner = getattr(value, "_local_tensor", value)
        if isinstance(inner, AsyncCollectiveTensor):
            inner.trigger_wait()


def _log_compiled(args: tuple[Any, ...], taken_s: float) -> None:
    """Log what was compiled: a function, as Dynamo is given its frame, or a graph of its own."""
    codes = (getattr(arg, "f_code", None) for arg in args)
    names = [f"{code.co_qualname} at {code.co_filename}:{code.co_firstlineno}"
             for code in codes if code is not None]  # fmt: skip
    _LOG.info("torch.compile: %s in %.1f s", names[0] if names else "a graph", taken_s)


def _with_advice(run: Callable[..., Any], lines: source_lines.SourceLines) -> Callable[..., Any]:
    """Return a launch of what Inductor wrote, or copied, that says more about its errors.

    That is what to do where it cannot run, and else the lines of the program that it computes.
    """

    @functools.wraps(run)
    def launch(*args: Any, **kwargs: Any) -> Any:
        try:
            return run(*args, **kwargs)
        except UnsupportedOpError as error:
            error.add_note(_AT_LAUNCH)
            raise
        except KernbenchError as error:
            if computed := lines.of_launch():
                error.add_note(f"the kernel computes {computed}")
            raise

    return launch


def _expect_deprecations() -> None:
    """Ignore what PyTorch's own modules use of what it deprecates, which no program could mend."""
    warnings.filterwarnings("ignore", category=DeprecationWarning)


def install(
    patches: Patches, run: Run, for_all: Callable[[], AbstractContextManager[None]]
) -> Compiler | None:
    """Give the programs of a run ``torch.compile``; return what compiles, if anything does.

    ``for_all`` surrounds what is put in place for all processes.

    Raises:
        UsageError: ``KERNBENCH_COMPILE`` names no compiler.
    """
    asked = os.environ.get("KERNBENCH_COMPILE") or _INDUCTOR
    if asked not in _CHOICES:
        raise UsageError(f"KERNBENCH_COMPILE={asked}: {nearest(asked, _CHOICES)}")
    if asked == _NOTHING:
        without_compiler.install(patches, None)
        patches.set(torch, "compile", compile_nothing)
        patches.set(torch.export, "export", refusing("torch.export.export", _NO_TRACE))
        return None
    compiler = Compiler(patches, run, for_all)
    patches.on_close(compiler.leave)
    without_compiler.install(patches, compiler.import_tracer)
    patches.set(torch, "compile", compiler.compile)
    patches.set_all(FakeTensorMode, _entering(FakeTensorMode, compiler))
    program = torch.export.ExportedProgram
    for owner, name in ((torch.export, "export"), (program, "run_decompositions")):
        patches.set(owner, name, _as_traced(getattr(owner, name)))
    return compiler


def _as_traced(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of PyTorch that sees what the compiler sees."""

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        if HERE.process is None or COMPILING.depth:
            return original(*args, **kwargs)
        with HERE.process.session.tracing():
            return original(*args, **kwargs)

    return call


def _entering(mode: Any, compiler: Compiler) -> dict[str, Callable[..., Any]]:
    """Return what enters and leaves a mode of fake tensors: it sees them as the compiler does."""
    enter, leave = mode.__enter__, mode.__exit__

    def begin(self: Any) -> Any:
        is_own = sys._getframe(1).f_code.co_filename.startswith(_TORCH)
        is_traced = not is_own and HERE.process is not None and not COMPILING.depth
        surroundings = vars(self).setdefault("_kernbench_surroundings", [])
        surroundings.append(compiler.tracing() if is_traced else contextlib.nullcontext())
        surroundings[-1].__enter__()
        return enter(self)

    def end(self: Any, *error: Any) -> Any:
        with contextlib.ExitStack() as stack:
            stack.push(vars(self)["_kernbench_surroundings"].pop())
            return leave(self, *error)

    return {"__enter__": begin, "__exit__": end}
