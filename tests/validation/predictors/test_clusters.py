"""Rows between nodes are answered by the machine that names their source.

See docs/model/collectives.md.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from kernbench.accuracy.rows.devices import presets
from kernbench.accuracy.rows.reference import read_rows
from validation.predictors.collectives import CollectivePredictor

HEAD = "device,op,dtype,n_ranks,n_nodes,bytes,time_us,tflops,gbps,busbw_gbps,impl,source\n"
# Source: aistabci/abci2.0benchmark @f0aa27f and the others of the table of sources.
ROWS = """\
A100-SXM4-40GB,all_reduce,fp32,16,2,64,33.23,,,,NCCL 2.8.4,abci2
A100-SXM4-40GB,all_reduce,fp32,32,4,64,43,,,,NCCL 2.8.4,abci2
A100-SXM4-40GB,all_reduce,fp32,128,16,64,63,,,,NCCL 2.8.4,abci2
V100-SXM2-16GB,all_reduce,fp32,64,16,64,51,,,,NCCL 2.8.4,abci2
H100-SXM-80GB,all_reduce,fp32,16,2,2147483648,12646,,,,NCCL,a3mega-2node
A100-SXM4-80GB,all_reduce,fp32,16,2,2147483648,51406,,,,nccl-tests,aws-nccl-readme
MI355X,all_reduce,fp32,16,2,2147483648,10989,,,,RCCL,hisohara-mi355x
"""


def test_all_reduces_between_nodes_are_near_their_measurements(tmp_path: Path) -> None:
    path = tmp_path / "collectives.csv"
    path.write_text(HEAD + ROWS)
    predictor = CollectivePredictor(presets())
    for row in read_rows([path]):
        answer = predictor.predict(row)
        assert answer.time_us is not None, answer.why_not
        assert answer.time_us == pytest.approx(row.time_us, rel=0.2), str(row)


def test_nodes_that_no_machine_describes_are_not_answered(tmp_path: Path) -> None:
    path = tmp_path / "collectives.csv"
    path.write_text(
        HEAD
        + "H100-SXM-80GB,all_reduce,fp32,16,2,64,33,,,,NCCL,somebody\n"
        + "A100-SXM4-40GB,all_reduce,fp32,17,2,64,33,,,,NCCL,abci2\n"
    )
    answers = [CollectivePredictor(presets()).predict(row) for row in read_rows([path])]
    assert [answer.time_us for answer in answers] == [None, None]
    assert "no preset of the links" in answers[0].why_not
    assert "17 ranks are not 2 equal nodes" in answers[1].why_not
