"""The README and the guides are true: their files are written, their commands run and compared.

A fenced block whose first line is ``# name.py`` or ``# name.yaml`` is that file; the ``$`` lines
of a ``console`` block run in the folder that has the files, in order. Wall-clock times differ from
run to run and are compared as ``N s``. After a change of a modeled number,
``KERNBENCH_UPDATE_DOCS=1 pytest tests/docs`` writes the new output; read the difference.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest
from typer.testing import CliRunner

from kernbench.cli.app import app
from kernbench.cli.console.streams import readers_may_leave
from tests.forked import PYTORCH, run_forked
from tests.tiers import daily

ROOT = Path(__file__).resolve().parents[2]
GENERATED = (
    "conformance.md",
    "conformance-compiled.md",
    "conformance-distributed.md",
    "conformance-gluon.md",
    "conformance-inductor.md",
    "machine-reference.md",
    "validation.md",
)
"""Not written by hand: by campaigns (``make conformance``, ``make validate``), or from the code."""
OF_THE_CODE = ("architecture.md", "glossary.md", "index.md")
"""For who changes kernbench, and nothing to run."""
NEEDS_TORCH = (
    "host.md",
    "judge.md",
    "memory.md",
    "noise.md",
    "pytorch.md",
    "pytorch-ranks.md",
    "pytorch-support.md",
    "serving.md",
    "why.md",
)
COUNTED = ("host.md", "why.md")
"""Their programs' own Python is counted, and what other tests have imported adds to it."""
CAMPAIGNS = (
    "host.md",
    "judge.md",
    "noise.md",
    "page.md",
    "plan.md",
    "pytorch.md",
    "pytorch-ranks.md",
    "sweeps.md",
    "symmetric-memory.md",
    "testing.md",
    "what-does-it-cost.md",
    "which-split.md",
    "why.md",
)
"""They plan, judge, compile or run many ranks, for seconds: the tests of each have smaller ones."""
PAGES = [
    ROOT / "README.md",
    *sorted(
        set((ROOT / "docs").glob("*.md"))
        - {ROOT / "docs" / name for name in (*GENERATED, *OF_THE_CODE)}
    ),
    *sorted((ROOT / "docs" / "questions").glob("*.md")),
]

BLOCK = re.compile(r"^```(?P<kind>\w+)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
FILE_NAME = re.compile(r"# (?P<name>[\w-]+\.(?:py|yaml))\n")
PLAIN = re.compile(
    r"kernbench (?P<kernbench>[^|;>&$]+?)( \| (?P<end>(grep|head|sed|tail) ('[^']*'|[^|;>&$'])+))?"
)
WALL_TIME = re.compile(r"simulated in [0-9.]+ s")
QUIETLY = {"COLUMNS": "80", "KERNBENCH_CHECK": "0"}
"""As a user has it, who does not run under pytest."""
# What `make demo` runs, once it has installed.
MAKE_DEMO = "kernbench run tp_mlp --trace out/tp_mlp.trace.json"


@pytest.mark.slow
@pytest.mark.parametrize(
    "page",
    daily(*(page for page in PAGES if page.name not in CAMPAIGNS), of=PAGES),
    ids=lambda page: page.name,
)
def test_commands_print_what_the_page_shows(page: Path, tmp_path: Path) -> None:
    if page.name in NEEDS_TORCH:
        pytest.importorskip("torch")
    text = page.read_text(encoding="utf-8")
    shown: list[str] = []

    def replace(block: re.Match[str]) -> str:
        body = block["body"]
        named = FILE_NAME.match(body)
        if named is not None:
            (tmp_path / named["name"]).write_text(body, encoding="utf-8")
        if block["kind"] != "console":
            return block[0]
        shown.append(body)
        printed = f"```console\n{output_of(body, tmp_path, page.name in COUNTED)}```"
        is_same = without_wall_times(printed) == without_wall_times(block[0])
        return block[0] if is_same else printed

    actual = BLOCK.sub(replace, text)
    if os.environ.get("KERNBENCH_UPDATE_DOCS"):
        page.write_text(actual, encoding="utf-8")
        return
    assert shown, "a page without a command belongs elsewhere"
    assert actual == text


def output_of(body: str, folder: Path, is_alone: bool) -> str:
    """Return what a block prints now, 80 columns wide; alone is in processes of its own."""
    lines: list[str] = []
    for command in (line[2:] for line in body.splitlines() if line.startswith("$ ")):
        done = MAKE_DEMO if command.partition("#")[0].strip() == "make demo" else command
        plain = PLAIN.fullmatch(done)
        if plain is None:
            printed = run_shell(done, folder)
        elif is_alone:
            printed = run_alone(plain["kernbench"], shlex.split(plain["end"] or "cat"), folder)
        elif plain["end"]:
            printed = run_piped(plain["kernbench"], shlex.split(plain["end"]), folder)
        else:
            printed = run_here(plain["kernbench"], folder)
        shown = [line.rstrip() for line in printed.splitlines()]
        if shown and not shown[0]:
            del shown[0]
        lines += [f"$ {command}", *shown]
    return "\n".join([*lines, ""])


@contextlib.contextmanager
def inside(folder: Path) -> Iterator[None]:
    path = list(sys.path)
    with contextlib.chdir(folder):
        yield
    sys.path[:] = path


def run_here(arguments: str, folder: Path) -> str:
    """Return what kernbench prints, without the second that a new process costs."""
    with inside(folder):
        result = CliRunner().invoke(app, shlex.split(arguments), env=QUIETLY)
    return result.output


def run_piped(arguments: str, end: list[str], folder: Path) -> str:
    """Return what went to stderr, then what the other end of a pipe prints, which gets all last."""
    err = io.StringIO()
    with (
        inside(folder),
        mock.patch.dict(os.environ, QUIETLY),
        mock.patch.multiple(sys, stderr=err, __stderr__=None),
        subprocess.Popen(end, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        # As a new process has it: text that is kept until there is enough of it.
        with io.TextIOWrapper(process.stdin, encoding="utf-8") as out:
            with (
                mock.patch.multiple(sys, stdout=out, __stdout__=out),
                readers_may_leave(),
                pytest.raises(SystemExit) as status,
            ):
                app(shlex.split(arguments))
            assert not status.value.code, err.getvalue()
        return err.getvalue() + process.stdout.read().decode()


def run_alone(arguments: str, end: list[str], folder: Path) -> str:
    """Return what the other end of a pipe prints where no other program has run before."""
    command = ["kernbench", *shlex.split(arguments)]
    done = run_forked(*command, imports=PYTORCH, cwd=folder, env=os.environ | QUIETLY)
    assert not done.returncode, done.stderr
    shown = subprocess.run(end, input=done.stdout, stdout=subprocess.PIPE, text=True, check=True)
    return done.stderr + shown.stdout


def run_shell(command: str, folder: Path) -> str:
    """Return what a command prints, errors included."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env=os.environ | QUIETLY | {"PATH": path, "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=100,
        check=False,
    )
    return done.stdout


def without_wall_times(text: str) -> str:
    return WALL_TIME.sub("simulated in N s", text)
