"""Running an engine under load, and showing what came of its requests (ADR-0269)."""

from __future__ import annotations

import contextlib
import csv
import gc
import io
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

from kernbench.cli.programs.folded import check_folding
from kernbench.cli.programs.reporting import (
    DONE,
    STDOUT,
    context_of,
    guarded,
    make_room,
    report_console,
    run_and_report,
)
from kernbench.cli.programs.scripts import compile_program
from kernbench.cli.programs.torch_programs import import_bridge
from kernbench.errors import UsageError
from kernbench.outputs import Outputs

if TYPE_CHECKING:
    from rich.console import Console

    from kernbench.cli.commands.serve_bench import ServeOptions
    from kernbench.runtime_api import RuntimeContext

_MILLION = 1_000_000
_SECONDS_PER_HOUR = 3600


def arguments_of(options: ServeOptions) -> list[str]:
    """Return the arguments of the program that serves."""
    from kernbench.serving import DEFAULTS

    arguments = [options.program]
    for name in DEFAULTS:
        value, spelled = getattr(options, name), f"--{name.replace('_', '-')}"
        if value is True:
            arguments.append(spelled)
        elif isinstance(value, list):
            arguments += [f"{spelled}={item}" for item in value]
        elif value:
            arguments.append(f"{spelled}={value}")
    return arguments


def serve_bench(options: ServeOptions) -> int:
    """Serve, print what came of it, and return the exit status."""

    def start() -> int:
        from kernbench.runtime_api import Folding
        from kernbench.serving import PROGRAM, check_fits, parse_settings
        from kernbench.torch_bridge import check_torch

        arguments = arguments_of(options)
        of_engine = parse_settings(arguments).of_engine
        machine, changes = options.load_machine(str(options.machine), None)
        if of_engine.tp > machine.num_sips:
            raise UsageError(
                f"--tp {of_engine.tp}: {machine.name} has {machine.num_sips} devices; "
                f"{machine.name}:{of_engine.tp} asks for as many"
            )
        if of_engine.tp > 1:
            machine, changes = options.load_machine(str(options.machine), of_engine.tp)
        if options.fold:
            check_folding(options.data, of_engine.tp, machine, "--tp N")
        device_bytes = machine.sip_at(0).hbm_bytes
        check_fits(of_engine.model, of_engine.quantization, of_engine.tp, device_bytes)
        check_torch()
        to_file = None if options.json == STDOUT else options.json
        files = Outputs({"--json": to_file, "--csv": options.csv})
        run = replace(options, json=None, trace=None)
        with files, make_room(run, options.machine, [PROGRAM]) as outputs:
            import_bridge()
            code = compile_program(PROGRAM, "serve-bench")
            context = context_of(options, machine, changes)()
            if options.fold:
                Folding(of_engine.tp).begin(context.run)

            def work() -> int:
                from kernbench.torch_bridge import run_torchrun

                run_torchrun(context, PROGRAM, code, [str(PROGRAM), *arguments], of_engine.tp)
                ask = context.run.parts["serving"]
                context.run.parts["serving"] = cache(lambda: _priced(ask(), context))
                return DONE

            shown = sys.stderr if options.json == STDOUT else sys.stdout
            with contextlib.redirect_stdout(shown):
                status = run_and_report(context, run, outputs, work)
                if status == DONE:
                    serving = context.run.parts["serving"]()
                    print_serving(serving, report_console())
            if status == DONE:
                _write(serving, files, options)
        return status

    try:
        return guarded(start, options.debug, usage=True)
    finally:
        gc.unfreeze()


def _priced(serving: dict[str, Any], context: RuntimeContext) -> dict[str, Any]:
    """Add to each load what the devices took for it: joules, and money where it is known."""
    from kernbench.analysis import part_of
    from kernbench.op_log import energy_of

    price = context.machine.spec.usd_per_device_hour
    for load in serving["loads"]:
        result, devices = load["figures"], serving["devices"]
        built = result["output_tokens"]
        window = part_of(context.op_log, load["range"]).window
        energy = energy_of(context.op_log, context.machine, context.world_size, within=window)
        if energy is not None:
            result["energy_j"] = round(energy["energy_j"], 9)
            joules = energy["energy_j"] / built * _MILLION
            result["joules_per_million_output_tokens"] = round(joules, 3)
        if price is not None:
            usd = float(price) * devices * result["time_s"] / _SECONDS_PER_HOUR
            result[_USD] = round(usd / built * _MILLION, 6)
    return {"machine": context.machine.name, **serving}


