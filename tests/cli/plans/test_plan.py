from __future__ import annotations

import ast
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kernbench.cli.app import app
from kernbench.cli.plans import running
from kernbench.cli.plans.running import LayoutPrograms, Proposals
from kernbench.hardware import load_machine
from kernbench.plans.layouts import PROGRAM, Job, Layout, config_of, memory
from kernbench.plans.models import KNOWN, model_of
from kernbench.plans.passes import Microbatch, Model, Steps
from kernbench.plans.times import HOST, PlanTimes, TimedLayout
from tests.forked import PYTORCH, run_forked

Plan = Callable[..., tuple[int, str, str]]

SMALL = {
    "hidden_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "intermediate_size": 1024,
    "vocab_size": 4096,
}
"""A config.json of a model whose layers take little time to run."""


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> Plan:
    monkeypatch.chdir(tmp_path)
    Path("small.json").write_text(json.dumps(SMALL))

    def call(*arguments: str, run: int = 0) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as status:
            app(["plan", *arguments, "--run", str(run)])
        out, err = capsys.readouterr()
        return int(status.value.code or 0), out, err

    return call


def small(**more: Any) -> Any:
    Path("small.json").write_text(json.dumps({**SMALL, **more}))
    return model_of("small.json")


# Billions of parameters, in all and of a token. Sources: the papers and cards of the models.
PUBLISHED = {
    "gpt2": (0.124, 0.124),
    "gpt2-xl": (1.56, 1.56),
    "gpt3-6.7b": (6.7, 6.7),
    "gpt3-175b": (175, 175),
    "llama-3-8b": (8.03, 7.5),
    "llama-3-70b": (70.6, 69.5),
    "llama-3-405b": (405.9, 403.8),
    "mixtral-8x7b": (46.7, 12.9),
    "mixtral-8x22b": (141, 39),
    "deepseek-v3": (671, 37),
    "kimi-k2": (1040, 32),
    "qwen3-8b": (8.2, 7.6),
    "qwen3-32b": (32.8, 32.0),
    "qwen3-30b-a3b": (30.5, 3.3),
    "qwen3-235b-a22b": (235, 22),
}


@pytest.mark.parametrize("name", KNOWN)
def test_known_models_have_as_many_weights_as_published(name: str) -> None:
    total, active = PUBLISHED[name]
    assert KNOWN[name].parameters / 1e9 == pytest.approx(total, rel=0.05)
    # What a token meets is counted with and without the embedding.
    assert KNOWN[name].active_parameters / 1e9 == pytest.approx(active, rel=0.1)


def test_a_config_of_hugging_face_describes_the_same_model(tmp_path: Path) -> None:
    configs: dict[str, dict[str, Any]] = {
        "llama-3-8b": {
            "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
            "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256,
        },
        "gpt2": {"n_embd": 768, "n_layer": 12, "n_head": 12, "vocab_size": 50257},
        "qwen3-30b-a3b": {
            "hidden_size": 2048, "num_hidden_layers": 48, "num_attention_heads": 32,
            "num_key_value_heads": 4, "head_dim": 128, "intermediate_size": 6144,
            "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768,
            "vocab_size": 151936,
        },
        "deepseek-v3": {
            "hidden_size": 7168, "num_hidden_layers": 61, "num_attention_heads": 128,
            "num_key_value_heads": 128, "intermediate_size": 18432, "vocab_size": 129280,
            "n_routed_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 8,
            "moe_intermediate_size": 2048, "kv_lora_rank": 512, "q_lora_rank": 1536,
            "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
        },
    }  # fmt: skip
    for name, config in configs.items():
        file = tmp_path / "config.json"
        file.write_text(json.dumps({**config, "_name_or_path": name}))
        assert model_of(str(tmp_path)) == KNOWN[name]


