"""Exchanges of experts' rows: closed forms of copies, links and network interfaces."""

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench.errors import KernbenchError, MachineError, UnknownNameError, UsageError
from kernbench.hardware import ExchangeKernel, changed_machine, kernel_constants, load_machine
from kernbench.hardware.exchange_kernels import load_exchanges
from kernbench.links import ExpertExchange, exchange_kernel, exchange_ps
from tests.tiers import examples

WIRES = {"links.latency_ns": 0, "links.bandwidth_gbps": 100}
H200 = changed_machine(load_machine("h200:8"), WIRES)
NODES = changed_machine(
    load_machine("h200:32"),
    {**WIRES, "links.scale_out.latency_ns": 0, "links.scale_out.bandwidth_gbps": 10},
)
ALONE = changed_machine(load_machine("h200:1"), {"links": None, "collectives": None, "sizes": [1]})
PLAIN = ExchangeKernel(launch_us=Fraction(10), source="a test", rows=0)
ASKED = ExpertExchange(tokens=64, row_bytes=100_000, topk=1, experts=64, ranks=8, pes=16)


def us(asked: ExpertExchange, machine: Any = H200, **changes: Any) -> float:
    return exchange_ps(machine, asked, PLAIN.model_copy(update=changes)) / 1e6


def test_links_carry_a_row_to_each_rank_that_a_token_meets() -> None:
    # 64 tokens, of which an eighth stays; 100,000 bytes are 1 us.
    assert us(ASKED) == pytest.approx(10 + 64 * 7 / 8, rel=1e-3)
    # Two of 64 experts are of one rank of 8 with 7 chances in 63.
    two = replace(ASKED, topk=2)
    assert us(two) == pytest.approx(10 + 64 * (1 + 56 / 63) * 7 / 8, rel=1e-3)
    assert us(two, each_choice=True) == pytest.approx(10 + 64 * 2 * 7 / 8, rel=1e-3)
    assert us(replace(two, balanced=True)) == us(two, each_choice=True)
    assert us(ASKED, link_share=Fraction(1, 2)) == pytest.approx(10 + 64 * 7 / 4, rel=1e-3)


def test_pes_copy_all_rows_and_are_waited_for_where_they_are_slower() -> None:
    # 64 rows by 16 PEs, each of 4 us and 100,000 bytes at 5 GB/s.
    slow = {"pe_row_us": Fraction(4), "pe_gbps": Fraction(5)}
    assert us(ASKED, **slow) == pytest.approx(10 + 64 / 16 * 24, rel=1e-3)
    assert us(replace(ASKED, pes=1000), **slow) == us(ASKED)
    # Without a number of PEs: a group of warps for every expert, one or more groups to a PE.
    few = replace(ASKED, pes=None, experts=8)
    assert us(few, **slow) == pytest.approx(10 + 64 / 8 * 24, rel=1e-3)


def test_between_nodes_a_token_goes_once_to_each_node_and_on_in_pieces() -> None:
    asked = replace(ASKED, topk=8, ranks=32, pes=2)
    met = asked.met(4)
    sent_us = 64 * met * 3 / 4 * 10
    straight = us(replace(asked, topk=1), NODES)
    assert straight == pytest.approx(10 + 64 * 3 / 4 * 10, rel=0.01)
    rails = us(asked, NODES, filling_tokens=Fraction(1))
    # A piece of a row each for three nodes and seven ranks; the rest follows over the interface.
    assert rails == pytest.approx(10 + sent_us + 7, rel=0.01)
    back = us(replace(asked, gathers=True), NODES, filling_tokens=Fraction(1))
    assert back == pytest.approx(rails, rel=0.01)
    crowd = {"crowded_nodes": 4, "crowded_share": Fraction(1, 2), "calm_us": Fraction(100)}
    crowded = us(asked, NODES, filling_tokens=Fraction(1), **crowd)
    assert crowded == pytest.approx(10 + 2 * sent_us - 100 + 7, rel=0.02)


