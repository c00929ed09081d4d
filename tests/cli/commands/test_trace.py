"""``kernbench trace``: which format a name or an option asks for, and what is refused."""

from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path

import pytest

from kernbench.saved import load_run
from tests.cli.command_line import kernbench

BENCH = """
def run(torch):
    a = torch.randn(64, 64)
    (a @ a).numpy()
"""
NOTHING = """
def run(torch):
    pass
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    mktemp = tmp_path_factory.mktemp("trace")
    for name, text in (("bench", BENCH), ("nothing", NOTHING)):
        (mktemp / f"{name}.py").write_text(text)
        done = kernbench("run", mktemp / f"{name}.py", "--save", mktemp / f"{name}.run")
        assert done.exit_code == 0, done.output
    return mktemp


def test_names_and_options_ask_for_formats(folder: Path) -> None:
    run = folder / "bench.run"
    names = ("t.json", "t.json.gz", "t.pftrace", "t.pftrace.gz")
    heads = (b'{"displayTimeUnit"', b"\x1f\x8b", b"\x0a", b"\x1f\x8b")
    for name, head in zip(names, heads, strict=True):
        assert kernbench("trace", run, folder / name).exit_code == 0
        assert (folder / name).read_bytes().startswith(head)
    done = kernbench("trace", run, folder / "profiles", "--kineto")
    assert (done.exit_code, done.stderr) == (0, f"{folder}/profiles: rank0.pt.trace.json.gz\n")
    (written,) = (folder / "profiles").iterdir()
    names_of_events = {
        e["name"] for e in json.loads(gzip.decompress(written.read_bytes()))["traceEvents"]
    }
    assert {"matmul", "cudaLaunchKernel", "Memcpy DtoH (Device -> Pageable)"} <= names_of_events
    assert kernbench("trace", run, folder / "sums", "--csv").exit_code == 0
    kernels, copies, calls, ranges = (
        list(csv.DictReader((folder / "sums" / f"{name}.csv").read_text().splitlines()))
        for name in ("cuda_gpu_kern_sum", "cuda_gpu_mem_time_sum", "cuda_api_sum", "nvtx_sum")
    )
    log = load_run(run).log
    (product,) = (instance for instance in log.instances if instance.template.name == "matmul")
    (row,) = (kernel for kernel in kernels if kernel["Name"] == "matmul")
    assert row["Instances"] == "1"
    assert int(row["Total Time (ns)"]) == round((product.ends_ps[0] - product.starts_ps[0]) / 1000)
    assert sum(float(kernel["Time (%)"]) for kernel in kernels) == pytest.approx(100, abs=0.3)
    assert "copy_to_host" in {item["Operation"] for item in copies}
    assert "cudaLaunchKernel" in {item["Name"] for item in calls}
    assert not ranges
    both = kernbench("trace", run, folder / "sums", "--csv", "--kineto")
    assert (both.exit_code, "--kineto and --csv are two formats" in both.output) == (2, True)
    assert kernbench("trace", run, folder / "graphs", "--chakra").exit_code == 0
    assert {path.name for path in (folder / "graphs").iterdir()} == {"run.0.et", "comm_groups.json"}


@pytest.mark.parametrize(
    ("run", "file", "option", "said"),
    [
        ("bench.run", "", "", "is a folder; name a file in it"),
        ("bench.run", "bench.py", "--kineto", "is a file; name a folder"),
        ("bench.run", "bench.run", "--chakra", "is a file; name a folder"),
        ("nothing.run", "none", "--kineto", "has launched nothing"),
        ("nothing.run", "none", "--chakra", "has launched nothing"),
        ("bench.py", "none", "--kineto", "is no run saved with --save"),
        ("absent.run", "none", "--chakra", "No such file"),
    ],
)
def test_what_cannot_be_written_is_refused_and_leaves_nothing(
    run: str, file: str, option: str, said: str, folder: Path
) -> None:
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    done = kernbench("trace", folder / run, folder / file, *([option] if option else []))
    assert done.exit_code != 0
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert not (folder / "none").exists()
    assert before == {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def test_two_formats_are_two_folders(folder: Path) -> None:
    done = kernbench("trace", folder / "bench.run", folder / "both", "--kineto", "--chakra")
    assert done.exit_code == 2
    assert "two formats; write them to two folders" in done.stderr
    assert not (folder / "both").exists()
