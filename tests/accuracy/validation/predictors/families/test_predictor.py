"""What is run for rows of whole programs, and why for others nothing is."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from kernbench.accuracy.programs import ProgramError, folder_of
from kernbench.accuracy.validation.predictors.families.predictor import ProgramPredictor
from kernbench.accuracy.validation.rows.devices import presets
from kernbench.accuracy.validation.rows.reference import Row
from tests.accuracy.validation.predictors.answers import rows_of

COLUMNS = (  # noqa: SIM905 - as the first line of a file
    "source,device,program,program_config,n_devices,nodes,dtype,compile,model,layers,hidden,heads,"
    "kv_heads,ffn,vocab,seq_len,local_batch,grad_accum,global_batch,metric,value,unit,"
    "derived_step_time_s,rerunnable,tp,pp,experts,parallelism,activation_checkpointing"
).split(",")
PROGRAMS = Path("/programs")
PREDICTOR = ProgramPredictor(presets(), PROGRAMS)


def row(tmp_path: Path, **fields: object) -> Row:
    given = {
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
    line = ",".join(f'"{given.get(name, "")}"' for name in COLUMNS)
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
    text = "batch_size = 8\nreal_data = True\ncompile_model = True\n"
    asked = PREDICTOR.asked(row(tmp_path, source="nanogpt-readme", local_batch=12)).program
    script = tmp_path / "bench.py"
    script.write_text(text)
    changed = dataclasses.replace(asked, script=script).text()
    assert changed == "batch_size = 12\nreal_data = False\ncompile_model = False\n"
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


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"compile": "yes (full)"}, "compiled programs are not modeled"),
        ({"nodes": 2}, "more devices than one node has are not modeled"),
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
    found = PREDICTOR.asked(row(tmp_path, source="llm-foundry-mpt", **sizes)).program
    assert found.ranks == 8
    assert found.args == (
        "12", "512", "8", "2048", "50368", "1024", "4", "2", "full", "bf16", "FULL_SHARD",
    )  # fmt: skip


def test_latencies_and_rates_of_pictures_are_of_one_program(tmp_path: Path) -> None:
    said = {
        "source": "nv-dle",
        "program": "PyTorch/Classification/ConvNets/resnet50v1.5",
        "program_config": "FP32 Inference Latency | Batch Size=8",
        "local_batch": 8,
        "derived_step_time_s": "",
    }
    latency = row(tmp_path, **said, metric="Latency Avg", unit="ms")
    rate = row(tmp_path, **said, metric="Throughput Avg", unit="img/s", value=500)
    first, second = PREDICTOR.asked(latency), PREDICTOR.asked(rate)
    assert first.program == second.program
    assert (first.units, second.units) == (1, 8)
    training = said | {"program_config": "Training performance", "metric": "Throughput Avg"}
    with pytest.raises(ProgramError, match="classification forwards only"):
        PREDICTOR.asked(row(tmp_path, **training))
