"""Rows of training: what a step is made of, and how it behaves."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernbench.accuracy.rows.devices import presets
from kernbench.accuracy.rows.reference import read_rows
from kernbench.links import Asked, Network
from kernbench.plans.pipelines import StageWires
from tests.validation.predictors.answers import PREDICTOR, rows_of, times_of
from validation.sources.stacks import STACKS

HEADER = (
    "device,op,dtype,model,hidden,layers,heads,seq,batch,tp,pp,dp,time_us,tflops,"
    "tokens_per_s_per_dev,impl,source\n"
)


def trained(
    layers: int = 4, batch: int = 4, tp: int = 1, pp: int = 1, dp: int = 1,
    measured: str = "1000,,", source: str = "neusight-dist", hidden: str = "256",
    dtype: str = "fp16",
) -> str:  # fmt: skip
    return (
        f"A100-SXM4-80GB,train_iteration,{dtype},small,{hidden},{layers},4,128,{batch},"
        f"{tp},{pp},{dp},{measured},,{source}"
    )


@pytest.mark.slow
def test_a_step_grows_by_what_every_layer_adds(tmp_path: Path) -> None:
    four, eight, twelve = times_of(
        tmp_path, HEADER, *(trained(layers=number) for number in (4, 8, 12))
    )
    assert eight > four
    assert twelve - eight == pytest.approx(eight - four, rel=1e-6)


@pytest.mark.slow
def test_stages_of_one_microbatch_work_one_after_the_other(tmp_path: Path) -> None:
    """The source's pipelines have one microbatch, so nothing is gained but the update."""
    one, two = times_of(tmp_path, HEADER, trained(), trained(pp=2))
    assert 0.9 * one < two < 1.2 * one


@pytest.mark.slow
def test_copies_take_their_part_of_the_batch_and_sum_gradients(tmp_path: Path) -> None:
    alone, copies = times_of(tmp_path, HEADER, trained(batch=2), trained(batch=4, dp=2))
    wires = StageWires(presets().machine_of)
    # Four layers with biases and norms, and the embedding.
    elements = 4 * (12 * 256**2 + 13 * 256) + 51200 * 256
    summed_us = wires.summed_us("A100-SXM4-80GB", 1, 2, elements, 2)
    assert copies - alone == pytest.approx(summed_us, rel=0.01)


@pytest.mark.slow
def test_a_rate_is_the_time_of_its_work(tmp_path: Path) -> None:
    """Operations by hand: 3 passes of 24 s h^2 (1 + s / 6h) per layer, and the logits."""
    time_us, rate_us = times_of(tmp_path, HEADER, trained(), trained(measured=",100,"))
    blocks = 72 * 4 * 128 * 4 * 256**2 * (1 + 128 / (6 * 256))
    logits = 6 * 4 * 128 * 256 * 51200
    assert rate_us == pytest.approx(time_us / ((blocks + logits) / 1e12))


def test_one_rank_of_every_node_sums_over_its_own_link() -> None:
    machine_of = presets().machine_of
    summed_us = StageWires(machine_of).summed_us("A100-SXM4-80GB", 8, 4, 1 << 20, 2)
    links = machine_of("A100-SXM4-80GB").spec.links
    assert links is not None
    assert links.scale_out is not None
    least_us = 2 * (4 - 1) / 4 * (2 << 20) / float(links.scale_out.bandwidth_gbps) / 1e3
    assert summed_us >= least_us
    assert StageWires(machine_of).summed_us("A100-SXM4-80GB", 8, 1, 1 << 20, 2) == 0


def test_copies_in_a_node_sum_as_the_library_would() -> None:
    machine = presets().machine_of("A100-SXM4-80GB", 4)
    network = Network(machine)
    asked = Asked("all_reduce", 2, 1 << 16, 2)
    choice = network.selector.choose(asked, (0, 2))
    alone = network.run(choice.build(asked), (0, 2), (0, 0), choice.protocol)
    summed_us = StageWires(presets().machine_of).summed_us("A100-SXM4-80GB", 2, 2, 1 << 16, 2)
    assert summed_us == pytest.approx(alone.template.duration_ps / 1e6)


def test_what_a_source_does_not_say_is_named(tmp_path: Path) -> None:
    lines = [
        trained(hidden=""),
        trained(source="somebody"),
        trained(dtype="fp8"),
        trained(measured=",,500"),
        trained(tp=3),
    ]
    expected = [
        "does not say the model's hidden",
        "how large its microbatches are",
        "no dtype of a model for fp8",
        "not per token",
        "heads (4) must be divisible by tensor parallel size (3)",
    ]
    for row, why_not in zip(rows_of(tmp_path, HEADER, *lines), expected, strict=True):
        answer = PREDICTOR.predict(row)
        assert answer.time_us is None
        assert why_not in answer.why_not


def test_published_runs_split_evenly() -> None:
    """Every run of the published script divides its global batch and its stages."""
    runs = STACKS["megatron-readme-2021"].runs
    assert runs[12288].piece == 5
    for hidden, run in runs.items():
        assert run.heads is not None
        assert hidden % run.heads == 0
        assert run.microbatch is not None


@pytest.mark.slow
def test_operators_of_a_layer_are_rows_of_their_categories(tmp_path: Path) -> None:
    head = "device,op,dtype,hidden,heads,seq,batch,input_len,tp,pp,time_us,source,model\n"
    names = (
        "Q_K_V", "Wo_proj", "W1_proj", "W2_proj", "Softmax", "LayerNorm_MHA", "LayerNorm_FFN",
        "GeLU", "AllReduce_MHA", "AllReduce_FFN", "Q_mul_K", "A_mul_V",
    )  # fmt: skip
    line = "A100-SXM4-80GB,layer_{when}:{op},fp16,512,8,64,2,{keys},2,1,100,llmcompass-fig5ijkl,m\n"
    path = tmp_path / "rows.csv"
    for when, keys in (("prefill", 64), ("decode", 96)):
        every = (*names, "total")
        text = "".join(line.format(when=when, op=op, keys=keys) for op in every)
        path.write_text(head + text)
        times = [PREDICTOR.predict(row).time_us for row in read_rows([path])]
        assert all(times)
        assert times[-1] == pytest.approx(sum(time or 0 for time in times[:-1]))
    path.write_text(head + line.format(when="prefill", op="Dropout", keys=64))
    assert PREDICTOR.predict(read_rows([path])[0]).why_not == "no operator Dropout of a layer"