@pytest.mark.adr("0255-D2")
def test_the_program_takes_what_a_plan_gives_it_and_nothing_of_kernbench() -> None:
    tree = ast.parse(PROGRAM.read_text())
    nodes = list(ast.walk(tree))
    names = [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
    names += [name.name for node in nodes if isinstance(node, ast.Import) for name in node.names]
    imported = {name.partition(".")[0] for name in names}
    assert imported <= sys.stdlib_module_names | {"torch"}
    (config,) = (
        node
        for node in tree.body
        if isinstance(node, ast.ClassDef) and node.name == "TrainingConfig"
    )
    taken = {ast.unparse(item.target) for item in config.body if isinstance(item, ast.AnnAssign)}
    layout = Layout(tp=1, pp=1, cp=1, dp=1)
    timed = TimedLayout(
        layout=layout, memory={}, parts={}, seconds=1.0, tokens=1, flops=1.0, collectives=0,
        collective_bytes=0.0, more={}, joules=None, usd=None,
    )  # fmt: skip
    programs = LayoutPrograms(
        model=KNOWN["mixtral-8x7b"],
        job=Job(trains=True, devices=1, batch=1, seq=64),
        machine=load_machine("h100-sxm", 1),
        file="h100-sxm",
        compiles=False,
    )
    assert set(programs.config(timed)) | {"steps", "schedule", "recompute_share"} == taken


@pytest.mark.adr("0154-D2")
@pytest.mark.adr("0255-D3")
def test_memory_is_what_the_optimizer_and_the_cache_need() -> None:
    model = KNOWN["llama-3-70b"]
    job = Job(trains=True, devices=64, batch=64, seq=4096)
    own = model.parameters / 8
    # Weights in 32 and in 16 bits, gradients, Adam's moments: whole, or an eighth.
    for shard, weights, gradients, moments in (
        ("ddp", 4 + 2, 4, 8),
        ("zero1", 4 + 2, 4, 8 / 8),
        ("zero2", 4 / 8 + 2, 4, 8 / 8),
        ("zero3", 4 / 8 + 2 * 2 / 80, 4 / 8, 8 / 8),
    ):
        result = memory(model, job, Layout(tp=8, pp=1, cp=1, dp=8, microbatches=8, shard=shard))
        assert result["weights"] == pytest.approx(weights * own)
        assert result["gradients"] == pytest.approx(gradients * own)
        assert result["optimizer"] == pytest.approx(moments * own)
    serves = Job(trains=False, devices=8, batch=16, seq=1000, new_tokens=24)
    result = memory(model, serves, Layout(tp=8, pp=1, cp=1, dp=1, microbatch=16))
    # 320 KiB a token: 80 layers, 8 heads of 128, keys and values, 2 bytes.
    assert result["KV cache"] == 16 * 1024 * 320 * 1024 / 8


@pytest.mark.adr("0154-D1")
def test_time_is_that_of_layers_run_on_the_machine(tmp_path: Path, plan: Plan) -> None:
    model, machine = small(), load_machine("h100-sxm:2")
    job = Job(trains=True, devices=2, batch=4, seq=256)
    step = Steps(load_machine("h100-sxm", 1)).time(
        Model(config=config_of(model, 1, False), norm="rms"), Microbatch(sequences=1, tokens=256)
    )
    times = PlanTimes(model, job, machine)
    one = times.time(Layout(tp=1, pp=1, cp=1, dp=2, microbatches=2), {})
    layers_us = 2 * 4 * (step.forward_us + step.backward_us)
    assert one.parts["layers"] == pytest.approx(layers_us / 1e6)
    assert one.parts["ends"] == pytest.approx(
        2 * (step.ends_forward_us + step.ends_backward_us) / 1e6
    )
    assert sum(one.parts.values()) == pytest.approx(one.seconds)
    assert one.collectives == 2, "gradients to their owner, weights back"

    again = times.time(Layout(tp=1, pp=1, cp=1, dp=2, microbatches=2, recompute=True), {})
    assert again.seconds - one.seconds == pytest.approx(2 * 4 * step.forward_us / 1e6)

    # 1F1B with two stages: the last one is idle for a forward and a backward of half the layers.
    piped = times.time(Layout(tp=1, pp=2, cp=1, dp=1, microbatches=4), {})
    half_us = 2 * (step.forward_us + step.backward_us)
    assert piped.parts["pipeline"] * 1e6 >= half_us
    assert sum(piped.parts.values()) == pytest.approx(piped.seconds)


@pytest.mark.campaign
def test_layouts_timed_in_processes_are_timed_as_in_this_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    fitting: list[tuple[Layout, dict[str, float]]] = [
        (Layout(tp=tp, pp=1, cp=1, dp=2 // tp), {}) for tp in (1, 2)
    ]
    proposals = Proposals(
        model=small(),
        job=Job(trains=True, devices=2, batch=2, seq=64),
        machine=load_machine("h100-sxm:2"),
        fitting=fitting,
    )
    here, failed = proposals.timed(lambda _: None)
    monkeypatch.setattr(running, "_FEW", 0)
    assert proposals.timed(lambda _: None) == (here, failed)
    assert [timed.layout.tp for timed in here] == [1, 2]


@pytest.mark.adr("0154-D3")
def test_layouts_are_ranked_and_explained(plan: Plan, tmp_path: Path) -> None:
    asked = ("--model", "small.json", "--machine", "h100-sxm", "--devices", "2", "--seq", "256")
    status, out, err = plan(*asked, "--batch", "2", "--top", "3", "--json", "all.json")
    assert (status, err) == (0, "")
    data = json.loads(Path("all.json").read_text())
    seconds = [item["step_s"] for item in data["layouts"]]
    assert seconds == sorted(seconds)
    shapes = {(item["tp"], item["pp"], item["dp"]) for item in data["layouts"]}
    assert shapes == {(1, 1, 2), (1, 2, 1), (2, 1, 1)}
    for item in data["layouts"]:
        assert sum(item["parts_s"].values()) == pytest.approx(item["step_s"])
        assert item["tokens_per_s"] == pytest.approx(2 * 256 / item["step_s"])
        assert 0 < item["mfu"] < 1
    assert "why the next are slower:" in out
    assert f"{len(data['layouts'])} layouts fit, 0 do not" in out

    status, out, _ = plan(*asked, "--serve", "--batch", "2", "--new-tokens", "9", "--tp", "2")
    assert status == 0
    first = out.splitlines()[3].split()
    assert "each further" in out.splitlines()[2]
    assert first[0] == "TP"


@pytest.mark.adr("0154-D3")
def test_mixtures_and_long_sequences_are_split_further(plan: Plan) -> None:
    Path("moe.json").write_text(
        json.dumps(
            {**SMALL, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 256}
        )
    )
    asked = ("--machine", "h100-sxm", "--devices", "2", "--batch", "2", "--tp", "1", "--pp", "1")
    _, out, _ = plan("--model", "moe.json", *asked, "--seq", "256", "--json", "-")
    result = json.loads(out)["layouts"]
    assert {item["ep"] for item in result} == {1, 2}
    assert all(item["parts_s"]["experts"] > 0 for item in result)
    _, out, _ = plan("--model", "small.json", *asked, "--seq", "512", "--cp", "2", "--json", "-")
    result = json.loads(out)["layouts"]
    assert {item["cp"] for item in result} == {2}
    assert all(item["parts_s"]["CP attention"] > 0 for item in result)


@pytest.mark.adr("0255-D1")
def test_the_best_is_as_fast_as_its_program_run_by_hand(plan: Plan) -> None:
    pytest.importorskip("torch")
    Path("tiny.json").write_text(json.dumps({**SMALL, "num_hidden_layers": 1}))
    asked = ("--model", "tiny.json", "--machine", "h100-sxm", "--devices", "2", "--seq", "256")
    only = ("--tp", "1", "--pp", "1", "--shard", "zero3", "--batch", "2", "--write", "best")
    status, out, err = plan(*asked, *only, "--json", "all.json", run=1)
    assert status == 0, err
    best, *others = json.loads(Path("all.json").read_text())["layouts"]
    assert best["is_run"]
    assert not any(item["is_run"] for item in others)
    assert best["parts_s"][HOST] > 0, "launches of an eager program take time"
    assert sum(best["parts_s"].values()) == pytest.approx(best["step_s"])

    by_hand = out.partition("to run the best: kernbench ")[2].split()
    by_hand.remove("--no-fold-bound")
    done = run_forked("kernbench", *by_hand, imports=PYTORCH)
    assert done.returncode == 0, done.stderr
    steps = [line for line in done.stdout.splitlines() if "step_us" in line]
    assert json.loads(steps[-1])["step_us"] / 1e6 == pytest.approx(best["step_s"], rel=0.05)


def test_the_program_of_a_plan_is_compiled_though_it_is_part_of_kernbench(
    tmp_path: Path,
) -> None:
    pytest.importorskip("torch")
    program = tmp_path / "compiled.py"
    program.write_text(
        "import torch\n"
        "from types import SimpleNamespace\n"
        "from kernbench.plans.programs.train import MLP\n"
        "sizes = SimpleNamespace(hidden=64, intermediate=128, bias=False, gated=True)\n"
        "layer, graphs = MLP(sizes).cuda(), []\n"
        "layer.compile(backend=lambda graph, _: graphs.append(graph) or graph.forward)\n"
        "layer(torch.ones(4, 64, device='cuda'))\n"
        "print('graphs:', len(graphs))\n"
    )
    done = run_forked("kernbench", "run", "--no-data", str(program), imports=PYTORCH)
    assert done.returncode == 0, done.stderr
    assert "graphs: 1" in done.stdout


@pytest.mark.adr("0255-D1")
def test_programs_that_all_fail_are_an_error(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    monkeypatch.setattr(LayoutPrograms, "command", lambda *_: ["torchrun", "gone.py"])
    asked = ("--model", "small.json", "--machine", "h100-sxm", "--devices", "1", "--seq", "256")
    status, _, err = plan(*asked, run=2)
    assert status == 2
    assert "no program of the 2 best layouts ran: " in err
    assert "gone.py" in err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--shard", "zero4"), "--shard zero4: did you mean zero"),
        (
            ("--model", "llama-3-7b"),
            "unknown model 'llama-3-7b' (or name a config.json): did you mean llama-3-",
        ),
        (("--model", "gone.json"), "no config.json that can be read"),
        (("--model", "broken.json"), "there is no hidden_size or n_embd"),
        (("--machine", "h1000"), "unknown machine 'h1000'"),
        (
            ("--batch", "7", "--tp", "1", "--pp", "1"),
            "a batch of 7 sequences does not split over 2",
        ),
        (("--tp", "x"), "--tp must be sizes such as 4 or 2,4,8, but got 'x'"),
        (("--tp", "3"), "TP 3: 2 devices do not split into groups of 3"),
        (("--tp", "2", "--dp", "2"), "no allowed TP x PP x CP x DP is 2"),
        (
            ("--model", "llama-3-405b"),
            "llama-3-405b does not fit on 2 x h100-sxm: the smallest of",
        ),
    ],
)
def test_what_cannot_be_planned_is_said_with_numbers(
    plan: Plan, arguments: tuple[str, ...], said: str
) -> None:
    Path("broken.json").write_text("{}")
    common = {"--model": "small.json", "--machine": "h100-sxm", "--devices": "2"}
    common.update(zip(arguments[::2], arguments[1::2], strict=True))
    status, out, err = plan(*(text for pair in common.items() for text in pair))
    assert (status, out) == (2, "")
    assert said in err
    if "does not fit" in said:
        # Of 80, less what the driver keeps.
        assert "which has 79.1 GiB" in err


@pytest.mark.campaign
@pytest.mark.adr("0160-D4")
def test_layouts_are_ranked_by_energy_or_cost(plan: Plan) -> None:
    job = ("--model", "small.json", "--machine", "h100-sxm", "--devices", "2", "--batch", "2")
    asked = (*job, "--seq", "128", "--price", "3.60", "--json", "-", "--minimize")
    for goal, key in (("energy", "energy_j"), ("cost", "cost_usd")):
        status, out, err = plan(*asked, goal)
        assert status == 0, err
        layouts = json.loads(out)["layouts"]
        assert [layout[key] for layout in layouts] == sorted(layout[key] for layout in layouts)
    power = load_machine("h100-sxm", 1).sip.power
    assert power is not None
    for layout in layouts:
        assert layout["cost_usd"] == pytest.approx(2 * layout["step_s"] / 1000)
        watts = layout["energy_j"] / layout["step_s"] / 2
        assert float(power.idle_w) < watts < float(power.board_w)
    served = json.loads(plan(*asked, "energy", "--serve", "--new-tokens", "8")[1])["layouts"]
    # Without gaps between stages, devices are active all the time.
    alone = [item for item in served if item["pp"] == 1]
    assert alone
    for item in alone:
        watts = item["energy_j"] / item["step_s"] / 2
        assert watts > float(power.idle_w) + 0.5 * float(power.active_w)


@pytest.mark.parametrize(
    ("goal", "said"),
    [
        ("tim", "--minimize tim: did you mean time"),
        ("cost", "the cost of h200 is not known; say it per device and hour: --price 2.50"),
    ],
)
def test_goals_that_cannot_be_reached_are_refused(plan: Plan, goal: str, said: str) -> None:
    asked = ("--model", "small.json", "--machine", "h200", "--devices", "1")
    status, _, err = plan(*asked, "--minimize", goal)
    assert status == 2
    assert said in err


def test_narrow_consoles_wrap_layouts_and_no_numbers(
    plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    asked = ("--model", "small.json", "--machine", "h100-sxm", "--devices", "1", "--seq", "64")
    _, out, _ = plan(*asked, "--batch", "1", "--top", "2")
    table = out.split("\n\n")[1]
    assert "…" not in table
    assert "MFU" in table
    assert "recompute" in table
