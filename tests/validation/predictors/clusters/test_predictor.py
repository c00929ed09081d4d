"""Published training steps that nobody can run again, composed of kernels and collectives."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from kernbench.accuracy.rows.devices import presets
from kernbench.library_kernels import AttentionProblem
from tests.validation.predictors.families.test_predictor import row
from validation.predictors.clusters import (
    COMPOSED,
    ClusterPredictor,
    memory_of_row,
)
from validation.predictors.clusters.jobs import (
    ClusterJob,
    NotDescribedError,
    Software,
)
from validation.predictors.clusters.kernels import Kernels
from validation.predictors.clusters.models import model_of
from validation.predictors.clusters.predictor import (
    READERS,
    reader_of,
    tflop_per_device,
)
from validation.predictors.families.predictor import ProgramPredictor
from validation.programs import KeptAnswers, ProgramAnswer, ProgramFiles

PREDICTOR = ClusterPredictor(presets())
GPT3 = {
    "source": "mlperf-training-v4.1",
    "device": "H100-SXM5-80GB",
    "n_devices": 512,
    "nodes": 64,
    "model": "GPT-3 175B",
    "dtype": "fp8 (see config)",
    "tp": 4,
    "pp": 8,
    "seq_len": 2048,
    "global_batch": 2048,
    "program_config": "config_DGXH100_64x8x128x4x8_mbs2.sh",
    "rerunnable": "no (NGC container)",
}


@pytest.mark.adr("0190-D1")
def test_a_step_that_cannot_be_run_again_is_composed(tmp_path: Path) -> None:
    found = ProgramPredictor(presets()).predict(row(tmp_path, **GPT3))
    assert (found.time_us, found.why_not) == (None, COMPOSED)
    # NVIDIA measured 9.5 s.
    assert found.composed_us == pytest.approx(9.5e6, rel=0.12)


@pytest.mark.adr("0190-D1")
def test_twice_the_devices_for_the_same_batch_take_a_little_more_than_half(tmp_path: Path) -> None:
    half = PREDICTOR.predict(row(tmp_path, **{**GPT3, "n_devices": 256, "nodes": 32})).composed_us
    whole = PREDICTOR.predict(row(tmp_path, **GPT3)).composed_us
    assert half is not None
    assert whole is not None
    # The pipeline fills as often, for half as many microbatches.
    assert 0.5 * half < whole < 0.6 * half


def test_rows_say_why_a_run_is_not_described(tmp_path: Path) -> None:
    bridge = {
        "source": "megatron-bridge-2",
        "device": "GB300",
        "n_devices": 256,
        "nodes": 64,
        "seq_len": 4096,
        "local_batch": 1,
        "global_batch": 256,
        "dtype": "MXFP8",
    }
    found = PREDICTOR.predict(row(tmp_path, **bridge, model="Nemotron_3_Ultra"))
    assert (found.composed_us, found.why_not) == (
        None,
        "the sizes of Nemotron_3_Ultra are not described",
    )
    unsplit = {**GPT3, "tp": "", "pp": "", "model": "Llama-2 70B LoRA", "program_config": "x"}
    why = PREDICTOR.predict(row(tmp_path, **unsplit)).why_not
    assert why == "the source does not say how the model was split"
    one_node = {**GPT3, "device": "MI300X"}
    why = PREDICTOR.predict(row(tmp_path, **one_node)).why_not
    assert why == "no nodes of mi300x are described"


@pytest.mark.parametrize(
    ("model", "device", "devices", "batch", "found"),
    [
        ("Llama-2 70B LoRA", "Blackwell GPU (GB200)", 32, 8, (1, 1, 4, 1)),
        ("Llama-2 70B LoRA", "H200-SXM5-141GB", 8, 8, (1, 1, 2, 1)),
        ("Llama-2 70B LoRA", "H200-SXM5-141GB", 32, 8, None),
        ("Llama-2 70B LoRA", "H100-SXM5-80GB", 16, 8, (4, 1, 1, 1)),
        ("Llama-3.1 8B", "Blackwell GPU (B200-SXM-180GB)", 8, 16, (1, 1, 1, 2)),
        ("Llama-3.1 8B", "Blackwell GPU (B200-SXM-180GB)", 64, 32, (1, 1, 2, 1)),
        ("Llama-3.1 8B", "H200-SXM5-141GB", 64, 32, None),
    ],
)
def test_submissions_that_say_no_split_have_that_of_others(
    tmp_path: Path, model: str, device: str, devices: int, batch: int, found: tuple[int, ...] | None
) -> None:
    reader = reader_of("mlperf-training-v5.1")
    assert reader is not None
    asked = {**GPT3, "source": "mlperf-training-v5.1", "model": model, "device": device,
             "n_devices": devices, "nodes": 1, "global_batch": batch, "seq_len": 8192, "tp": "",
             "pp": "", "program_config": "1xBM.GPU.8"}  # fmt: skip
    if found is None:
        with pytest.raises(NotDescribedError, match="does not say how the model was split"):
            reader(row(tmp_path, **asked))
        return
    job = reader(row(tmp_path, **asked))
    assert (job.tp, job.pp, job.cp, job.microbatch) == found
    said = reader(row(tmp_path, **{**asked, "tp": 2, "pp": 1}))
    assert (said.tp, said.cp) == (2, 1)


def test_adapters_are_fused_from_the_round_on_whose_containers_do_it(tmp_path: Path) -> None:
    lora = {**GPT3, "model": "Llama-2 70B LoRA", "seq_len": 8192, "device": "Blackwell GPU (GB200)",
            "global_batch": 64, "tp": 1, "pp": 1, "cp": 8}  # fmt: skip

    def streams(source: str, **changed: object) -> float:
        reader = reader_of(source)
        assert reader is not None
        return reader(
            row(tmp_path, **{**lora, "source": source, **changed})
        ).software.streams_forward

    alone = streams("mlperf-training-v5.1")
    assert streams("mlperf-training-v5.1", model="Llama-3.1 8B") == alone
    assert streams("mlperf-training-v5.0") > 10 * alone
    # Ranks that share a layer, and Hopper's containers, have them apart.
    assert streams("mlperf-training-v5.1", tp=4) > 10 * alone
    assert streams("mlperf-training-v5.1", device="H100-SXM5-80GB") > 10 * alone


@pytest.mark.parametrize(
    ("release", "model", "device", "overlaps"),
    [
        ("25.11", "Qwen3_235B_a22B", "H100", False),
        ("26.02", "Qwen3_235B_a22B", "H100", True),
        ("26.04.01", "Qwen3_235B_a22B", "GB200", False),
        ("26.04.01", "GPT OSS 120B", "GB200", True),
        ("26.04.01", "GPT OSS 120B", "GB300", False),
        ("26.02", "GPT OSS 120B", "GB200", False),
        ("26.06", "Qwen3_235B_a22B", "GB300", True),
        ("26.06", "GPT OSS 120B", "B300", False),
    ],
)
def test_exchanges_of_rows_overlap_where_the_recipe_says_so(
    tmp_path: Path, release: str, model: str, device: str, overlaps: bool
) -> None:
    reader = reader_of("megatron-bridge-2")
    assert reader is not None
    asked = {"n_devices": 256, "nodes": 32, "seq_len": 4096, "local_batch": 1, "global_batch": 256,
             "dtype": "FP8", "program_config": f"{release} NeMo Container"}  # fmt: skip
    job = reader(row(tmp_path, **asked, model=model, device=device))
    assert (job.software.exchange_hidden > 0) is overlaps


@pytest.mark.parametrize(
    ("release", "dtype", "device", "whole"),
    [
        ("26.04.01", "MXFP8", "GB300", False),
        ("26.06", "BF16", "GB300", False),
        ("26.06", "MXFP8", "GB300", True),
        ("26.06", "MXFP8", "B300", False),
    ],
)
def test_a_step_that_is_one_graph_has_experts_fused_and_their_rows_in_pages(
    tmp_path: Path, release: str, dtype: str, device: str, whole: bool
) -> None:
    reader = reader_of("megatron-bridge-2")
    assert reader is not None
    asked = {"n_devices": 64, "nodes": 16, "seq_len": 4096, "local_batch": 4, "global_batch": 1280,
             "dtype": dtype, "program_config": f"{release} NeMo Container", "tp": 1, "pp": 1,
             "ep": 16}  # fmt: skip
    found = reader(row(tmp_path, **asked, model="GPT OSS 120B", device=device)).software
    assert (found.fused_experts, found.stashes_rows) == (whole, whole)
    assert found.attention == ("cudnn_mxfp8" if whole else "cudnn")


def test_the_longest_beginning_of_a_source_names_its_reader() -> None:
    assert reader_of("nobody") is None
    for source, named in READERS.items():
        reader = reader_of(source)
        assert reader is not None
        assert f"{reader.__module__}:{reader.__name__}" == named
    assert reader_of("megatron-bridge-2") is not reader_of("megatron-bridge")


def test_work_is_counted_as_sources_count_it(tmp_path: Path) -> None:
    reader = reader_of("mlperf-training-v4.1")
    assert reader is not None
    job = reader(row(tmp_path, **GPT3))
    # Six operations for each of 175 billion weights and each token, and the scores.
    tokens = 2048 * 2048 / 512
    assert tflop_per_device(job) == pytest.approx(6 * 175e9 * tokens / 1e12, rel=0.05)
    memory = memory_of_row(row(tmp_path, **GPT3))
    assert memory is not None
    assert memory["weights"] == pytest.approx(2 * 175e9 / 32, rel=0.05)


@pytest.mark.adr("0190-D3")
def test_training_runs_at_the_clock_that_is_left_of_a_hot_device(tmp_path: Path) -> None:
    reader = reader_of("mlperf-training-v4.1")
    assert reader is not None
    job = reader(row(tmp_path, **GPT3))
    narrow, wide = (
        PREDICTOR.step_us(replace(job, precision=each), "H100-SXM5-80GB")
        for each in ("fp8", "bf16")
    )
    assert wide > 1.5 * narrow
    kernels, _ = PREDICTOR.parts("", "H100-SXM5-80GB", ())
    alone = Kernels(presets().machine_of("H100-SXM5-80GB"))
    # A loop of one product with pauses settles half; training loses all, and more in 16 bits.
    assert kernels.product(8192, 8192, 8192, "bf16") > 1.1 * alone.product(8192, 8192, 8192, "bf16")


def test_in_a_step_of_8_bits_products_of_16_bits_are_as_hot_as_in_one_of_16(tmp_path: Path) -> None:
    hopper, _ = PREDICTOR.parts("", "H100-SXM5-80GB", ())
    alone = Kernels(hopper.machine)
    scores = AttentionProblem(
        batch=1, q_len=8192, kv_len=8192, heads=32, kv_heads=8, head_dim=128, causal=True,
        dtype="bfloat16", q_bytes=2, kv_bytes=2,
    )  # fmt: skip
    hot, cool = hopper.attention(scores, "cudnn"), alone.attention(scores, "cudnn")
    assert 1.05 * cool.forward < hot.forward < 1.1 * cool.forward
    assert hopper.product(8192, 8192, 8192, "bf16") > alone.product(8192, 8192, 8192, "bf16")
    assert hopper.product(8192, 8192, 8192, "fp8") == alone.product(8192, 8192, 8192, "fp8")


TITAN = {
    "source": "torchtitan-202412", "device": "H100-SXM-96GB-HBM2e (500W)", "compile": "yes",
    "model": "Llama-3.1 405B", "n_devices": 512, "nodes": 64, "seq_len": 8192, "local_batch": 32,
    "dtype": "bf16+float8", "activation_checkpointing": "full", "tp": 8, "pp": 8,
    "parallelism": "3D + AsyncTP, 1F1B",
}  # fmt: skip


def test_ranks_of_torchtitans_pipelines_keep_weights_and_share_the_optimizer(
    tmp_path: Path,
) -> None:
    reader = reader_of("torchtitan-202412")
    assert reader is not None
    job = reader(row(tmp_path, **TITAN))
    # Eight replicas of 64 ranks, each with 32 sequences in as many microbatches as stages.
    assert (job.copies, job.batch, job.microbatches, job.microbatch) == (8, 256, 8, 4)
    assert (job.shard, job.software.shards_optimizer, job.pieces) == (1, True, 1)
    apart = reader(row(tmp_path, **{**TITAN, "parallelism": "3D + AsyncTP, Interleaved 1F1B"}))
    assert apart.pieces == 2
    whole, in_pieces = (PREDICTOR.predict(
                            row(tmp_path, **{**TITAN, "parallelism": each})).composed_us
                        for each in ("1F1B", "Interleaved 1F1B"))  # fmt: skip
    assert whole is not None
    assert in_pieces is not None
    # 15 of 8 microbatches' times, or 11.5.
    assert in_pieces / whole == pytest.approx(11.5 / 15, rel=0.05)
    flat = reader(row(tmp_path, **{**TITAN, "pp": "", "n_devices": 64, "nodes": 8}))
    assert (flat.shard, flat.microbatches) == (8, 1)


def test_boards_of_500_w_have_a_peak_between_those_of_h100_nvl_and_h100_sxm(
    tmp_path: Path,
) -> None:
    sip = presets().machine_of("H100-SXM-96GB-HBM2e (500W)").sip
    peak = sip.gemm_flops_per_clock("bfloat16") * sip.num_pes * float(sip.clock_ghz) * 1e9
    assert peak == pytest.approx((835e12 + 989e12) / 2, rel=0.002)
    of_torchtitan = {**TITAN, "n_devices": 8, "nodes": 1, "tp": "", "pp": "", "local_batch": 1}
    asked = {"titan": of_torchtitan, "ao": {**of_torchtitan, "source": "torchao-float8-e2e",
                                            "device": "H100 (8x)"}}  # fmt: skip
    found = {
        name: PREDICTOR.predict(row(tmp_path, **each)).composed_us for name, each in asked.items()
    }
    assert found["titan"] == found["ao"]


def test_boards_of_an_unknown_limit_and_hosts_that_optimize_are_not_answered(
    tmp_path: Path,
) -> None:
    one_node = {**TITAN, "n_devices": 8, "nodes": 1, "tp": "", "pp": "", "model": "Llama-3 8B"}
    torchao = {**one_node, "source": "torchao-float8-e2e", "local_batch": 1}
    assert PREDICTOR.predict(row(tmp_path, **torchao)).composed_us is not None
    limited = row(tmp_path, **{**torchao, "device": "B200 (power limited)"})
    why = PREDICTOR.predict(limited).why_not
    assert why == "the source does not say how far its boards are limited"
    upgrade = {**one_node, "source": "mleng-upgrade", "device": "H200-SXM-141GB",
               "global_batch": 8, "dtype": "bf16"}  # fmt: skip
    offloaded = row(tmp_path, **{**upgrade, "parallelism": "ZeRO-3 + CPU offload"})
    assert PREDICTOR.predict(offloaded).why_not == "an optimizer on the host is not described"
    assert PREDICTOR.predict(row(tmp_path, **{**upgrade, "parallelism": "ZeRO-2"})).composed_us


def test_a_server_is_not_answered_whose_sockets_are_joined_in_a_way_that_nobody_says() -> None:
    job = ClusterJob(
        model=model_of("BERT-large"), software=Software(shards_optimizer=False),
        devices=4, seq=512, batch=16, microbatch=4, precision="bf16", causal=False,
    )  # fmt: skip
    assert PREDICTOR.step_us(job, "L40S") > 0
    both = replace(job, devices=8, batch=32)
    with pytest.raises(NotDescribedError, match="how its server joins l40s over sockets"):
        PREDICTOR.step_us(both, "L40S")
    # Here sockets are joined by links as fast as those within one.
    assert PREDICTOR.step_us(both, "RTX-PRO-6000-Server") > 0


@pytest.mark.adr("0235-D2")
def test_a_step_of_a_cluster_is_not_composed_where_its_program_can_be_run(tmp_path: Path) -> None:
    mpt = {
        "source": "llm-foundry-mpt", "device": "H100-SXM-80GB", "n_devices": 128, "nodes": 16,
        "model": "MPT-7b", "dtype": "amp_bf16", "layers": 32, "hidden": 4096, "heads": 32,
        "ffn": 16384, "vocab": 50368, "seq_len": 2048, "local_batch": 6, "grad_accum": 1,
        "global_batch": 768, "activation_checkpointing": "none", "parallelism": "FULL_SHARD",
        "metric": "throughput", "unit": "tokens/s", "value": 1340830,
    }  # fmt: skip
    kept = tmp_path / "kept.jsonl"
    files = ProgramFiles(kept=kept, runs=())
    asked_row = row(tmp_path, **mpt)
    without = ProgramPredictor(presets(), files)
    found = without.predict(asked_row)
    assert (found.why_not, found.composed_us) == ("not run for this table", None)
    asked = without.asked(asked_row)
    machine = without.machine_of(asked, asked_row)
    KeptAnswers(files).keep(asked.program, machine.name, ProgramAnswer(step_us=8e5))
    found = ProgramPredictor(presets(), files).predict(asked_row)
    assert (found.time_us, found.composed_us) == (8e5, None)
