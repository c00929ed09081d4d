"""Flash attention's tiles against brute force over queries and keys."""

from hypothesis import given
from hypothesis import strategies as st

from kernbench.library_kernels import AttentionProblem, FlashKernel, flash_forward

KERNEL = FlashKernel(name="test", block_m=16, block_n=8)


def blocks_seen(problem: AttentionProblem) -> int:
    """Blocks of keys of which some query of a tile sees one, over all tiles."""
    found = 0
    offset = problem.kv_len - problem.q_len
    for first in range(0, problem.q_len, KERNEL.block_m):
        queries = range(first, min(first + KERNEL.block_m, problem.q_len))
        seen = {
            key // KERNEL.block_n
            for query in queries
            for key in range(problem.kv_len)
            if not problem.causal or key <= query + offset
        }
        found += max(len(seen), 1)
    return found * problem.batch * problem.heads


@given(st.integers(1, 3), st.integers(1, 70), st.integers(0, 50), st.booleans())
def test_tiles_go_over_the_keys_that_their_queries_see(
    batch: int, q_len: int, more: int, causal: bool
) -> None:
    problem = AttentionProblem(
        batch=batch, q_len=q_len, kv_len=q_len + more, heads=4, kv_heads=2, head_dim=64,
        causal=causal,
    )  # fmt: skip
    kernel = flash_forward(problem, KERNEL)
    assert sum(each.count * each.trips for each in kernel.tiles) == blocks_seen(problem)
    assert kernel.num_tiles == -(-q_len // 16) * batch * 4


def test_packed_groups_fill_tiles_with_the_rows_of_heads_that_share_keys() -> None:
    problem = AttentionProblem(batch=2, q_len=1, kv_len=64, heads=8, kv_heads=2, head_dim=64)
    packed = FlashKernel(name="test", block_m=16, block_n=8, packs_groups=True)
    assert flash_forward(problem, KERNEL).num_tiles == 16
    assert flash_forward(problem, packed).num_tiles == 4
