"""Keep what programs give, and compare it after a change that must change nothing.

    python tools/behaviour.py keep FOLDER      before: run all programs, keep what each gives
    python tools/behaviour.py compare FOLDER   after: run them again, and say what is different

Of each program the op log (column by column), the report as JSON without the wall time, what it
prints on either stream with wall times masked, and its exit status are kept. The programs are every
shipped bench, with data, without and checked; every command of the documents; PyTorch programs of
every part of the bridge; and mistakes, whose errors are what is kept. ``--only NAME`` (several)
takes those whose name has it; ``--list`` names them.
"""

from __future__ import annotations

import argparse
import difflib
import hashlib
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from pyarrow import parquet

ROOT = Path(__file__).resolve().parents[1]
PROGRAMS = ROOT / "tests" / "torch_bridge" / "programs"
FIELD = ROOT / "tests" / "field"
PAGES = (
    "README",
    "docs/errors",
    "docs/first-bench",
    "docs/kernels",
    "docs/machines",
    "docs/numbers",
    "docs/pytorch",
    "docs/reading-a-run",
    "docs/symmetric-memory",
    "docs/tensor-parallel",
)
_BLOCK = re.compile(r"^```(?P<kind>\w+)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE_NAME = re.compile(r"# (?P<name>[\w-]+\.(?:py|yaml))\n")
_WALL = re.compile(r"simulated in [0-9.]+ s|[0-9.]+ s wall")
_STAMP = re.compile(r"W[0-9]{4} [0-9:.]+(?: [0-9]+)?")
"""What PyTorch puts before its own warnings: the day, the time, the process."""
_OURS = re.compile(r"[\w/.-]*kernbench/(?:\w+/)*(\w+\.py)")
_KERNELS = "|".join(path.stem for path in (ROOT / "src" / "kernbench" / "ops").rglob("*.py"))
_OWN_LINE = re.compile(rf"\b({_KERNELS})\.py:[0-9]+")
_ADDRESS = re.compile(r"at 0x[0-9a-f]{6,}")


@dataclass(frozen=True)
class Program:
    """Commands that run one after another in a folder of their own, with files that they need."""

    name: str
    commands: tuple[str, ...]
    files: dict[str, str] = field(default_factory=dict)
    seconds: float = 300.0


def benches() -> Iterator[Program]:
    """Every shipped bench in small, and the ways of running one."""
    recorded = "--log log.parquet --json report.json"
    for name, command in {
        "gemm": "run gemm",
        "gemm-checked": "run gemm --check -p m=256 -p n=256 -p k=256",
        "gemm-no-data": "run gemm --no-data --machine h100-sxm -p m=8192",
        "tp_mlp": "run tp_mlp",
        "tp_mlp-no-data": "run tp_mlp --no-data --ranks 8 --machine a100-sxm-80g",
        "tp_mlp-mesh": "run tp_mlp --machine ahbm-mesh --ranks 4",
        "ccl_allreduce": "run ccl_allreduce -p world_sizes=2,4 -p sizes_kib=4,1024",
        "ccl_selection": "run ccl_selection --machine h100-sxm",
        "oneshot_allreduce": "run oneshot_allreduce -p sizes_kib=1,64",
        "tp_from_scratch": "run tp_from_scratch -p steps=2",
        "tp_from_scratch-checked": "run tp_from_scratch -p steps=1 --check",
    }.items():
        yield Program(f"bench/{name}", (f"kernbench {command} {recorded}",))


def pages() -> Iterator[Program]:
    """Every command of the documents, run in the folder that has the page's files."""
    for page in PAGES:
        files: dict[str, str] = {}
        commands: list[str] = []
        for block in _BLOCK.finditer((ROOT / f"{page}.md").read_text(encoding="utf-8")):
            if named := _FILE_NAME.match(block["body"]):
                files[named["name"]] = block["body"]
            if block["kind"] == "console":
                commands += [line[2:] for line in block["body"].splitlines() if line[:2] == "$ "]
        yield Program(
            f"page/{Path(page).name}",
            tuple(command for command in commands if not command.startswith("make ")),
            files,
        )


def torch_programs() -> Iterator[Program]:
    """PyTorch programs of every part of the bridge."""
    recorded = "--log log.parquet --json report.json"
    for name, ranks, arguments in (
        ("collectives", 4, "cuda"),
        ("context_parallel", 2, "allgather"),
        ("context_parallel", 2, "alltoall"),
        ("mesh_training", 4, "out cuda no"),
        ("sync_batch_norm", 4, ""),
        ("tp_layers", 2, "out"),
        ("triton_llama", 2, "out"),
        ("parallelism", 4, "out"),
    ):
        yield Program(
            f"torch/{name}-{arguments.replace(' ', '-')}".rstrip("-"),
            (
                "mkdir out",
                f"kernbench torchrun --nproc-per-node {ranks} {recorded} "
                f"{PROGRAMS / f'{name}.py'} {arguments}",
            ),
        )

    # Autograd sums gradients of equal age in any order: the log of this one differs by itself.
    yield Program(
        "torch/operations",
        (f"kernbench torchrun --json report.json {PROGRAMS / 'operations.py'} 40",),
    )


def field_programs() -> Iterator[Program]:
    """The programs of ``tests/field`` that run kernbench themselves are not among these."""
    for path in sorted([*FIELD.glob("libraries/[0-9]*.py"), *FIELD.glob("programs/[0-9]*.py")]):
        lines = path.read_text().splitlines()
        if any(line.startswith("# needs:") for line in lines[:10]):
            continue
        commands = [line[len("# run: ") :] for line in lines[:10] if line.startswith("# run: ")]
        yield Program(
            f"field/{path.parent.name}-{path.stem}",
            tuple(
                command.replace(
                    "kernbench torchrun", f"kernbench torchrun --log {number}.parquet"
                ).replace("{file}", str(path))
                for number, command in enumerate(commands)
            ),
        )


def all_programs() -> list[Program]:
    """Return every program."""
    return [*benches(), *pages(), *torch_programs(), *field_programs()]


def run_program(program: Program) -> dict[str, str]:
    """Run a program in an empty folder; return what it gave, by name."""
    texts: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="kernbench-behaviour-") as name:
        folder = Path(name)
        for file, text in program.files.items():
            (folder / file).write_text(text, encoding="utf-8")
        for number, command in enumerate(program.commands):
            printed = run_command(command, program, folder)
            texts[f"{number:02} {masked(command, folder)}"] = masked(printed, folder)
        for path in sorted(folder.rglob("*.parquet")):
            texts[f"file {path.name}"] = log_text(path, folder)
        for path in sorted(folder.rglob("report.json")):
            report = json.loads(path.read_text())
            report.pop("wall_s", None)
            texts[f"file {path.name}"] = masked(json.dumps(report, indent=1), folder)
    return texts


