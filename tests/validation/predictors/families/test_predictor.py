"""What is run for rows of whole programs, and why for others nothing is."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from kernbench.accuracy.rows.devices import presets
from kernbench.accuracy.rows.reference import Row
from tests.validation.predictors.answers import rows_of
from validation.predictors.families.chosen import ChosenProgram
from validation.predictors.families.predictor import ProgramPredictor
from validation.programs import ProgramError, ProgramFiles, folder_of

COLUMNS = (  # noqa: SIM905 - as the first line of a file
    "source,device,program,program_config,n_devices,nodes,dtype,compile,model,layers,hidden,heads,"
    "kv_heads,ffn,vocab,seq_len,local_batch,grad_accum,global_batch,metric,value,unit,"
    "derived_step_time_s,rerunnable,tp,pp,cp,experts,parallelism,activation_checkpointing,path,"
    "torch_version"
).split(",")
PROGRAMS = Path("/programs")
PREDICTOR = ProgramPredictor(presets(), ProgramFiles(folder=PROGRAMS))


def row(tmp_path: Path, **fields: object) -> Row:
    value = {
        "device": "A100-SXM4-80GB",
        "compile": "no",
        "nodes": 1,
        "n_devices": 1,
        "metric": "time_per_step",
        "value": 1,
        "unit": "ms",
        "derived_step_time_s": 0.001,
        "rerunnable": "yes",
        **fields,
    }
    line = ",".join(f'"{value.get(name, "")}"' for name in COLUMNS)
    return rows_of(tmp_path, ",".join(COLUMNS) + "\n", line)[0]


LLAMA = {
    "source": "accelerate-compile",
    "layers": 2,
    "hidden": 64,
    "heads": 4,
    "kv_heads": 2,
    "ffn": 128,
    "vocab": 1000,
    "local_batch": 3,
    "seq_len": 16,
}


@pytest.mark.adr("0131-D1")
def test_sizes_of_a_row_become_arguments(tmp_path: Path) -> None:
    asked = PREDICTOR.asked(row(tmp_path, **LLAMA))
    assert asked.program.script.name == "hf_llama.py"
    assert asked.program.args == ("2", "64", "4", "2", "128", "1000", "3", "16")
    vision = row(
        tmp_path,
        source="hf-compile-vision",
        program_config="google/vit-base-patch16-224; COCO image; batch 4",
        local_batch=4,
    )
    assert PREDICTOR.asked(vision).program.args == ("google/vit-base-patch16-224", "4")


@pytest.mark.adr("0131-D1")
def test_a_row_of_a_commit_runs_that_commit(tmp_path: Path) -> None:
    said = "git checkout 5265b20 without its set_float32_matmul_precision line; B=16"
    asked = PREDICTOR.asked(row(tmp_path, source="build-nanogpt-lecture", program_config=said))
    assert asked.program.script == folder_of(PROGRAMS, "build-nanogpt", "5265b20") / "train_gpt2.py"
    assert asked.program.changes
    as_it_is = row(tmp_path, source="build-nanogpt-lecture", program_config="git checkout 5265b20")
    assert not PREDICTOR.asked(as_it_is).program.changes


def test_the_benchmark_of_nanogpt_has_the_batch_of_the_row(tmp_path: Path) -> None:
    settings = "batch_size = 8\nreal_data = True\ncompile_model = True\n"
    asked = PREDICTOR.asked(row(tmp_path, source="nanogpt-readme", local_batch=12)).program
    script = tmp_path / "bench.py"
    script.write_text(f"from model import GPT\n{settings}")
    changed = dataclasses.replace(asked, script=script).text()
    assert changed.endswith("batch_size = 12\nreal_data = False\ncompile_model = False\n")
    script.write_text("batch_size = 8\n")
    with pytest.raises(ProgramError, match=r"bench.py has nothing like .*real_data"):
        dataclasses.replace(asked, script=script).text()


def test_batches_of_the_dashboard_are_of_the_a100_of_40_gb(tmp_path: Path) -> None:
    fields = {"program": "benchmarks/dynamo/huggingface.py", "model": "AlbertForMaskedLM"}
    asked = PREDICTOR.asked(
        row(tmp_path, source="pt2-dash-2049", device="A100", local_batch=4, dtype="amp", **fields)
    )
    assert asked.device == "A100-SXM4-40GB"
    assert asked.program.args == ("AlbertForMaskedLM", "4", "amp")
    fields["model"] = "MBartForConditionalGeneration"
    value = {"device": "A100", "local_batch": 16, "dtype": "amp", **fields}
    lengths = [
        PREDICTOR.asked(row(tmp_path, source=f"pt2-dash-{number}", **value)).program.args[3:]
        for number in (1831, 2049)
    ]
    assert lengths == [("128",), ()]


def test_rows_that_were_compiled_are_compiled_but_where_the_user_asks_for_eager_mode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KERNBENCH_COMPILE", raising=False)
    lecture = {"source": "build-nanogpt-lecture", "program_config": "git checkout fb8bd6e"}
    vision = {
        "source": "hf-compile-vision",
        "program_config": "google/vit-base-patch16-224; batch 4",
        "local_batch": 4,
    }
    nanogpt = {"source": "nanogpt-readme", "local_batch": 12}
    last = {}
    for fields in (lecture, vision, LLAMA, nanogpt):
        eager = PREDICTOR.asked(row(tmp_path, **fields)).program
        said = {"compile": "yes (regional, reduce-overhead)"}
        compiled = PREDICTOR.asked(row(tmp_path, **fields, **said)).program
        assert (eager.is_compiled, compiled.is_compiled) == (False, True)
        last[fields["source"]] = compiled.args[len(eager.args) :] or compiled.changes[-1:]
    assert last["hf-compile-vision"] == ("reduce-overhead",)
    assert last["accelerate-compile"] == ("regional",)
    assert last["nanogpt-readme"] == ((r"^compile_model = True$", "compile_model = True"),)
    dash = {"source": "pt2-dash-2049", "program": "benchmarks/dynamo/huggingface.py",
            "model": "AlbertForMaskedLM", "local_batch": 4, "dtype": "amp"}  # fmt: skip
    for said_by_row, how in (
        ("yes (inductor, CUDA graphs)", "reduce-overhead"),
        ("yes (inductor, no CUDA graphs)", "default"),
        ("aot_eager backend", "aot_eager"),
    ):
        asked = PREDICTOR.asked(row(tmp_path, **dash, compile=said_by_row)).program
        assert (asked.args[-1], asked.is_compiled) == (how, True)
    with pytest.raises(ProgramError, match="no compiler of PyTorch's is 'nvprims_nvfuser'"):
        PREDICTOR.asked(row(tmp_path, **dash, compile="nvprims_nvfuser"))
    gpt_fast = {"source": "gpt-fast-blog", "model": "Llama-2-7B", "dtype": "bf16", "n_devices": 1}
    asked = PREDICTOR.asked(row(tmp_path, **gpt_fast, compile="yes (reduce-overhead)")).program
    assert (asked.args[-1], asked.is_compiled) == ("compiled", True)
    quantised = {**gpt_fast, "dtype": "int4 weights G=32", "n_devices": 2}
    asked = PREDICTOR.asked(row(tmp_path, **quantised)).program
    assert (asked.args, asked.ranks) == (("Llama-2-7b-chat-hf", "int4.g32"), 2)
    assert (asked.folded_to, asked.variables, asked.is_before_2_8) == (0, (), False)
    by_peers = {**quantised, "parallelism": "TP, ENABLE_INTRA_NODE_COMM=1", "compile": "yes"}
    asked = PREDICTOR.asked(row(tmp_path, **by_peers)).program
    assert asked.variables == (("ENABLE_INTRA_NODE_COMM", "1"),)
    assert asked.is_before_2_8
    experts = {**gpt_fast, "model": "Mixtral-8x7B", "dtype": "int8 weights"}
    asked = PREDICTOR.asked(row(tmp_path, **experts)).program
    assert asked.args == ("Mixtral-8x7B-v0.1", "int8")
    assert asked.paths == (PROGRAMS / "gpt-fast-32971d3" / "mixtral-moe",)
    with pytest.raises(ProgramError, match="gpt-fast with fp8 is not described"):
        PREDICTOR.asked(row(tmp_path, **{**gpt_fast, "dtype": "fp8"}))
    with pytest.raises(ProgramError, match=r"no mode of torch.compile in 'yes'"):
        PREDICTOR.asked(row(tmp_path, **vision, compile="yes"))
    monkeypatch.setenv("KERNBENCH_COMPILE", "eager")
    with pytest.raises(ProgramError, match="KERNBENCH_COMPILE=eager leaves compiled programs out"):
        PREDICTOR.asked(row(tmp_path, **LLAMA, compile="yes (full)"))


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"nodes": 2}, "no program on several nodes is described for accelerate-compile"),
        ({"source": "x", "rerunnable": "no (Transformer Engine)"}, "Transformer Engine"),
        ({"source": "x"}, "no program is described for x"),
    ],
)
def test_what_is_not_run_has_a_reason(
    tmp_path: Path, fields: dict[str, object], reason: str
) -> None:
    with pytest.raises(ProgramError, match=reason):
        PREDICTOR.asked(row(tmp_path, **{**LLAMA, **fields}))


def test_rows_of_many_devices_say_their_ranks_and_sizes(tmp_path: Path) -> None:
    sizes = {
        "layers": 12,
        "hidden": 512,
        "heads": 8,
        "ffn": 2048,
        "vocab": 50368,
        "seq_len": 1024,
        "local_batch": 4,
        "grad_accum": 2,
        "global_batch": 32,
        "n_devices": 8,
        "tp": 2,
        "pp": 4,
        "activation_checkpointing": "full",
        "parallelism": "FULL_SHARD",
        "dtype": "bf16",
    }
    program = PREDICTOR.asked(row(tmp_path, source="llm-foundry-mpt", **sizes)).program
    assert (program.ranks, program.nodes, program.folded_to) == (8, 1, 0)
    assert program.args == (
        "12", "512", "8", "2048", "50368", "1024", "4", "2", "full", "FULL_SHARD", "triton",
    )  # fmt: skip


@pytest.mark.adr("0182-D3")
@pytest.mark.parametrize(
    ("device", "machine"),
    [("A100-SXM4-40GB", "oci-a100:2x8"), ("H100-SXM-80GB", "h100-sxm:2x8")],
)
def test_a_program_of_several_nodes_runs_on_the_cluster_of_its_source(
    tmp_path: Path, device: str, machine: str
) -> None:
    """Or on nodes of the device's machine, where no machine names the source."""
    sizes = dict.fromkeys(
        ("layers", "hidden", "heads", "ffn", "vocab", "seq_len", "local_batch", "grad_accum"), 8
    )
    asked_row = row(
        tmp_path, source="llm-foundry-mpt", device=device, n_devices=16, nodes=2,
        parallelism="FULL_SHARD", **sizes,
    )  # fmt: skip
    asked = PREDICTOR.asked(asked_row)
    assert (asked.program.ranks, asked.program.nodes) == (16, 2)
    result = PREDICTOR.machine_of(asked, asked_row)
    name, _, size = machine.partition(":")
    assert (result.name.partition(" ")[0], result.num_sips, result.num_hosts) == (name, 16, 2)
    assert size == f"{result.num_hosts}x{result.sips_per_host}"


