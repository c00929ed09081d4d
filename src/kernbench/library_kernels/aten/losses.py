"""The mean of a negative log-likelihood: one block for a whole batch (``Loss.cu``)."""

from __future__ import annotations

from kernbench.library_kernels.blocks import BlockLaunch, Sweep

_FEWEST, _MOST = 32, 1024
_ROWS_OF_THREAD = 16
_LABEL_BYTES, _SECTOR = 8, 32


def nll_loss(rows: int, by_few: bool) -> BlockLaunch:
    """Return the launch that sums one element of each row, which a label chooses.

    A thread loads the label of a row, and then the element that it names. ``by_few``: with a warp
    alone, as older releases did.
    """
    threads = _FEWEST
    if not by_few:
        wanted = 1 << max(round((max(rows // _ROWS_OF_THREAD, 1)).bit_length() - 1), 0)
        threads = min(max(wanted, _FEWEST), _MOST)
    return BlockLaunch(
        name="nll_loss",
        blocks=1,
        threads=threads,
        sweeps=(
            Sweep(loaded_bytes=rows * _LABEL_BYTES, under_way=threads * _LABEL_BYTES),
            Sweep(loaded_bytes=rows * _SECTOR, under_way=threads * _SECTOR),
        ),
        hbm_read_bytes=rows * (_LABEL_BYTES + _SECTOR),
    )