def log_text(path: Path, folder: Path) -> str:
    """Return a hash of each column of an op log; files are compared as text is."""
    table = parquet.read_table(path)
    lines = [f"{table.num_rows} rows"]
    files = [str(item) for item in table.column("file").to_pylist()]
    for name in table.column_names:
        values = table.column(name).to_pylist()
        if name == "line":
            values = [
                "moved" if _OURS.search(file) else line
                for file, line in zip(files, values, strict=True)
            ]
        text = masked("\n".join(map(str, values)), folder)
        lines.append(f"{name} {hashlib.sha256(text.encode()).hexdigest()}")
    return "\n".join(lines)


def run_command(command: str, program: Program, folder: Path) -> str:
    """Run one command of a program; return what it printed, and its status."""
    beside = str(Path(sys.executable).parent)
    environment = os.environ | {
        "PATH": f"{beside}{os.pathsep}{os.environ.get('PATH', '')}",
        "COLUMNS": "100",
        "KERNBENCH_CHECK": "0",
        # A cache of its own: it keeps the path of the program that filled it.
        "TRITON_CACHE_DIR": str(folder / "triton"),
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }
    try:
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=program.seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"did not end within {program.seconds:g} s\n"
    return f"{done.stdout}[status {done.returncode}]\n"


def masked(text: str, folder: Path) -> str:
    """Return a text without what differs from run to run: wall time, folders, host addresses.

    Files of kernbench's own are shown without their folders, and lines of its kernels without their
    numbers, so that they may move.
    """
    text = _OWN_LINE.sub(r"\1.py:N", _OURS.sub(r"kernbench/\1", text))
    text = text.replace(str(folder), "FOLDER").replace(str(ROOT), "ROOT")
    return _ADDRESS.sub("at 0x...", _STAMP.sub("W", _WALL.sub("simulated in N s", text)))


def file_of(folder: Path, program: Program) -> Path:
    """Return where a program's results are kept."""
    return folder / f"{program.name.replace('/', '-')}.json"


def differences(before: dict[str, str], after: dict[str, str]) -> Iterator[str]:
    """Yield what is different, as lines to print."""
    for key in sorted(before.keys() | after.keys()):
        old, new = before.get(key, "(nothing)"), after.get(key, "(nothing)")
        if old != new:
            yield f"  {key}"
            changed = difflib.unified_diff(
                old.splitlines(), new.splitlines(), "before", "after", lineterm="", n=1
            )
            yield from (f"    {line}" for line in list(changed)[:40])


def main() -> int:
    """Keep or compare; return 0 if nothing is different."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("what", choices=("keep", "compare", "list"))
    parser.add_argument("folder", type=Path, nargs="?", help="where results are kept")
    parser.add_argument("--only", nargs="+", default=[""], help="only programs whose name has one")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    programs = [
        program for program in all_programs() if any(name in program.name for name in options.only)
    ]
    if options.what == "list":
        for item in programs:
            print(item.name, *(shlex.quote(command) for command in item.commands))
        return 0
    if options.folder is None:
        parser.error(f"{options.what} needs a folder")
    options.folder.mkdir(parents=True, exist_ok=True)
    different = 0
    with ThreadPoolExecutor(options.jobs) as pool:
        for program, value in zip(programs, pool.map(run_program, programs), strict=True):
            kept = file_of(options.folder, program)
            if options.what == "keep":
                kept.write_text(json.dumps(value, indent=1))
                print(f"kept       {program.name}", flush=True)
                continue
            if not kept.exists():
                print(f"not kept   {program.name}", flush=True)
                different += 1
                continue
            result = list(differences(json.loads(kept.read_text()), value))
            different += bool(result)
            print("\n".join([f"{'DIFFERENT' if result else 'the same'}  {program.name}", *result]))
    if options.what == "compare":
        print(f"{len(programs) - different} of {len(programs)} programs are the same")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