@pytest.mark.parametrize(("device", "loss"), [("H100-SXM-80GB", 0.3), ("A100-SXM4-80GB", 0.18511)])
def test_training_for_many_steps_runs_at_the_clock_of_a_hot_device(
    tmp_path: Path, device: str, loss: float
) -> None:
    sizes = dict.fromkeys(
        ("layers", "hidden", "heads", "ffn", "vocab", "seq_len", "local_batch", "grad_accum"), 8
    )
    asked_row = row(tmp_path, source="llm-foundry-mpt", device=device, n_devices=8, **sizes)
    asked = PREDICTOR.asked(asked_row)
    machine = PREDICTOR.machine_of(asked, asked_row)
    assert machine.sip.sustained is not None
    assert float(machine.sip.sustained.clock_loss) == loss
    assert float(machine.sip.sustained.half_time_us) < 1
    # Kept answers are found by that name.
    assert "sip.sustained.half_time_us=0.001" in machine.name
    short = dataclasses.replace(asked, runs_hot=False)
    assert PREDICTOR.machine_of(short, asked_row).name == machine.name.partition(" ")[0]


@pytest.mark.parametrize(
    ("fields", "hot"),
    [
        (
            {
                "source": "hf-compile-vision",
                "device": "T4",
                "program_config": "google/vit-base-patch16-224; batch 4",
                "local_batch": 4,
            },
            True,
        ),
        (
            {
                "source": "build-nanogpt-lecture",
                "device": "A100",
                "program_config": "git checkout fb8bd6e",
            },
            True,
        ),
        (LLAMA, False),
    ],
)
def test_forwards_and_steps_in_turn_run_at_the_clock_of_a_hot_device(
    tmp_path: Path, fields: dict[str, object], hot: bool
) -> None:
    asked_row = row(tmp_path, **fields)
    asked = PREDICTOR.asked(asked_row)
    machine = PREDICTOR.machine_of(asked, asked_row)
    assert asked.runs_hot == hot
    assert ("sip.sustained.half_time_us=0.001" in machine.name) == hot


