"""Rows of whole requests: what is run for them, and how their times behave."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernbench.hardware import load_machine
from tests.validation.predictors.answers import PREDICTOR, rows_of, times_of
from validation.sources.stacks import STACKS, Stack

HEADER = (
    "device,op,dtype,model,hidden,layers,heads,seq,batch,tokens,input_len,output_len,tp,pp,"
    "time_us,tflops,impl,source\n"
)


def generated(
    batch: int = 1, prompt: int = 16, new: int = 4, tp: int = 2, pp: int = 1, layers: int = 4
) -> str:
    return (
        f"A100-SXM4-80GB,generate,fp16,small,1024,{layers},8,,{batch},,{prompt},{new},{tp},{pp},"
        "1000,,FasterTransformer,ft-gpt20b"
    )


@pytest.mark.slow
def test_more_work_takes_longer(tmp_path: Path) -> None:
    base, longer, deeper, wider, prompt = times_of(
        tmp_path, HEADER,
        generated(), generated(new=6), generated(layers=8), generated(batch=64),
        generated(prompt=512, batch=8),
    )  # fmt: skip
    assert base < longer < deeper * 2
    assert base < deeper < 2.05 * base
    assert base < wider
    assert base < prompt


@pytest.mark.slow
def test_a_request_is_its_prompt_and_its_tokens(tmp_path: Path) -> None:
    """Every further token costs a pass through all layers, over a cache that is little longer."""
    four, six, eight = times_of(tmp_path, HEADER, *(generated(new=new) for new in (4, 6, 8)))
    assert eight - six == pytest.approx(six - four, rel=0.02)


@pytest.mark.slow
def test_stages_without_microbatches_take_as_long_as_one(tmp_path: Path) -> None:
    one, two = times_of(tmp_path, HEADER, generated(), generated(pp=2))
    assert one < two < 1.5 * one


@pytest.mark.slow
def test_padding_is_not_computed_where_it_is_removed(tmp_path: Path) -> None:
    line = "A100-SXM4-80GB,encode,fp16,small,1024,4,8,128,32,{tokens},,,1,1,1000,,,ft-bert6b"
    packed, whole = times_of(tmp_path, HEADER, line.format(tokens=1000), line.format(tokens=4096))
    assert packed < 0.7 * whole


def test_what_cannot_be_answered_says_why(tmp_path: Path) -> None:
    plain = "A100-SXM4-80GB,generate,{dtype},m,{hidden},4,8,,1,,16,4,{tp},1,1000,,{impl},x"
    lines = [
        plain.format(dtype="int4", hidden=1024, tp=1, impl=""),
        plain.format(dtype="fp16", hidden="", tp=1, impl=""),
        plain.format(dtype="fp16", hidden=1024, tp=1, impl="Megatron"),
        plain.format(dtype="fp16", hidden=1024, tp=3, impl=""),
        "A100-SXM4-80GB,pray,fp16,m,1024,4,8,,1,,16,4,1,1,1000,,,x",
    ]
    expected = [
        "no dtype of a model for int4",
        "are of a model with hidden, layers and heads",
        "Megatron's own generation",
        "heads (8) must be divisible by tensor parallel size (3)",
        "no composition of a pray from layers",
    ]
    for row, why_not in zip(rows_of(tmp_path, HEADER, *lines), expected, strict=True):
        answer = PREDICTOR.predict(row)
        assert answer.time_us is None
        assert why_not in answer.why_not


def test_a_stack_changes_a_machine_by_named_numbers_only() -> None:
    machine = load_machine("a100-sxm-80g", 8)
    assert Stack().adapted(machine, 8) is machine
    adapted = Stack(launch_us=5.5, collective_us=8, collective_us_per_doubling=10).adapted(
        machine, 8
    )
    assert adapted.sip.host_launch_us == 5.5
    before, after = machine.spec.collectives, adapted.spec.collectives
    assert before is not None
    assert after is not None
    for name, protocol in before.protocols.items():
        assert after.protocols[name].launch_us == protocol.launch_us + 38
        assert after.protocols[name].bandwidth_share == protocol.bandwidth_share
    assert adapted.sip.cube == machine.sip.cube
    assert adapted.sip.pe == machine.sip.pe


@pytest.mark.parametrize(
    ("source", "batch", "tokens", "stages", "parts"),
    [
        ("ft-gpt20b", 256, 20, 1, 4),
        ("ft-530b", 32, 128, 3, 2),
        ("ft-530b", 256, 1, 3, 1),
        ("ft-530b", 12, 128, 3, 3),
        ("ft-bert6b", 32, 1024, 1, 1),
        ("ft-bert6b", 32, 1024, 2, 32),
    ],
)
def test_batches_are_cut_as_the_stack_cuts_them(
    source: str, batch: int, tokens: int, stages: int, parts: int
) -> None:
    assert STACKS[source].microbatches(batch, tokens, stages) == parts
