"""Operations of flash-linear-attention (``fla``) and their own plain definitions."""

from __future__ import annotations

import fla.ops
import torch
import torch.nn.functional as nf
from fla.ops.attn.naive import naive_parallel_attn
from fla.ops.based.naive import naive_parallel_based
from fla.ops.delta_rule.naive import delta_rule_recurrence
from fla.ops.forgetting_attn.naive import naive_forgetting_attn
from fla.ops.gated_delta_rule.naive import naive_recurrent_gated_delta_rule
from fla.ops.gla.naive import naive_recurrent_gla
from fla.ops.hgrn.naive import naive_recurrent_hgrn
from fla.ops.kda.naive import naive_recurrent_kda
from fla.ops.linear_attn.naive import naive_recurrent_linear_attn
from fla.ops.path_attn.naive import naive_path_attn
from fla.ops.retention.naive import naive_retention
from fla.ops.simple_gla.naive import naive_recurrent_simple_gla
from fla.ops.utils.cumsum import chunk_global_cumsum, chunk_local_cumsum
from fla.ops.utils.solve_tril import solve_tril

from tests.libraries.comparing import Case, check_same, normal

BATCH, LENGTH, HEADS, SIZE = 1, 128, 2, 64
# Products of the chunked kernels are of tf32, whose rounding the definitions do not have.
TOLERANCE = 5e-3


def _tokens(heads: int = HEADS, size: int = SIZE) -> torch.Tensor:
    return normal(BATCH, LENGTH, heads, size)


def _gates(*sizes: int) -> torch.Tensor:
    return nf.logsigmoid(normal(BATCH, LENGTH, *sizes))


def _heads_first(*tensors: torch.Tensor) -> list[torch.Tensor]:
    return [tensor.transpose(1, 2) for tensor in tensors]


def _unit(x: torch.Tensor) -> torch.Tensor:
    return nf.normalize(x, dim=-1)


def simple_gla() -> None:
    check_same(
        lambda q, k, v, g: fla.ops.chunk_simple_gla(q, k, v, g)[0],
        lambda q, k, v, g: naive_recurrent_simple_gla(q, k, v, g)[0],
        *(_tokens(), _tokens(), _tokens(), _gates(HEADS)),
        tolerance=TOLERANCE,
    )


def gla(is_chunked: bool) -> None:
    function = fla.ops.chunk_gla if is_chunked else fla.ops.fused_recurrent_gla
    check_same(
        lambda q, k, v, g: function(q, k, v, g)[0],
        lambda q, k, v, g: naive_recurrent_gla(q, k, v, g)[0],
        *(_tokens(), _tokens(), _tokens(), _gates(HEADS, SIZE)),
        tolerance=TOLERANCE,
    )


def retention(is_chunked: bool) -> None:
    function = fla.ops.chunk_retention if is_chunked else fla.ops.parallel_retention
    check_same(
        lambda q, k, v: function(q, k, v)[0],
        lambda q, k, v: naive_retention(*_heads_first(q, k, v)).transpose(1, 2),
        *(_tokens(), _tokens(), _tokens()),
        tolerance=TOLERANCE,
    )


def delta_rule() -> None:
    half = torch.bfloat16  # It takes no float32.

    def definition(
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, b: torch.Tensor
    ) -> torch.Tensor:
        first = _heads_first(q, _unit(k), v, b.sigmoid())
        return delta_rule_recurrence(*first)[0].transpose(1, 2)

    check_same(
        lambda q, k, v, b: fla.ops.chunk_delta_rule(q, _unit(k), v, b.sigmoid())[0],
        definition,
        *(token.to(half) for token in (_tokens(), _tokens(), _tokens())),
        normal(BATCH, LENGTH, HEADS).to(half),
        tolerance=3e-2,
    )


def gated_delta_rule() -> None:
    check_same(
        lambda q, k, v, b, g: fla.ops.chunk_gated_delta_rule(q, _unit(k), v, g=g, beta=b.sigmoid())[
            0
        ],
        lambda q, k, v, b, g: naive_recurrent_gated_delta_rule(q, _unit(k), v, b.sigmoid(), g)[0],
        *(_tokens(), _tokens(), _tokens(), normal(BATCH, LENGTH, HEADS), _gates(HEADS)),
        tolerance=TOLERANCE,
    )