def test_torchscripts_gelu_is_one_kernel_unless_the_program_is_compiled(tmp_path: Path) -> None:
    text = "from model import GPT\nbatch_size = 8\nreal_data = True\ncompile_model = True\n"
    script = tmp_path / "bench.py"
    script.write_text(text)
    fused = []
    for said in ("no", "yes"):
        asked_row = row(tmp_path, source="nanogpt-readme", local_batch=12, compile=said)
        program = PREDICTOR.asked(asked_row).program
        fused.append("fused_gelu" in dataclasses.replace(program, script=script).text())
    assert fused == [True, False]


def test_all_of_mpt_in_16_bits_ran_the_attention_of_the_script_that_submitted_it(
    tmp_path: Path,
) -> None:
    sizes = dict.fromkeys(
        ("layers", "hidden", "heads", "ffn", "vocab", "seq_len", "local_batch", "grad_accum"), 8
    )
    asked_row = row(tmp_path, source="llm-foundry-mpt", device="H100-SXM-80GB", **sizes)
    fields = {**asked_row.fields, "attention": "flash-attn 2 (attn_impl=flash)"}
    asked = PREDICTOR.asked(dataclasses.replace(asked_row, fields=fields))
    assert asked.program.args[-1] == "triton"


def test_latencies_and_rates_of_pictures_are_of_one_program(tmp_path: Path) -> None:
    said = {
        "source": "nv-dle",
        "program": "PyTorch/Classification/ConvNets/resnet50v1.5",
        "program_config": "FP32 Inference Latency | Batch Size=8",
        "local_batch": 8,
        "derived_step_time_s": "",
        "device": "A100",
    }
    latency = row(tmp_path, **said, metric="Latency Avg", unit="ms")
    rate = row(tmp_path, **said, metric="Throughput Avg", unit="img/s", value=500)
    first, second = PREDICTOR.asked(latency), PREDICTOR.asked(rate)
    assert first.program == second.program
    # One of a hundred batches is slow: of it a mean latency has a hundredth, one of rates nothing.
    assert first.units == 1
    assert second.units == pytest.approx(8 * 0.99)
    assert (first.extra_us, second.extra_us) == (1770, 0)
    many = dataclasses.replace(latency, fields={**latency.fields, "local_batch": "256"})
    assert PREDICTOR.asked(many).extra_us == pytest.approx(256 * 46)
    other = said | {"program": "PyTorch/Detection/SSD", "metric": "Throughput Avg"}
    with pytest.raises(ProgramError, match="classification and U-Nets only"):
        PREDICTOR.asked(row(tmp_path, **other))


