"""What a service runs on: its folder and its pool of processes, for as long as it serves."""

from __future__ import annotations

import contextlib
import json
import math
import secrets
import socket
import tempfile
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kernbench.errors import KernbenchError, UsageError
from kernbench.judging import BusyError, JudgePool
from kernbench.service.requests import MOST_SOURCE_BYTES, Workspace
from kernbench.service.tools import Tools, build_server


@contextlib.contextmanager
def serving(
    folder: Path | None, *, workers: int, timeout_s: float, waiting: int = 64, **judging: Any
) -> Iterator[Tools]:
    """Yield the tools of a service; without a folder, what it keeps is gone at the end."""
    with contextlib.ExitStack() as stack:
        if folder is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kernbench-")))
        judges = JudgePool(workers, most_waiting=waiting, **judging)
        stack.callback(judges.close)
        yield Tools(Workspace(folder, timeout_s=timeout_s), judges)


def serve_http(tools: Tools, host: str, port: int, *, waiting: int) -> None:
    """Serve until Ctrl-C; the address stands on standard output once connections are taken.

    Raises:
        UsageError: The package mcp is not installed, or the port is in use.
    """
    app = build_app(tools, waiting=waiting)
    import uvicorn

    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((host, port))
        except OSError as error:
            raise UsageError(f"cannot serve at {host}:{port}: {error.strerror or error}") from None
        listening.listen()
        print(f"http://{host}:{listening.getsockname()[1]}", flush=True)
        config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=2)
        uvicorn.Server(config).run(sockets=[listening])


_MOST_BODY_BYTES = 4 * MOST_SOURCE_BYTES
_MOST_KEPT = 10_000
"""Episodes and jobs that are kept; the oldest are forgotten first."""


@dataclass
class Episode:
    """A task, and what has been tried at it."""

    task: str
    machines: list[str]
    steps: int = 0
    best: float = 0.0
    outcomes: list[str] = field(default_factory=list)


def reward(verdict: Mapping[str, Any]) -> float:
    """Return an example of a reward, from 0 to 1: right is 0.5, faster than eager is more.

    What counts of a speed-up is the lower end of its range, on the worst of the machines; twice as
    fast is 0.75. A candidate that is wrong, or a cheat, gets nothing.
    """
    if verdict["outcome"] not in ("right", "right and fast enough"):
        return 0.0
    least = min((item["speedup_low"] or 0.0 for item in verdict["times"]), default=0.0)
    return 0.5 + 0.5 * (1 - 1 / least) if least > 1 else 0.5