@examples(25)
@given(
    tokens=st.integers(1, 10_000),
    topk=st.integers(1, 16),
    more=st.sampled_from(["tokens", "row_bytes", "topk"]),
    by=st.integers(1, 100),
)
def test_more_to_send_is_never_faster(tokens: int, topk: int, more: str, by: int) -> None:
    one = replace(ASKED, tokens=tokens, topk=topk, ranks=32)
    rails = PLAIN.model_copy(update={"filling_tokens": Fraction(8), "pe_gbps": Fraction(20)})
    other = replace(one, **{more: min(getattr(one, more) + by, 64 if more == "topk" else 1e9)})
    assert exchange_ps(NODES, one, rails) <= exchange_ps(NODES, other, rails) * 1.0001


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: replace(ASKED, tokens=0), UsageError, "tokens must be at least 1, but got 0"),
        (lambda: replace(ASKED, row_bytes=float("nan")), UsageError, "row_bytes must be"),
        (lambda: replace(ASKED, topk=65), UsageError, "topk is 65, but there are 64 experts"),
        (lambda: replace(ASKED, experts=7), UsageError, "7 experts leave some of 8 ranks"),
        (lambda: us(replace(ASKED, ranks=9)), UsageError, "9 ranks were asked for, but machine"),
        (lambda: us(replace(ASKED, ranks=12), NODES), UsageError, "not whole nodes of 8"),
        (
            lambda: us(ASKED, ALONE),
            MachineError,
            "machine h200.* has no links",
        ),
        (
            lambda: exchange_kernel(H200, "deepep_dispach", 8),
            UnknownNameError,
            "did you mean deepep_dispatch",
        ),
        (
            lambda: exchange_kernel(load_machine("a100-sxm-80g"), "deepep_dispatch", 8),
            UnknownNameError,
            "none is known on a100-sxm-80g",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_exchanged_is_said(
    call: Callable[[], object], error: type[KernbenchError], message: str
) -> None:
    with pytest.raises(error, match=message):
        call()


@pytest.mark.adr("0264-D1")
def test_constants_are_data_with_their_source_and_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    for architecture in ("sm90", "sm100"):
        for name, kernel in load_exchanges(architecture).items():
            assert kernel.source.startswith(("fitted to", "assumed", "tile-ai")), name
            assert (kernel.rows > 0) != kernel.source.startswith("assumed"), name
    load_exchanges.cache_clear()
    monkeypatch.setattr(kernel_constants, "parse_yaml", lambda *_, **__: {"kernels": {"x": {}}})
    with pytest.raises(MachineError, match=r"exchanges/sm90.yaml: kernels.x.launch_us: Field"):
        load_exchanges("sm90")
    load_exchanges.cache_clear()


@pytest.mark.parametrize(
    ("ranks", "dispatch_us", "combine_us"), [(8, 77, 114), (16, 118, 195), (64, 173, 314)]
)
def test_exchanges_for_decode_are_close_to_what_their_authors_published(
    ranks: int, dispatch_us: float, combine_us: float
) -> None:
    """128 tokens of 7,168 to 8 of 288 experts, on H800s: half of the links of an H100.

    Source: deepseek-ai/DeepEP @dd758ca, docs/legacy.md; nothing was fitted to it.
    """
    nodes = "h100-sxm:8" if ranks == 8 else f"h100-sxm:{ranks // 8}x8"
    machine = changed_machine(load_machine(nodes), {"links.bandwidth_gbps": 200})
    for way, bytes_each, published_us in (
        ("dispatch", 1 + 4 / 128, dispatch_us),
        ("combine", 2.0, combine_us),
    ):
        asked = ExpertExchange(
            tokens=128, row_bytes=7168 * bytes_each, topk=8, experts=288, ranks=ranks,
            gathers=way == "combine",
        )  # fmt: skip
        kernel = exchange_kernel(machine, f"deepep_decode_{way}", ranks)
        assert exchange_ps(machine, asked, kernel) / 1e6 == pytest.approx(published_us, rel=0.16)