def test_networks_of_pictures_train_by_the_batches_of_their_source(tmp_path: Path) -> None:
    def asked(network: str, device: str, dtype: str, ranks: int) -> ChosenProgram:
        said = {
            "source": "nv-dle",
            "program": f"PyTorch/Classification/ConvNets/{network}",
            "program_config": f"Training performance: a page | GPUs={ranks}",
            "metric": "Throughput",
            "unit": "img/s",
            "value": 1000,
        }
        return PREDICTOR.asked(
            row(tmp_path, **said, device=device, dtype=dtype, n_devices=ranks, local_batch="")
        )

    one = asked("efficientnet-b4", "A100", "mixed (FP16 AMP)", 1)
    assert one.program.args == ("efficientnet-b4", "128", "amp", "nhwc", "32")
    assert (one.units, one.program.folded_to) == (128, None)
    eight = asked("efficientnet-b4", "V100 16GB", "FP32", 8)
    assert eight.program.args == ("efficientnet-b4", "16", "float32", "nchw", "32")
    assert (eight.units, eight.program.ranks, eight.program.folded_to) == (128, 8, 0)
    # 2,048 are no multiple of theirs.
    assert asked("resnet50v1.5", "V100 16GB", "FP32", 8).program.args[-1] == "1"
    assert ("KERNBENCH_TORCH_KERNELS", "1.9") in one.program.variables
    with pytest.raises(ProgramError, match="17 times as fast"):
        asked("efficientnet-b4", "V100 32GB", "FP32", 1)
    with pytest.raises(ProgramError, match="training on T4 is not described"):
        asked("resnet50v1.5", "T4", "FP32", 1)


