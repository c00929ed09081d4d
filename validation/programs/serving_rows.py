"""Answers published rows of serving by the engines themselves, and says how far off they are.

    python -m validation.programs.serving_rows ROWS.csv --device H200-SXM-141GB --tp 1 --most 4

Rows are of closed loops: a device, an engine, a model, tokens in and out, requests in flight, time
to the first token and of a further one. Each is served twice by ``kernbench serve-bench`` on the
machine that lists the device. The first tokens are those of a loop whose clients get out of step,
as the measured one's do; the time of a token is that of a step that only decodes, at the length
that the cache has in the middle of the row's output, and the share of the others' prefills that
falls to it.
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from kernbench.accuracy.rows import Machines
from kernbench.errors import UnknownNameError

MODELS = {
    "meta-llama/Llama-3.1-8B": "llama-3-8b",
    "meta-llama/Llama-3.1-70B": "llama-3-70b",
    "Qwen/Qwen3-32B": "qwen3-32b",
    "Qwen/Qwen3-235B-A22B": "qwen3-235b-a22b",
}
"""Published names, and models of the same sizes."""
QUANTIZATIONS = {"fp8": "fp8", "bf16": ""}
_MEASURES = ("ttft", "tpot")
SHORTEST = 0.8
"""The shortest prompt and answer of a row, as a share of the longest, which name it."""
ROUNDS = 10
"""Requests of each client, of which the first begin together.

