from __future__ import annotations

import json
import shlex
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest

from kernbench.cli.app import app
from kernbench.cli.plans.scripts import kinds_of, splits
from kernbench.cli.sweeps.points import ProgramOption, options_of
from kernbench.plans import AllowedSizes

ALL = AllowedSizes({}, None)
PROGRAM = """
import argparse, os
import torch
import torch.distributed as dist

parser = argparse.ArgumentParser()
parser.add_argument("--tp-size", type=int, default=1)
parser.add_argument("--width", type=int, default=256)
asked = parser.parse_args()
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
if asked.tp_size == 4:
    raise SystemExit("heads do not split over 4 ranks")
layer = torch.nn.Linear(asked.width, asked.width // asked.tp_size, device="cuda")
optimizer = torch.optim.SGD(layer.parameters())
for _ in range(3):
    layer(torch.ones(1024, asked.width, device="cuda")).sum().backward()
    optimizer.step()
"""


@pytest.mark.adr("0271-D1")
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *((name, "tp") for name in ("tp", "tp_size", "tp_degree", "tensor_parallel")),
        *((name, "tp") for name in ("tensor_model_parallel_size", "tensor_parallel_degree")),
        *((name, "pp") for name in ("pp", "pipeline_model_parallel_size", "pipeline_parallel")),
        *((name, "cp") for name in ("cp", "context_parallel_size", "cp_degree")),
        *((name, "dp") for name in ("dp", "dp_shard", "dp_replicate", "data_parallel_size")),
        *((name, "dp") for name in ("data_parallel_shard_degree", "fsdp", "fsdp_size")),
        *((name, "ep") for name in ("ep", "ep_size", "expert_model_parallel_size")),
        *((name, None) for name in ("dropout", "tpot", "epochs", "steps", "model", "data", "size")),
        *((name, None) for name in ("data_path", "model_size", "pipeline", "tensor", "depth")),
    ],
)
def test_sizes_are_known_by_the_words_of_the_field(name: str, kind: str | None) -> None:
    assert kinds_of({name: ProgramOption(spelled=f"--{name}")}).get(name) == kind


@pytest.mark.adr("0271-D1")
def test_a_flag_takes_no_size() -> None:
    assert not kinds_of({"fsdp": ProgramOption(spelled="--fsdp", action="store_true")})


@pytest.mark.adr("0271-D1")
@pytest.mark.parametrize("devices", [1, 8, 12])
def test_splits_divide_the_devices(devices: int) -> None:
    node = 4
    sizes = range(1, devices + 1)
    kinds = {"tp": "tp", "pipeline": "pp"}
    expected = [
        (tp, pp) for tp, pp in product(sizes, sizes) if devices % (tp * pp) == 0 and tp <= node
    ]
    split = list(splits(kinds, devices, node, ALL))
    assert [(int(item["tp"]), int(item["pipeline"])) for item in split] == expected
    # With replicas that are counted, all devices are used; experts are divided among replicas.
    kinds |= {"dp": "dp", "ep": "ep"}
    counted = [
        (tp, pp, dp, ep)
        for tp, pp, dp, ep in product(sizes, sizes, sizes, sizes)
        if tp * pp * dp == devices and dp % ep == 0 and tp <= node
    ]
    split = list(splits(kinds, devices, node, ALL))
    assert [tuple(map(int, item.values())) for item in split] == counted


@pytest.mark.adr("0271-D1")
def test_sizes_that_are_allowed_are_the_only_ones() -> None:
    allowed = AllowedSizes({"tp": (2, 3)}, None)
    assert list(splits({"t": "tp", "d": "dp"}, 8, 8, allowed)) == [{"t": "2", "d": "4"}]


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "train.py"
    path.write_text(PROGRAM)
    return path


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["train.py", "--model", "gpt2"], "--model is for a plan of a model"),
        (["train.py", "--batch", "8"], "options of the program come behind --"),
        (["--model", "gpt2", "--grid", "width=8"], "--grid is for a plan of a program of yours"),
        ([], "name what is planned: --model NAME, or a PyTorch program"),
        (["other.py"], "no option that says how it is split over devices, such as --tp"),
        (["script.py"], "is a script without PyTorch: only a PyTorch program is planned"),
        (["trane.py"], "no bench trane.py: did you mean train.py"),
        (["train.py", "--tp", "3"], "no sizes of --tp-size divide 8 devices"),
    ],
)
def test_what_cannot_be_planned_is_refused(
    program: Path, words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    program.with_name("other.py").write_text(PROGRAM.replace("--tp-size", "--depth"))
    program.with_name("script.py").write_text("print(1)\n")
    with pytest.raises(SystemExit) as status:
        app(["plan", *words, "--machine", "h100-sxm", "--devices", "8"])
    assert status.value.code == 2
    assert said in capsys.readouterr().err


@pytest.mark.adr("0271-D2")
def test_all_splits_are_run(program: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["plan", "train.py", "--machine", "h100-sxm", "--devices", "2", "--json", "plan.json"]
    with pytest.raises(SystemExit) as status:
        app([*words, "--", "--width", "64"])
    assert not status.value.code, capsys.readouterr().err
    rows = json.loads(Path("plan.json").read_text())["rows"]
    assert {row["tp_size"] for row in rows} == {"1", "2"}


@pytest.mark.adr("0271-D2")
@pytest.mark.campaign
def test_the_best_is_the_run_that_its_command_makes(
    program: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert set(options_of(program)) == {"tp_size", "width"}
    words = ["plan", "train.py", "--machine", "h100-sxm", "--devices", "4", "--json", "plan.json"]
    with pytest.raises(SystemExit) as status:
        app([*words, "--", "--width", "512"])
    printed = capsys.readouterr().out
    assert not status.value.code
    assert "1 split failed; tp_size=4" in printed
    data = json.loads(Path("plan.json").read_text())
    done = [item for item in data["rows"] if item["status"] == "done"]
    assert [item["tp_size"] for item in done] == sorted(
        (item["tp_size"] for item in done),
        key=lambda size: next(item["step_ns"] for item in done if item["tp_size"] == size),
    )
    command = shlex.split(data["command"])[1:]
    subprocess.run(
        [sys.executable, "-m", "kernbench", command[0], "--json", "run.json", *command[1:]],
        check=True, capture_output=True, timeout=300,
    )  # fmt: skip
    steps = json.loads(Path("run.json").read_text())["steps"]
    assert steps["steps"][steps["steady"]]["time_ns"] == done[0]["step_ns"]
