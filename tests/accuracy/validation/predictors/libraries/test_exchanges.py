"""Exchanges of experts' rows: closed forms of copies and links, and which rows are answered."""

from dataclasses import replace
from pathlib import Path

import pytest

from kernbench.accuracy.validation import make_predictor, read_rows
from kernbench.accuracy.validation.predictors.libraries.exchanges import (
    EXCHANGES,
    ExchangeConstants,
    ExpertExchange,
    decode_dispatch_us,
    dispatch_us,
)
from kernbench.errors import MachineError
from kernbench.hardware import changed_machine, load_machine

PLAIN = ExchangeConstants(
    start_us=10, copy_us=1, byte_us=0.001, least_us=5, expert_us=0.5, token_us=2,
    sent_byte_us=0.001, link_share=1,
)  # fmt: skip
ASKED = ExpertExchange(tokens=64, hidden=500, topk=1, experts=64, ranks=8, pes=16)
HEAD = "source,device,op,dtype,n_ranks,n_nodes,network,bytes,time_us,gbps,busbw_gbps,impl,note"


def test_a_token_is_copied_once_to_each_rank_that_has_one_of_its_experts() -> None:
    # 64 copies of 1 + 1000 / 1000 us, 16 at a time.
    assert dispatch_us(ASKED, PLAIN) == pytest.approx(10 + 64 / 16 * 2)
    # Two choices of a token are of one rank in one case of 8.
    two = dispatch_us(replace(ASKED, topk=2), PLAIN)
    assert two == pytest.approx(10 + 64 * (2 - 1 / 8) / 16 * 2)
    every = dispatch_us(replace(ASKED, topk=10_000), PLAIN)
    assert every == pytest.approx(10 + 64 * 8 / 16 * 2)


def test_few_experts_leave_few_groups_of_warps_to_send() -> None:
    h200 = load_machine("h200")
    packed = 500 * (1 + 4 / 128)
    few, many = (decode_dispatch_us(replace(ASKED, experts=each), PLAIN, h200) for each in (8, 64))
    assert few == pytest.approx(5 + 4 + 8 * (2 + packed / 1000))
    assert many == pytest.approx(5 + 32 + 1 * (2 + packed / 1000))


def test_links_decide_where_they_are_slower_than_the_groups() -> None:
    h200 = load_machine("h200")
    many = replace(ASKED, tokens=1320, topk=8, experts=132, hidden=7168)
    sent = 8 * 7168 * (1 + 4 / 128)
    slow = replace(PLAIN, link_share=0.01)
    assert decode_dispatch_us(many, PLAIN, h200) == pytest.approx(5 + 66 + 10 * (2 + sent / 1000))
    assert decode_dispatch_us(many, slow, h200) == pytest.approx(5 + 66 + 1320 * sent / 4500)


def test_a_machine_without_links_is_named() -> None:
    alone = {"links": None, "collectives": None, "sizes": [1]}
    h200 = changed_machine(load_machine("h200:1"), alone)
    with pytest.raises(MachineError, match="has no links"):
        decode_dispatch_us(ASKED, PLAIN, h200)


@pytest.mark.parametrize(
    ("device", "nodes", "impl", "note", "why_not"),
    [
        ("B200-SXM", 1, "DeepEP normal", "; SMs 24", ""),
        ("B200-SXM", 1, "DeepEP low-latency", "", ""),
        ("H100-SXM-80GB", 1, "DeepEP low-latency", "", ""),
        ("B200-SXM", 1, "DeepEP normal", "", "the source does not say how many SMs make"),
        ("B200-SXM", 2, "DeepEP normal", "; SMs 24", "no model of moe_dispatch by DeepEP normal"),
        ("B200-SXM", 1, "Two-sided", "", "no model of moe_dispatch by Two-sided"),
        ("A100-SXM4-80GB", 1, "DeepEP low-latency", "", "on an architecture without rows"),
        ("no-such-device", 1, "DeepEP low-latency", "", "no-such-device"),
    ],
)
def test_exchanges_on_one_switch_are_answered(
    tmp_path: Path, device: str, nodes: int, impl: str, note: str, why_not: str
) -> None:
    path = tmp_path / "rows.csv"
    said = f"tokens/rank 256, hidden 4096, topk 8, experts 128{note}"
    path.write_text(f'{HEAD}\ns,{device},moe_dispatch,fp8,8,{nodes},NVLink,,40,,,{impl},"{said}"\n')
    (row,) = read_rows([path])
    answer = make_predictor(row.category).predict(row)
    if why_not:
        assert answer.time_us is None
        assert why_not in answer.why_not
    else:
        assert answer.time_us is not None
        assert 10 < answer.time_us < 200


def test_constants_are_of_architectures_that_machines_name() -> None:
    assert set(EXCHANGES) <= {
        load_machine(each).spec.kernel_library for each in ("h100-sxm", "b200")
    }
