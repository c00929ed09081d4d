"""Which rows are kept apart from fits."""

from pathlib import Path

from kernbench.accuracy.rows.predictor import part_of
from kernbench.accuracy.rows.reference import read_rows

HEAD = "source,device,op,dtype,n_ranks,n_nodes,network,bytes,time_us,impl,note"


def test_an_exchange_is_kept_apart_by_whole_curves(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    lines = [
        f's,H100-SXM-80GB,moe_dispatch,fp8,32,4,,,40,DeepEP normal,"tokens/rank {tokens}, hidden '
        f'{hidden}, topk 8, experts 256; SMs {pes}; plus notify {tokens}.5 us"'
        for hidden in (1024, 2048, 4096, 7168)
        for pes in (4, 8, 12, 16, 20, 24)
        for tokens in (1, 64, 4096)
    ]
    path.write_text("\n".join([HEAD, *lines]))
    parts = [part_of(row, 4) for row in read_rows([path])]
    curves = [set(parts[first : first + 3]) for first in range(0, len(parts), 3)]
    assert all(len(curve) == 1 for curve in curves)
    assert set(parts) == {0, 1, 2, 3}