def test_a_u_net_trains_by_its_dims_and_an_inference_without_precision_has_no_answer(
    tmp_path: Path,
) -> None:
    said = {
        "source": "nv-dle",
        "program": "PyTorch/Segmentation/nnUNet",
        "program_config": "Training performance: a page | Dimension=3; GPUs=8",
        "metric": "Throughput - mixed precision [img/s]",
        "unit": "img/s",
        "value": 200,
        "local_batch": 2,
        "n_devices": 8,
        "dtype": "mixed (FP16 AMP)",
        "device": "A100",
    }
    asked = PREDICTOR.asked(row(tmp_path, **said))
    assert asked.program.args == ("3", "2", "amp")
    assert (asked.units, asked.program.ranks, asked.program.folded_to) == (16, 8, 0)
    assert asked.extra_us == 5e3
    inference = said | {"metric": "Throughput Avg [img/s]", "dtype": "", "n_devices": 1}
    with pytest.raises(ProgramError, match="does not say its precision"):
        PREDICTOR.asked(row(tmp_path, **inference))
    with pytest.raises(ProgramError, match="training on T4"):
        PREDICTOR.asked(row(tmp_path, **(said | {"device": "T4"})))


def test_a_source_has_conditions_of_its_own_by_device(tmp_path: Path) -> None:
    said = {
        "source": "nv-dle",
        "program": "PyTorch/Classification/ConvNets/resnet50v1.5",
        "program_config": "FP32 Inference Latency | Batch Size=8",
        "local_batch": 8,
        "metric": "Latency Avg",
    }
    rows = {name: row(tmp_path, **said, device=name) for name in ("T4", "V100 16GB", "A100")}
    asked = {device: dict(PREDICTOR.asked(row).conditions) for device, row in rows.items()}
    assert asked["T4"].keys() == {"host.slowdown", "sip.sustained.clock_loss"}
    assert asked["V100 16GB"]["host.slowdown"] > 1 > asked["A100"]["host.slowdown"]
    slowdowns = {}
    for slowdown in (1, 2):
        value = (("host.slowdown", slowdown),)
        program = dataclasses.replace(PREDICTOR.asked(rows["T4"]), conditions=value)
        machine = PREDICTOR.machine_of(program, rows["T4"])
        slowdowns[machine.name] = machine.spec.host and float(machine.spec.host.slowdown)
    assert slowdowns == {"t4 (host.slowdown=1)": 1, "t4 (host.slowdown=2)": 2}
    assert PREDICTOR.machine_of(PREDICTOR.asked(row(tmp_path, **LLAMA)), rows["T4"]).name != "t4"


GOLDEN = """
ENV_VARS:
  NCCL_ALGO: Ring
  SKIP_PYTEST: 1
MODEL_ARGS:
  --num-layers: 12
  --log-params-norm: true
  --use-legacy: false
  --train-iters: 100
  --save: ${CHECKPOINT_SAVE_PATH}
  --data-path: ${DATA_PATH}/text
  --tokenizer-type: BertWordPieceCase
  --async-save: true
  --split: 949,50,1
"""


@pytest.mark.adr("0131-D1")
@pytest.mark.parametrize(
    ("kind", "script"), [("gpt", "pretrain_gpt.py"), ("t5", "examples/t5/pretrain_t5.py")]
)
def test_a_golden_value_runs_its_test_without_files(tmp_path: Path, kind: str, script: str) -> None:
    programs = tmp_path / "programs"
    test = f"tests/functional_tests/test_cases/{kind}/a_test"
    written = folder_of(programs, "Megatron-LM", "d98e8a6") / test
    written.mkdir(parents=True)
    (written / "model_config.yaml").write_text(GOLDEN)
    fields = {"source": "mcore-golden", "n_devices": 8, "path": f"{test}/golden_values_dev.json"}
    asked = ProgramPredictor(presets(), ProgramFiles(folder=programs)).asked(
        row(tmp_path, **fields)
    )
    program = asked.program
    assert program.ranks == 8
    assert ("NCCL_ALGO", "Ring") in program.variables
    assert "SKIP_PYTEST" not in dict(program.variables)
    assert program.args[:5] == ("apex", script, "--num-layers", "12", "--log-params-norm")
    said = " ".join(program.args)
    assert "--split 949,50,1 --mock-data --tokenizer-type NullTokenizer" in said
    for left_out in ("--save", "--data-path", "--async-save", "--use-legacy", "iters 100", "Bert"):
        assert left_out not in said
    more = GOLDEN + "BEFORE_SCRIPT: pip uninstall -y Apex || true\n"
    (written / "model_config.yaml").write_text(more)
    plain = (
        ProgramPredictor(presets(), ProgramFiles(folder=programs))
        .asked(row(tmp_path, **fields))
        .program
    )
    assert plain.args[0] == "plain"
    missing = row(tmp_path, **{**fields, "path": "tests/functional_tests/test_cases/gpt/b/c.json"})
    with pytest.raises(ProgramError, match="needs Megatron-LM: make programs"):
        ProgramPredictor(presets(), ProgramFiles(folder=programs)).asked(missing)


