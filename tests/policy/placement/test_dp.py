from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench.errors import UsageError
from kernbench.hardware import load_machine
from kernbench.policy import DPPolicy, Placement

SIP = load_machine("ahbm", 1).sip
LAYOUTS = st.sampled_from(["replicate", "row_wise", "column_wise"])


@pytest.mark.adr("0026-D1")
@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"num_cubes": 5}, "num_cubes is 5, but there are 4 cubes in a SIP"),
        ({"num_pes": 9}, "num_pes is 9, but there are 8 PEs in a cube"),
    ],
)
def test_a_policy_never_reaches_beyond_its_sip(asked: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        DPPolicy(**asked).resolve(SIP)


@pytest.mark.adr("0026-D2")
@given(
    cube=LAYOUTS,
    pe=LAYOUTS,
    num_cubes=st.integers(1, 4),
    num_pes=st.integers(1, 8),
    rows=st.integers(0, 20),
    columns=st.integers(0, 20),
)
def test_pieces_cover_each_element_once_per_replica(
    cube: Any, pe: Any, num_cubes: int, num_pes: int, rows: int, columns: int
) -> None:
    policy = DPPolicy(cube, pe, num_cubes, num_pes)
    owners = np.zeros((rows, columns), dtype=int)
    pieces = policy.pieces(SIP, rows, columns)
    for piece in pieces:
        owners[slice(*piece.rows), slice(*piece.columns)] += 1
    copies = (num_cubes if cube == "replicate" else 1) * (num_pes if pe == "replicate" else 1)
    assert (owners == copies).all()
    assert len(pieces) == num_cubes * num_pes


@pytest.mark.adr("0026-D3")
@pytest.mark.parametrize(
    ("policy", "copies", "remote"),
    [
        (DPPolicy(), 4, Fraction(0)),
        (DPPolicy(cube="row_wise"), 1, Fraction(3, 4)),
        (DPPolicy(cube="column_wise", num_cubes=2), 1, Fraction(1, 2)),
        (DPPolicy(cube="row_wise", num_cubes=1), 1, Fraction(0)),
    ],
)
def test_only_what_lies_in_another_cube_is_remote(
    policy: DPPolicy, copies: int, remote: Fraction
) -> None:
    place = policy.resolve(SIP)
    assert (place.copies, place.remote_fraction) == (copies, remote)


def test_a_tensor_without_a_policy_is_spread_over_all_cubes() -> None:
    assert Placement.interleaved(SIP) == DPPolicy(cube="row_wise").resolve(SIP)
    assert Placement.interleaved(load_machine("a100-sxm-80g", 1).sip).remote_fraction == 0


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"cube": "diagonal"}, "cube must be one of .* but got 'diagonal'"),
        ({"pe": None}, "pe must be one of"),
        ({"num_cubes": 0}, "num_cubes must be at least 1, but got 0"),
        ({"num_pes": -1}, "num_pes must be at least 1, but got -1"),
    ],
)
def test_a_policy_that_says_nothing_is_refused(asked: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        DPPolicy(**asked)
