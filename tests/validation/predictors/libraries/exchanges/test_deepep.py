"""DeepEP's exchanges: closed forms of copies, links and network interfaces."""

from dataclasses import replace

import pytest

from kernbench.errors import MachineError
from kernbench.hardware import changed_machine, load_machine
from validation.predictors.libraries.exchanges.asked import ExpertExchange
from validation.predictors.libraries.exchanges.deepep import (
    EXCHANGES,
    RAILS,
    ExchangeConstants,
    RailConstants,
    Transport,
    decode_between_us,
    decode_us,
    prompts_between_us,
    prompts_us,
)

PLAIN = ExchangeConstants(
    start_us=10, copy_us=1, byte_us=0.001, least_us=5, expert_us=0.5, token_us=2,
    sent_byte_us=0.001, link_share=1,
)  # fmt: skip
ASKED = ExpertExchange(tokens=64, hidden=500, topk=1, experts=64, ranks=8, pes=16)


def test_a_token_is_copied_once_to_each_rank_that_has_one_of_its_experts() -> None:
    # 64 copies of 1 + 1000 / 1000 us, 16 at a time.
    assert prompts_us(ASKED, PLAIN) == pytest.approx(10 + 64 / 16 * 2)
    # Two choices of a token are of one rank in one case of 8.
    two = prompts_us(replace(ASKED, topk=2), PLAIN)
    assert two == pytest.approx(10 + 64 * (2 - 1 / 8) / 16 * 2)
    every = prompts_us(replace(ASKED, topk=10_000), PLAIN)
    assert every == pytest.approx(10 + 64 * 8 / 16 * 2)


def test_few_experts_leave_few_groups_of_warps_to_send() -> None:
    h200 = load_machine("h200")
    packed = 500 * (1 + 4 / 128)
    few, many = (decode_us(replace(ASKED, experts=each), PLAIN, h200) for each in (8, 64))
    assert few == pytest.approx(5 + 4 + 8 * (2 + packed / 1000))
    assert many == pytest.approx(5 + 32 + 1 * (2 + packed / 1000))


def test_links_decide_where_they_are_slower_than_the_groups() -> None:
    h200 = load_machine("h200")
    many = replace(ASKED, tokens=1320, topk=8, experts=132, hidden=7168)
    sent = 8 * 7168 * (1 + 4 / 128)
    slow = replace(PLAIN, link_share=0.01)
    assert decode_us(many, PLAIN, h200) == pytest.approx(5 + 66 + 10 * (2 + sent / 1000))
    assert decode_us(many, slow, h200) == pytest.approx(5 + 66 + 1320 * sent / 4500)


def test_a_machine_without_links_is_named() -> None:
    alone = {"links": None, "collectives": None, "sizes": [1]}
    h200 = changed_machine(load_machine("h200:1"), alone)
    with pytest.raises(MachineError, match="has no links"):
        decode_us(ASKED, PLAIN, h200)


WAY = Transport(start_us=20, doubling_us=5, pe_bytes_per_us=1000)
RAIL = RailConstants(
    dispatch=replace(WAY, start_us=10), combine=WAY, interface_share=0.5, filling_tokens=4,
    calm_nodes=2, crowded_share=0.5, calm_us=100,
    decode_start_us=3, decode_doubling_us=1, decode_dispatch_share=0.25, decode_combine_share=0.5,
)  # fmt: skip
FAR = ExpertExchange(tokens=1000, hidden=1000, topk=1, experts=16, ranks=16, nodes=2, pes=4)
ROW = 1000 * (1 + 4 / 128)


def test_rows_between_nodes_go_by_the_slower_of_pes_and_interfaces() -> None:
    # One choice: a row of the node and one of the rank for the PEs, half of them on the network.
    pes_us, port_us = 1000 * 2 * ROW / (4 * 1000), 1000 * 0.5 * ROW / (0.5 * 2000)
    filling = 4 * 2 / 1000  # Four tokens of each of two channels are moved one after the other.
    assert prompts_between_us(FAR, RAIL, 2000) == pytest.approx(15 + pes_us + filling * port_us)
    slow_us = 10 * port_us
    assert prompts_between_us(FAR, RAIL, 200) == pytest.approx(15 + slow_us + filling * pes_us)
    # Outputs come back as they are, and start later.
    back = replace(FAR, gathers=True, tokens=8)
    assert prompts_between_us(back, RAIL, 2000) == pytest.approx(
        25 + 8 * 2000 * (2 / 4000 + 0.5e-3)
    )


def test_many_choices_meet_every_node_once_and_no_more() -> None:
    many = replace(FAR, topk=10_000, pes=10_000, tokens=10**6)
    port_us = 10**6 * (2 * 0.5) * ROW / (0.5 * 2000)
    pes_us = 10**6 * (2 + 16) * ROW / (10_000 * 1000)
    filling = 4 * 5000 / 10**6
    assert prompts_between_us(many, RAIL, 2000) == pytest.approx(15 + port_us + filling * pes_us)


def test_more_nodes_than_the_network_is_calm_with_slow_interfaces_down() -> None:
    crowd = replace(FAR, nodes=4, pes=10**6, tokens=10**5)
    port_us = 10**5 * 0.75 * ROW / (0.5 * 2000)
    found = prompts_between_us(crowd, RAIL, 2000)
    pes_us = 10**5 * 2 * ROW / (10**6 * 1000)
    assert found == pytest.approx(20 + port_us / 0.5 - 100 + pes_us)
    few = replace(crowd, tokens=10)
    calm_us = 10 * 0.75 * ROW / 1000 + 10 * 2 * ROW / 10**9
    assert prompts_between_us(few, RAIL, 2000) == pytest.approx(20 + calm_us)


def test_choices_of_decode_each_take_the_interface() -> None:
    asked = replace(FAR, topk=4, pes=None)
    away = 1000 * 4 * 0.5
    assert decode_between_us(asked, RAIL, 100) == pytest.approx(4 + away * ROW / 25)
    back = replace(asked, gathers=True, nodes=8)
    assert decode_between_us(back, RAIL, 100) == pytest.approx(6 + 1000 * 4 * 7 / 8 * 2000 / 50)


def test_constants_are_of_architectures_that_machines_name() -> None:
    assert {*EXCHANGES, *RAILS} <= {
        load_machine(each).spec.kernel_library for each in ("h100-sxm", "b200")
    }