Source of both: InferenceMAX, whose rows these are, README.md, "Benchmark Client Configuration":
``--random-range-ratio 0.8 --num-prompts $((CONC * 10)) --max-concurrency $CONC``. Its servers have
``--max-num-batched-tokens 8192 --max-num-seqs $CONC --no-enable-prefix-caching``.
"""
_OF_SERVER = {"max_num_batched_tokens": 8192, "enable_prefix_caching": False}
_MEAN = (1 + SHORTEST) / 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingRow:
    """A published row, times in seconds."""

    id: str
    device: str
    engine: str
    model: str
    precision: str
    tp: int
    input_tokens: int
    output_tokens: int
    concurrency: int
    ttft_s: float
    tpot_s: float


def read(path: Path) -> list[ServingRow]:
    """Return the rows of a table that one engine served on one device or split by tensors alone."""
    with path.open(encoding="utf-8", newline="") as file:
        return [_row(row) for row in csv.DictReader(file) if _is_plain(row)]


def _is_plain(row: Mapping[str, str]) -> bool:
    alone = all(int(row[name] or 1) == 1 for name in ("pp", "attention_dp", "moe_ep"))
    return alone and row["mode"] == "aggregated" and bool(row["ttft_s"] and row["tpot_s"])


def _row(row: Mapping[str, str]) -> ServingRow:
    return ServingRow(
        id=row["id"],
        device=row["device"],
        engine=row["framework"],
        model=row["model"],
        precision=row["precision"],
        tp=int(row["tp"] or 1),
        input_tokens=int(row["isl"]),
        output_tokens=int(row["osl"]),
        concurrency=int(row["concurrency_or_batch"]),
        ttft_s=float(row["ttft_s"]),
        tpot_s=float(row["tpot_s"]),
    )


def command(row: ServingRow, machine: str, output_tokens: int, *, decodes: bool) -> list[str]:
    """Return the arguments of ``kernbench`` that serve a row, ``output_tokens`` of each request.

    Either requests that begin together and decode in the middle of the row's output, or three of
    each client as the row's are, whose answers have very different lengths: few begin together.
    """
    sizes = sorted({1, 2, 4, 8, 16, 32, row.concurrency})
    graphs = {
        "mode": 0,
        "cudagraph_mode": "FULL_DECODE_ONLY",
        "cudagraph_capture_sizes": [size for size in sizes if size <= row.concurrency],
    }
    middle = round(_MEAN * (row.input_tokens + row.output_tokens / 2))
    shortest = round(SHORTEST * row.input_tokens)
    prompts = f"{middle - output_tokens // 2}" if decodes else f"{shortest}:{row.input_tokens}"
    named: dict[str, object] = {
        "--model": MODELS[row.model],
        "--machine": machine,
        "--tp": row.tp,
        "--quantization": QUANTIZATIONS[row.precision],
        "--concurrency": row.concurrency,
        "--input": prompts,
        "--output": output_tokens if decodes else f"2:{2 * output_tokens}",
        "--requests": row.concurrency if decodes else 3 * row.concurrency,
        "--max-model-len": max(middle, row.input_tokens) + 2 * output_tokens + 64,
        "--json": "-",
    }
    of_engine = {**_OF_SERVER, "max_num_seqs": row.concurrency, "compilation_config": graphs}
    return [
        "serve-bench",
        row.engine,
        *(f"{name}={value}" for name, value in named.items() if value != ""),
        *(f"--engine-arg={name}={json.dumps(value)}" for name, value in of_engine.items()),
    ]


def estimates(
    row: ServingRow, first: Mapping[str, Any], decoded: Mapping[str, Any]
) -> dict[str, float]:
    """Return what two loads say of a row: seconds to the first token, and of a further one."""
    requests = first["requests"]
    waits = [request["ttft_s"] for request in requests]
    together, later = waits[: row.concurrency], waits[row.concurrency :]
    # Of a step, its own decoding: what is more is prefill of requests that come meanwhile.
    own_s = first["figures"]["itl_s"]["p50"]
    more_s = sum(max(0.0, step["end_s"] - step["begin_s"] - own_s) for step in first["steps"])
    others_s = (row.concurrency - 1) * more_s / len(requests)
    return {
        "ttft": (fmean(together) + (ROUNDS - 1) * fmean(later)) / ROUNDS,
        "tpot": decoded["figures"]["itl_s"]["p50"] + others_s / (_MEAN * row.output_tokens),
    }


def answers(
    rows: Sequence[ServingRow], output_tokens: int, timeout_s: float
) -> Iterator[tuple[ServingRow, dict[str, float] | str]]:
    """Yield each row with its estimates, or why there are none."""
    machines = Machines()
    for row in rows:
        loads: list[Mapping[str, Any]] = []
        try:
            machine = machines.machine_of(row.device, row.tp).name
            for decodes in (False, True):
                words = command(row, machine, output_tokens, decodes=decodes)
                loads.append(_served(words, timeout_s))
        except (KeyError, UnknownNameError) as error:
            yield row, f"unknown: {error}"
        except subprocess.TimeoutExpired:
            yield row, f"takes longer than {timeout_s:g} s"
        except subprocess.CalledProcessError as error:
            lines = [line for line in error.stderr.splitlines() if line.startswith("error")]
            yield row, lines[-1] if lines else f"status {error.returncode}"
        else:
            yield row, estimates(row, *loads)


def _served(words: Sequence[str], timeout_s: float) -> Mapping[str, Any]:
    """Return the load that a command of ``kernbench`` serves."""
    done = subprocess.run(
        [sys.executable, "-m", "kernbench", *words],
        capture_output=True,
        text=True,
        check=True,
        timeout=timeout_s,
    )
    load: Mapping[str, Any] = json.loads(done.stdout)["loads"][0]
    return load


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a line for each row, and the mean error by engine, device and model."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path)
    for name in ("engine", "device", "model", "precision"):
        parser.add_argument(f"--{name}")
    for name in ("tp", "concurrency", "input-tokens"):
        parser.add_argument(f"--{name}", type=int)
    parser.add_argument("--most", type=int, default=4, help="rows, the first ones")
    parser.add_argument("--output-tokens", type=int, default=16)
    parser.add_argument("--timeout", type=float, default=1800)
    asked = parser.parse_args(arguments)
    names = ("engine", "device", "model", "precision", "tp", "concurrency", "input_tokens")
    wanted = {name: getattr(asked, name) for name in names if getattr(asked, name) is not None}
    rows = [
        row
        for row in read(asked.file)
        if all(getattr(row, name) == value for name, value in wanted.items())
    ]
    errors: dict[tuple[str, ...], list[float]] = defaultdict(list)
    for row, result in answers(rows[: asked.most], asked.output_tokens, asked.timeout):
        if isinstance(result, str):
            print(f"{row.id}: {result}")
            continue
        parts = []
        for name in _MEASURES:
            measured = getattr(row, f"{name}_s")
            error = result[name] / measured - 1
            errors[(row.engine, row.device, row.model, name)].append(error)
            parts.append(
                f"{name} {1e3 * result[name]:.2f} ms, measured {1e3 * measured:.2f}, {error:+.1%}"
            )
        print(f"{row.id}: {'; '.join(parts)}", flush=True)
    for key, values in errors.items():
        mean, worst = sum(map(abs, values)) / len(values), max(map(abs, values))
        print(f"{' '.join(key)}: MAPE {mean:.1%}, worst {worst:.1%}, {len(values)} rows")
    return 0


if __name__ == "__main__":
    sys.exit(main())