class HttpService:
    """What the routes answer."""

    def __init__(self, tools: Tools, *, waiting: int) -> None:
        """``waiting``: how many requests are taken before the next one is told to come again."""
        self._tools = tools
        self._threads = ThreadPoolExecutor(waiting, thread_name_prefix="kernbench-request")
        self._episodes: OrderedDict[str, Episode] = OrderedDict()
        self._jobs: OrderedDict[str, Any] = OrderedDict()

    def routes(self) -> Mapping[tuple[str, str], Callable[[dict[str, Any]], Any]]:
        """Return what answers each method and path; each takes the body's object."""
        return {
            ("GET", "/health"): lambda _: {"status": "healthy"},
            ("GET", "/schema"): lambda _: _schema(),
            ("POST", "/reset"): self.reset,
            ("POST", "/step"): self.step,
            ("GET", "/state"): self.state,
            ("POST", "/jobs"): self.start,
            ("GET", "/jobs"): self.job,
        }

    def reset(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Begin an episode: a task, and the machines on which candidates are timed."""
        task = _text(asked, "task")
        machines = asked.get("machines") or ["h100-sxm"]
        if not isinstance(machines, list) or not all(
            isinstance(machine, str) for machine in machines
        ):
            raise UsageError(f"machines is a list of names, but got {machines!r}")
        name = secrets.token_hex(8)
        _keep(self._episodes, name, Episode(task, machines))
        observation = {"episode_id": name, "task": task, "machines": machines}
        return {"observation": observation, "reward": None, "done": False}

    def step(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Judge the candidate of an action."""
        episode = self._episode(asked)
        action = asked.get("action")
        if not isinstance(action, dict):
            raise UsageError('a step needs an action: {"action": {"candidate": SOURCE}}')
        verdict = self._tools.judge(_text(action, "candidate"), episode.task, episode.machines)
        gained = reward(verdict)
        episode.steps += 1
        episode.best = max(episode.best, gained)
        episode.outcomes.append(verdict["outcome"])
        return {"observation": {"verdict": verdict}, "reward": gained, "done": False}

    def state(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Return how far an episode is."""
        episode = self._episode(asked)
        return {
            "episode_id": asked["episode_id"],
            "step_count": episode.steps,
            "best_reward": episode.best,
            "outcomes": episode.outcomes,
        }

    def start(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Start a tool, by its name and arguments, and return the job's name."""
        tool, arguments = _text(asked, "tool"), asked.get("arguments") or {}
        known = self._tools.all()
        if tool not in known:
            raise UsageError(f"no tool {tool!r}; known: {', '.join(known)}")
        if not isinstance(arguments, dict):
            raise UsageError(f"arguments is an object, but got {arguments!r}")
        name = secrets.token_hex(8)
        _keep(self._jobs, name, self._threads.submit(known[tool], **arguments))
        return {"job": name}

    def job(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Return what a job has come to."""
        job = self._jobs.get(str(asked.get("job")))
        if job is None:
            raise UsageError(f"no job {asked.get('job')!r}")
        if not job.done():
            return {"status": "running" if job.running() else "waiting"}
        error = job.exception()
        if error is None:
            return {"status": "done", "answer": job.result()}
        if not isinstance(error, KernbenchError | TypeError):
            raise error
        return {"status": "failed", "error": str(error)}

    def _episode(self, asked: dict[str, Any]) -> Episode:
        name = asked.get("episode_id")
        episode = self._episodes.get(str(name))
        if episode is None:
            raise UsageError(f"no episode {name!r}; /reset begins one and says its episode_id")
        return episode


def build_app(tools: Tools, *, waiting: int) -> Any:
    """Return the whole service as an ASGI application.

    Raises:
        UsageError: The package mcp is not installed.
    """
    server = build_server(tools)
    service = HttpService(tools, waiting=waiting)
    for (method, path), answer in service.routes().items():
        server.custom_route(path, methods=[method])(_endpoint(answer, service))
    return server.streamable_http_app()


def _endpoint(
    answer: Callable[[dict[str, Any]], Any], service: HttpService
) -> Callable[[Any], Awaitable[Any]]:
    import anyio.to_thread
    from starlette.responses import JSONResponse

    async def endpoint(request: Any) -> Any:
        try:
            asked = dict(request.query_params) or await _body(request)
            return JSONResponse(_finite(await anyio.to_thread.run_sync(answer, asked)))
        except BusyError as error:
            return JSONResponse({"error": str(error)}, 503, headers={"Retry-After": "10"})
        except _TooLargeError as error:
            return JSONResponse({"error": str(error)}, 413)
        except KernbenchError as error:
            return JSONResponse({"error": str(error)}, 400)

    return endpoint


class _TooLargeError(KernbenchError):
    """A request of too many bytes."""


async def _body(request: Any) -> dict[str, Any]:
    data = bytearray()
    async for part in request.stream():
        data += part
        if len(data) > _MOST_BODY_BYTES:
            raise _TooLargeError(f"a request of more than {_MOST_BODY_BYTES:,} bytes")
    if not data:
        return {}
    try:
        asked = json.loads(data)
    except (ValueError, RecursionError):
        raise UsageError("the request is no JSON") from None
    if not isinstance(asked, dict):
        raise UsageError(f"a request is an object, but got {type(asked).__name__}")
    return asked


def _text(asked: Mapping[str, Any], key: str) -> str:
    text = asked.get(key)
    if not isinstance(text, str) or not text.strip():
        raise UsageError(f"{key} is a text that is not empty, but got {text!r}")
    return text


def _keep(kept: OrderedDict[str, Any], name: str, what: Any) -> None:
    kept[name] = what
    while len(kept) > _MOST_KEPT:
        kept.popitem(last=False)


def _finite(answer: Any) -> Any:
    """Return the answer with null for numbers that JSON has not."""
    if isinstance(answer, float):
        return answer if math.isfinite(answer) else None
    if isinstance(answer, dict):
        return {key: _finite(value) for key, value in answer.items()}
    if isinstance(answer, list | tuple):
        return [_finite(item) for item in answer]
    return answer


def _schema() -> dict[str, Any]:
    from kernbench.judging import SCHEMA

    return {
        "action": {"candidate": "source text or path"},
        "observation": {"verdict": f"{SCHEMA}, described in docs/judge.md"},
        "reward": "from 0 to 1, an example: right is 0.5, faster than eager is more",
    }