def kda() -> None:
    check_same(
        lambda q, k, v, g, b: fla.ops.chunk_kda(q, _unit(k), v, g, b.sigmoid())[0],
        lambda q, k, v, g, b: naive_recurrent_kda(q, _unit(k), v, g, b.sigmoid())[0],
        *(_tokens(), _tokens(), _tokens(), _gates(HEADS, SIZE), normal(BATCH, LENGTH, HEADS)),
        tolerance=TOLERANCE,
    )


def hgrn() -> None:
    check_same(
        lambda x, g: fla.ops.fused_recurrent_hgrn(x, g)[0],
        lambda x, g: naive_recurrent_hgrn(x, g)[0],
        *(normal(BATCH, LENGTH, 100), _gates(100)),
        tolerance=TOLERANCE,
    )


def attention() -> None:
    def definition(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        attn = naive_parallel_attn(q, k, v)
        return attn[0] if isinstance(attn, tuple) else attn

    check_same(
        fla.ops.parallel_attn,
        definition,
        *(_tokens(4), _tokens(2), _tokens(2)),
        tolerance=TOLERANCE,
    )


def forgetting_attention() -> None:
    check_same(
        fla.ops.parallel_forgetting_attn,
        naive_forgetting_attn,
        *(_tokens(), _tokens(), _tokens(), _gates(HEADS)),
        tolerance=TOLERANCE,
    )


def path_attention() -> None:
    check_same(
        lambda q, k, v, w, b, g: fla.ops.parallel_path_attn(q, k, v, _unit(w), b.sigmoid(), g)[0],
        lambda q, k, v, w, b, g: naive_path_attn(q, k, v, _unit(w), b.sigmoid(), g, SIZE**-0.5),
        *(_tokens() for _ in range(4)),
        *(normal(BATCH, LENGTH, HEADS), _gates(HEADS)),
        tolerance=TOLERANCE,
    )


def linear_attention() -> None:
    check_same(
        lambda q, k, v: fla.ops.chunk_linear_attn(q, k, v, normalize=False)[0],
        lambda q, k, v: naive_recurrent_linear_attn(q, k, v)[0],
        *(_tokens(), _tokens(), _tokens()),
        tolerance=TOLERANCE,
    )


def based() -> None:
    check_same(
        fla.ops.parallel_based,
        lambda q, k, v: naive_parallel_based(*_heads_first(q, k, v)).transpose(1, 2),
        *(_tokens(size=16), _tokens(size=16), _tokens()),
        tolerance=TOLERANCE,
    )


def cumulative_sums() -> None:
    x = normal(2, 128, 4)
    pieces = x.view(2, 2, 64, 4).cumsum(2).view(2, 128, 4)
    torch.testing.assert_close(chunk_global_cumsum(x), x.cumsum(1))
    torch.testing.assert_close(chunk_local_cumsum(x, 64), pieces)


def triangular_inverse() -> None:
    below = torch.stack([(normal(64, 64) * 0.1).tril(-1) for _ in range(2)])
    tril = solve_tril(below.transpose(0, 1)[None].contiguous())
    expected = torch.linalg.inv(torch.eye(64, device="cuda") + below)
    torch.testing.assert_close(tril[0].transpose(0, 1), expected, rtol=1e-3, atol=1e-3)


CASES: dict[str, Case] = {
    "simple_gla": simple_gla,
    "gla, recurrent": lambda: gla(False),
    "gla, chunked": lambda: gla(True),
    "retention, chunked": lambda: retention(True),
    "retention, parallel": lambda: retention(False),
    "delta_rule": delta_rule,
    "gated_delta_rule": gated_delta_rule,
    "kda": kda,
    "hgrn": hgrn,
    "attention": attention,
    "forgetting_attention": forgetting_attention,
    "path_attention": path_attention,
    "linear_attention": linear_attention,
    "based": based,
    "cumulative_sums": cumulative_sums,
    "triangular_inverse": triangular_inverse,
}
