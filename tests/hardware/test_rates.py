from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench.hardware import ceil_ps, cycles_ps, transfer_ps

RATES = st.fractions(min_value=Fraction(1, 100), max_value=100_000, max_denominator=1000)


@pytest.mark.adr("0003-D2")
@given(size_bytes=st.integers(0, 1 << 50), gbps=RATES)
def test_a_transfer_is_the_exact_quotient_rounded_up(size_bytes: int, gbps: Fraction) -> None:
    exact = Fraction(size_bytes) * 10**12 / (gbps * 10**9)
    assert exact <= transfer_ps(size_bytes, gbps) < exact + 1


@pytest.mark.adr("0003-D1")
def test_a_partial_picosecond_is_a_whole_one_and_an_integer() -> None:
    assert transfer_ps(1, Fraction(3)) == 334
    assert cycles_ps(1, Fraction("1.5")) == 667
    assert ceil_ps(Fraction(7, 2)) == 4
    assert all(isinstance(value, int) for value in (transfer_ps(1, Fraction(3)), ceil_ps(RATE)))


RATE = Fraction(1, 7)


@given(pieces=st.lists(st.integers(0, 1 << 30), min_size=1, max_size=8), gbps=RATES)
def test_cutting_a_transfer_in_pieces_is_never_faster(pieces: list[int], gbps: Fraction) -> None:
    assert sum(transfer_ps(piece, gbps) for piece in pieces) >= transfer_ps(sum(pieces), gbps)
