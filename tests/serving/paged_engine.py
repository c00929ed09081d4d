"""An engine that serves by PyTorch alone: continuous batching over pages, a layer of products."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from kernbench.serving import EngineSettings, Output, State

HIDDEN = 1024


def make_engine(settings: EngineSettings) -> PagedEngine:
    """Return the engine; its arguments are ``pages`` and ``max_num_seqs``."""
    if settings.tp > 1:
        dist.init_process_group("nccl")
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    return PagedEngine(settings.max_model_len or 4096, **settings.arguments)


class PagedEngine:
    """Takes waiting requests while there are pages for all of their tokens."""

    name = "paged 1"
    vocabulary = 1000

    def __init__(self, longest: int, pages: int = 256, max_num_seqs: int = 8) -> None:
        self.longest, self.pages, self.max_num_seqs = longest, pages, max_num_seqs
        self._free = pages
        self._waiting: list[Any] = []
        self._running: list[Any] = []
        self._weights = torch.zeros(HIDDEN, HIDDEN, device="cuda", dtype=torch.float16)

    def add(self, number: int, prompt: Sequence[int], output_tokens: int) -> None:
        pages = -(-(len(prompt) + output_tokens) // 16)
        self._waiting.append([number, len(prompt), output_tokens, pages, 0.0])

    def step(self) -> list[Output]:
        taken: list[Any] = []
        while self._waiting and len(self._running) < self.max_num_seqs:
            if self._waiting[0][3] > self._free:
                break
            request = self._waiting.pop(0)
            self._free -= request[3]
            request[4] = time.monotonic()
            self._running.append(request)
            taken.append(request)
        tokens = sum(request[1] for request in taken) + len(self._running) - len(taken)
        x = torch.zeros(tokens, HIDDEN, device="cuda", dtype=torch.float16)
        y = x @ self._weights
        if dist.is_initialized():
            dist.all_reduce(y)
        y.sum().item()
        result = []
        for request in list(self._running):
            request[2] -= 1
            result.append(Output(request[0], 1, request[2] == 0, request[4]))
            if not request[2]:
                self._running.remove(request)
                self._free += request[3]
        return result

    def is_idle(self) -> bool:
        return not (self._waiting or self._running)

    def state(self) -> State:
        return State(len(self._running), len(self._waiting), 1 - self._free / self.pages)

    def forget(self) -> None:
        pass