def _write(serving: dict[str, Any], files: Outputs, options: ServeOptions) -> None:
    text = f"{json.dumps(serving, indent=1)}\n"
    if options.json == STDOUT:
        print(text, end="")
    elif "--json" in files:
        with files.writing("--json") as file:
            file.write(text.encode())
    if "--csv" in files:
        with files.writing("--csv") as file:
            file.write(_table(serving).encode())
    files.publish()


def _table(serving: dict[str, Any]) -> str:
    out = io.StringIO()
    rows = [{"load": load["load"], **row} for load in serving["loads"] for row in load["requests"]]
    table = csv.DictWriter(out, list(rows[0]), lineterminator="\n")
    table.writeheader()
    table.writerows(rows)
    return out.getvalue()


def print_serving(serving: dict[str, Any], console: Console) -> None:
    """Print a line for each load, and what its requests waited for."""
    from rich.text import Text

    from kernbench.analysis import TableColumn, fitting_table

    devices = f"{serving['devices']} device{'s' if serving['devices'] > 1 else ''}"
    title = f"\n{serving['engine']}, {serving['model']} on {devices} of {serving['machine']}:"
    console.print(Text(title))
    loads = serving["loads"]
    present = {
        name for load in loads for name, value in load["figures"].items() if value is not None
    }
    for columns in (_WAITS, _RATES):
        known = [(title, cell) for title, name, cell in columns if name in present]
        titles = [TableColumn("load", is_number=False), *(TableColumn(title) for title, _ in known)]
        rows = [[load["load"], *(cell(load["figures"]) for _, cell in known)] for load in loads]
        console.print("", fitting_table(console, titles, rows), sep="\n")
    result = serving.get("rate_found")
    if result is not None:
        bounds = "" if result["above"] is None else f"; at {result['above']:.4g} they do not"
        console.print(Text(f"\nrequests keep to the SLO at {result['rate']:.4g} a second{bounds}"))


def _time(name: str, which: str) -> Callable[[dict[str, Any]], str]:
    """Return what shows a percentile of a measure."""

    def show(figures: dict[str, Any]) -> str:
        from kernbench.report import format_ns

        return format_ns(figures[name][which] * 1e9) if figures[name] else "-"

    return show


def _number(name: str, form: str) -> Callable[[dict[str, Any]], str]:
    """Return what shows a number."""
    return lambda figures: format(figures[name], form)


_Column = tuple[str, str, Callable[[dict[str, Any]], str]]
_WAITS: tuple[_Column, ...] = (
    ("TTFT p50", "ttft_s", _time("ttft_s", "p50")),
    ("p99", "ttft_s", _time("ttft_s", "p99")),
    ("in queue", "queue_s", _time("queue_s", "p50")),
    ("TPOT p50", "tpot_s", _time("tpot_s", "p50")),
    ("p99", "tpot_s", _time("tpot_s", "p99")),
    ("E2E p50", "e2e_s", _time("e2e_s", "p50")),
)
_USD = "usd_per_million_output_tokens"
_RATES: tuple[_Column, ...] = (
    ("req/s", "requests_per_s", _number("requests_per_s", ".4g")),
    ("good/s", "goodput_per_s", _number("goodput_per_s", ".4g")),
    ("tok/s/dev", "steps", _number("output_tokens_per_s_per_device", ",.1f")),
    ("KV", "kv_share_peak", _number("kv_share_peak", ".0%")),
    ("J/Mtok", "energy_j", _number("joules_per_million_output_tokens", ",.0f")),
    ("$/Mtok", _USD, _number(_USD, ".4g")),
)
"""Columns: a title, the figure without which there is none, and what shows it."""