@pytest.mark.adr("0131-D1")
def test_a_rate_of_torchtitan_is_of_the_tokens_of_a_device(tmp_path: Path) -> None:
    fields = {
        "source": "torchtitan-202412",
        "model": "Llama-3.1 8B",
        "n_devices": 8,
        "cp": 2,
        "seq_len": 8192,
        "local_batch": 2,
        "dtype": "bf16",
        "activation_checkpointing": "selective (op)",
    }
    program = PREDICTOR.asked(row(tmp_path, **fields)).program
    assert program.units_per_step == 8192 * 2 / 2
    said = " ".join(program.args)
    assert "--activation-checkpoint.mode selective" in said
    assert "--parallelism.context-parallel-degree 2" in said
    assert "--compile.enable" not in program.args
    fields["torch_version"] = "2.8.0a0 (NGC 25.05)"
    compiled = PREDICTOR.asked(row(tmp_path, **{**fields, "compile": "yes"})).program
    assert compiled.is_compiled
    assert "--compile.enable" in compiled.args
    assert "--compile.components" not in compiled.args
    # Commits of PyTorch 2.7's time left the loss as it is (torchtitan e8977b0 to bbb1b61).
    fields["torch_version"] = "2.7 dev 1963fc8 (2024-12-23), torchao eab345c"
    older = PREDICTOR.asked(row(tmp_path, **{**fields, "compile": "yes"})).program
    assert " ".join(older.args).count("--compile.components model") == 1
    for more, reason in (
        ({"dtype": "nvfp4"}, "torchtitan with nvfp4"),
        ({"model": "Llama-9"}, "Llama-9 is not described"),
    ):
        with pytest.raises(ProgramError, match=reason):
            PREDICTOR.asked(row(tmp_path, **{**fields, **more}))
    for dtype, options in (
        ("bf16+float8", "--model.converters quantize.linear.float8 --quantize.linear.float8.en"),
        ("bf16+float8 rowwise", "--quantize.linear.float8.recipe-name rowwise"),
        ("bf16+mxfp8_cublas_rceil", "--quantize.linear.mx.recipe-name mxfp8_cublas_rceil"),
    ):
        narrow = PREDICTOR.asked(row(tmp_path, **{**fields, "dtype": dtype})).program
        assert options in " ".join(narrow.args)
        assert "torchao" in narrow.needs


TIMM = (
    "source,device,torch_version,dtype,memory_format,compile,phase,model,param_millions,"
    "img_size,batch_size,gmacs,step_time_ms"
)


def test_a_compiled_row_changes_what_its_source_had_otherwise_in_our_loops(tmp_path: Path) -> None:
    said = "yes (torch.compile/dynamo)"
    line = f"timm-bench,RTX 4090,2.9.1,amp,nchw,{said},infer,resnet34,21.8,224,64,3.6,10"
    (timm,) = rows_of(tmp_path, TIMM + "\n", line)
    program = PREDICTOR.asked(timm).program
    assert program.is_compiled
    assert "    model = torch.compile(model)\n    step()\n" in program.text()
    vision = row(
        tmp_path,
        source="hf-compile-vision",
        program_config="google/vit-base-patch16-224; batch 4",
        local_batch=4,
        compile="yes (default mode)",
    )
    asked = PREDICTOR.asked(vision)
    text = asked.program.text()
    # Graphs and launches of PyTorch 2.0; later ones had Triton's launcher, too.
    assert [name for name, _ in asked.conditions] == [
        "host.compiled_launch_us",
        "host.compiled_empty_us",
    ]
    later = PREDICTOR.asked(row(tmp_path, **LLAMA, compile="yes (full)"))
    name, first_us = asked.conditions[0]
    assert dict(later.conditions)[name] < first_us
    assert PREDICTOR.asked(row(tmp_path, **LLAMA)).conditions == later.conditions[:1]
    # The releases of the rows left convolutions as they were.
    assert "torch.compile(model, options={'layout_optimization': False" in text
    compile(text, "the loop", "exec")


