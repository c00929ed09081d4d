"""vLLM as it is installed, in the process of its program, with weights that hold nothing."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import fields
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from kernbench.errors import UnknownNameError, UsageError, nearest
from kernbench.serving.engine import EngineSettings, Output, State
from kernbench.serving.models import folder_of
from kernbench.torch_bridge import remark

TRIED = ("0.33.0",)
"""Versions that served here; another one may want operators or arguments that nobody defined."""
_VARIABLES = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
}


def make_engine(settings: EngineSettings) -> VllmEngine:
    """Return vLLM's engine of a model.

    Raises:
        UnknownNameError: Its engine has no argument of a name.
        UsageError: vLLM or a package that it imports is not installed, or it is a version with
            another engine.
    """
    try:
        engine = version("vllm")
    except PackageNotFoundError:
        raise UsageError(
            "vLLM is not installed: pip install --no-deps vllm, and its requirements in Python "
            "(docs/serving.md)"
        ) from None
    if engine not in TRIED:
        remark(
            f"vLLM {engine} was never tried here ({', '.join(TRIED)} was): where it wants "
            "operators that are not defined, or takes another way for them, the report says so"
        )
    for name, value in _VARIABLES.items():
        os.environ.setdefault(name, value)
    try:
        return VllmEngine(settings, engine)
    except (ImportError, AttributeError, TypeError) as error:
        package = (getattr(error, "name", None) or "").partition(".")[0]
        if isinstance(error, ModuleNotFoundError) and package != "vllm":
            raise UsageError(
                f"vLLM {engine} imports {package}, which is not installed: install it, as all of "
                "vLLM's requirements in Python (docs/serving.md)"
            ) from error
        if engine in TRIED:
            raise
        raise UsageError(
            f"vLLM {engine} has another engine than the versions that were tried "
            f"({', '.join(TRIED)}): {type(error).__name__}: {error}"
        ) from error


class VllmEngine:
    """vLLM's engine, which schedules and runs a step when it is asked to."""

    def __init__(self, settings: EngineSettings, release: str) -> None:
        from vllm import EngineArgs, SamplingParams
        from vllm.sampling_params import RequestOutputKind
        from vllm.usage.usage_lib import UsageContext
        from vllm.v1.engine.llm_engine import LLMEngine

        known = [item.name for item in fields(EngineArgs)]
        for name in settings.arguments:
            if name not in known:
                raise UnknownNameError(
                    f"--engine-arg {name}: vLLM {release} has no such argument of its engine: "
                    f"{nearest(name, known)}"
                )
        self.name = f"vllm {release}"
        self._last = State(0, 0, 0.0)
        with tempfile.TemporaryDirectory() as scratch:
            arguments: dict[str, Any] = {
                "model": str(folder_of(settings.model, Path(scratch) / "model")),
                "load_format": "dummy",
                "skip_tokenizer_init": True,
                "tensor_parallel_size": settings.tp,
                # Its kernels decide by numbers that nobody has.
                "kernel_config": {"enable_jit_warmup": False},
                "disable_log_stats": False,
            }
            if settings.tp > 1:
                # Its workers are the ranks of the run, each with a scheduler that does the same.
                arguments["distributed_executor_backend"] = "external_launcher"
            if settings.quantization:
                arguments["quantization"] = settings.quantization
            if settings.max_model_len:
                arguments["max_model_len"] = settings.max_model_len
            arguments.update(settings.arguments)
            self._engine: Any = LLMEngine.from_engine_args(
                EngineArgs(**arguments),
                # Its limits of a batch are a server's.
                usage_context=UsageContext.OPENAI_API_SERVER,
                stat_loggers=[lambda config, index=0: _StateLog(self)],
            )
        model = self._engine.model_config
        self.longest: int = model.max_model_len
        self.vocabulary: int = model.get_vocab_size()
        self._sampling = partial(
            SamplingParams,
            temperature=0,
            ignore_eos=True,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
        )

    def note(self, running: int, waiting: int, kv_share: float) -> None:
        """Note what the scheduler says after a step."""
        self._last = State(running, waiting, kv_share)

    def add(self, number: int, prompt: Sequence[int], output_tokens: int) -> None:
        """Take a request that is to make so many tokens."""
        params = self._sampling(max_tokens=output_tokens)
        self._engine.add_request(str(number), {"prompt_token_ids": list(prompt)}, params)

    def step(self) -> Iterator[Output]:
        """Do one step, and return what it made."""
        for item in self._engine.step():
            seen = item.metrics
            yield Output(
                number=int(item.request_id),
                tokens=len(item.outputs[0].token_ids),
                is_last=item.finished,
                begun_s=(seen.scheduled_ts or None) if seen is not None else None,
                cached_tokens=item.num_cached_tokens or 0,
                preemptions=seen.num_preemptions if seen is not None else 0,
            )

    def is_idle(self) -> bool:
        """Return whether no request is left."""
        return not self._engine.has_unfinished_requests()

    def state(self) -> State:
        """Return what it does and holds after the last step."""
        return self._last

    def forget(self) -> None:
        """Empty its cache of prompts."""
        self._engine.reset_prefix_cache()


class _StateLog:
    """A logger of vLLM's, which hears of each step."""

    def __init__(self, engine: VllmEngine) -> None:
        self._engine = engine

    def record(self, scheduler_stats: Any, iteration_stats: Any, *_: Any, **__: Any) -> None:
        """Note what the scheduler says."""
        if scheduler_stats is not None:
            waiting = scheduler_stats.num_waiting_reqs + scheduler_stats.num_skipped_waiting_reqs
            self._engine.note(
                scheduler_stats.num_running_reqs, waiting, scheduler_stats.kv_cache_usage
            )

    def log(self, *_: Any) -> None:
        """Say nothing."""

    log_engine_initialized = record_sleep_state = log