@pytest.mark.parametrize(
    ("device", "release", "on"),
    [
        ("RTX 3090", "1.12", ()),
        ("RTX 3090", "1.13", ("fast-norm",)),
        ("RTX 3090", "2.4.0", ("fast-norm", "fused-attention", "foreach")),
        ("RTX 4090", "2.9.1", ("fast-norm", "fused-attention", "foreach", "reparameterized")),
        ("RTX 5090", "2.10.0", ("fused-attention", "foreach", "reparameterized")),
    ],
)
def test_networks_of_timm_run_with_the_switches_of_their_file(
    tmp_path: Path, device: str, release: str, on: tuple[str, ...]
) -> None:
    line = f"timm-bench,{device},{release},amp,nhwc,no,infer,resnet34,21.8,224,64,3.6,10"
    (row,) = rows_of(tmp_path, TIMM + "\n", line)
    program = PREDICTOR.asked(row).program
    assert program.args == ("resnet34", "224", "64", "amp", "nhwc", "infer", "21.8", *on)
    # Releases before 2.5 computed attention without a fused kernel in half precision.
    assert ("reduction_math_sdp(True)" in program.text()) is (release == "2.4.0")
    assert "use_columns" not in program.text()
    compile(program.text(), "the loop", "exec")


def test_steps_that_had_other_kernels_have_those_of_their_release(tmp_path: Path) -> None:
    line = "timm-bench,RTX 3090,{},amp,{},no,{},resnet34,21.8,224,64,3.6,10"
    result = {}
    for name in (
        ("1.12", "nchw", "train"), ("1.13", "nhwc", "infer"), ("1.13", "nchw", "infer"),
        ("2.4.0", "nhwc", "infer"), ("2.1.0", "nchw", "infer"),
    ):  # fmt: skip
        (row,) = rows_of(tmp_path, TIMM + "\n", line.format(*name))
        result[name] = dict(PREDICTOR.asked(row).program.variables)
    assert [item.get("KERNBENCH_TORCH_KERNELS") for item in result.values()] == [
        "1.12", "1.13", "1.13", None, None
    ]  # fmt: skip


def test_networks_of_a_package_that_timm_left_are_not_answered(tmp_path: Path) -> None:
    line = "timm-bench,RTX 3090,{},amp,nhwc,no,infer,tresnet_m,31.39,224,64,3.6,10"
    old, new = rows_of(tmp_path, TIMM + "\n", line.format("1.13"), line.format("2.4.0"))
    with pytest.raises(ProgramError, match="InPlace-ABN"):
        PREDICTOR.asked(old)
    assert PREDICTOR.asked(new).program.args[0] == "tresnet_m"


def test_networks_scaled_scores_before_attention_was_fused(tmp_path: Path) -> None:
    line = "timm-bench,RTX 3090,{},amp,nhwc,no,{},{},21.8,224,64,3.6,10"
    for release, phase, model, scales in (
        ("1.13", "infer", "deit_tiny_patch16_224", True), ("1.12", "train", "pit_s_224", True),
        ("1.13", "infer", "swin_s3_tiny_224", False), ("1.13", "infer", "resnet34", False),
        ("2.1.0", "infer", "deit_tiny_patch16_224", False),
    ):  # fmt: skip
        (row,) = rows_of(tmp_path, TIMM + "\n", line.format(release, phase, model))
        text = PREDICTOR.asked(row).program.text()
        assert ("scale_scores(model)" in text) is scales
        compile(text, "the loop", "exec")


def test_networks_that_called_no_fused_attention_yet_call_none(tmp_path: Path) -> None:
    line = "timm-bench,RTX 3090,{},amp,nhwc,no,infer,{},21.8,224,64,3.6,10"
    for release, model, is_fused in (
        ("2.1.0", "volo_d1_224", False), ("2.4.0", "volo_d1_224", True),
        ("2.1.0", "resnet34", True),
    ):  # fmt: skip
        (row,) = rows_of(tmp_path, TIMM + "\n", line.format(release, model))
        text = PREDICTOR.asked(row).program.text()
        assert ("each.fused_attn = False" not in text) is is_fused
        assert "reduction_math_sdp(True)" in text
        compile(text, "the loop", "exec")


def test_planes_of_half_precision_are_convolved_in_three_dims_without_cudnn_by_2_9(
    tmp_path: Path,
) -> None:
    line = "timm-bench,RTX 4090,2.9.1,{},{},no,infer,resnet34,21.8,224,64,3.6,10"
    lines = [line.format(*name) for name in (("amp", "nchw"), ("amp", "nhwc"), ("fp32", "nchw"))]
    texts = [PREDICTOR.asked(row).program.text() for row in rows_of(tmp_path, TIMM + "\n", *lines)]
    assert ["use_columns(model)" in text for text in texts] == [True, False, False]
    compile(texts[0], "the loop", "exec")


@pytest.mark.adr("0235-D2")
@pytest.mark.adr("0255-D4")
def test_a_row_of_fms_is_the_program_of_plans_with_its_sizes(tmp_path: Path) -> None:
    sizes = {"layers": 40, "hidden": 5120, "heads": 40, "kv_heads": 40, "ffn": 13824}
    value = {
        **sizes, "source": "fms-fsdp", "device": "A100-80GB", "n_devices": 128, "nodes": 16,
        "fsdp": 8, "vocab": 32000, "seq_len": 4096, "local_batch": 2, "compile": "yes",
        "model": "Llama-2 13b", "activation_checkpointing": "selective",
    }  # fmt: skip
    line = ",".join(f'"{value.get(name, "")}"' for name in (*COLUMNS, "fsdp"))
    head = ",".join((*COLUMNS, "fsdp")) + "\n"
    (asked_row,) = rows_of(tmp_path, head, line)
    asked = PREDICTOR.asked(asked_row)
    config = json.loads(asked.program.args[0])
    assert (asked.program.ranks, asked.program.nodes, config["dp"]) == (128, 16, 128)
    assert (config["shard"], config["shards"], config["compile"]) == ("hsdp", 8, True)
    # 400 Gb/s of a node of eight.
    assert asked.conditions == (("links.scale_out.bandwidth_gbps", 6.25),)
    assert config["recompute_share"] == 0.39


@pytest.mark.adr("0265-D2")
def test_graphs_of_kernelbench_are_launched_as_its_release_of_pytorch_did(tmp_path: Path) -> None:
    columns = "level,problem,config,folder,commit,date,hardware,mean_ms"
    conditions = {}
    for date in ("2025-07-15", "2025-12-31"):
        for config in ("torch", "torch_compile_inductor_default"):
            line = f"level1,19_ReLU.py,{config},H100,6e6fca9c,{date},NVIDIA H100 80GB HBM3,1"
            (asked,) = rows_of(tmp_path, f"{columns}\n", line)
            conditions[date[:7], config[6:]] = dict(PREDICTOR.asked(asked).conditions)
    first = conditions.pop(("2025-07", "compile_inductor_default"))
    assert not any(conditions.values())
    assert first.keys() == {
        "host.compiled_launch_us",
        "host.compiled_call_us",
        "host.compiled_guard_us",
    }


def test_rows_of_kernelbench_meet_the_compiler_of_their_time(tmp_path: Path) -> None:
    """As its rows have it, which agree with PyTorch 2.5 or with 2.9."""
    columns = "level,problem,config,folder,commit,date,hardware,mean_ms"
    line = "level1,24_LogSoftmax.py,torch_compile_inductor_default,{},{},{},NVIDIA L40S,1"
    old, new = "2025-01-21", "2026-01-14"
    for folder, commit, date, is_first in (
        ("L40S_modal", "80c03d44", old, True),
        ("L40S_modal", "4082b873", new, False),
        ("A6000_babel", "87fc84ca", "2025-06-16", True),
        ("L4_GCP", "15c880c7", new, True),
        ("H100_PCIe_LambdaLabs", "3396fc0c", "2025-10-28", True),
        ("B200_Modal", "15c880c7", new, False),
    ):
        (asked,) = rows_of(tmp_path, f"{columns}\n", line.format(folder, commit, date))
        assert PREDICTOR.asked(asked).program.is_before_2_8 == is_first, folder


def test_problems_of_kernelbench_find_what_its_tools_add_to_torch(tmp_path: Path) -> None:
    columns = "level,problem,config,folder,commit,date,hardware,mean_ms"
    line = "level1,19_ReLU.py,torch,H100,016b0859,2025-07-21,NVIDIA H100 PCIe,1"
    (asked,) = rows_of(tmp_path, f"{columns}\n", line)
    predictor = ProgramPredictor(presets(), ProgramFiles(folder=tmp_path))
    (other,) = rows_of(tmp_path, f"{columns}\n", line.replace("016b0859", "1e2c63f9"))
    with pytest.raises(ProgramError, match="of other sizes than were measured"):
        predictor.asked(other)
    problem = folder_of(tmp_path, "KernelBench", "016b0859") / "KernelBench/level1/19_ReLU.py"
    problem.parent.mkdir(parents=True)
    for text, is_added in (("x = torch.rand_mix(2, 3)", True), ("x = torch.rand(2, 3)", False)):
        problem.write_text(text)
        said = predictor.asked(asked).program.text()
        compile(said, "the loop", "exec")
        assert ("torch.rand_mix = " in said) == is_added
