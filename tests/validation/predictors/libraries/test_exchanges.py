"""Which rows of exchanges of experts' rows are answered, and near which measurements."""

from pathlib import Path

import pytest

from kernbench.accuracy.rows import Ran
from kernbench.accuracy.rows.reference import read_rows
from validation.predictors.registry import make_predictor

HEAD = "source,device,op,dtype,n_ranks,n_nodes,network,bytes,time_us,gbps,busbw_gbps,impl,note"


@pytest.mark.parametrize(
    ("device", "nodes", "impl", "note", "why_not"),
    [
        ("B200-SXM", 1, "DeepEP normal", "; SMs 24", ""),
        ("B200-SXM", 1, "DeepEP low-latency", "", ""),
        ("H100-SXM-80GB", 1, "DeepEP low-latency", "", ""),
        ("B200-SXM", 1, "DeepEP normal", "", "the source does not say how many SMs make"),
        ("B200-SXM", 2, "DeepEP normal", "; SMs 24", "no preset of the links between this source"),
        ("B200-SXM", 1, "Two-sided", "", "no model of moe_dispatch by Two-sided"),
        ("B200-SXM", 3, "DeepEP normal", "; SMs 24", "8 ranks are not 3 equal nodes"),
        ("A100-SXM4-80GB", 1, "DeepEP low-latency", "", "none is known on a100-sxm-80g"),
        ("no-such-device", 1, "DeepEP low-latency", "", "no-such-device"),
    ],
)
def test_exchanges_on_one_switch_are_run_or_say_why_not(
    tmp_path: Path, device: str, nodes: int, impl: str, note: str, why_not: str
) -> None:
    path = tmp_path / "rows.csv"
    said = f"tokens/rank 256, hidden 4096, topk 8, experts 128{note}"
    path.write_text(f'{HEAD}\ns,{device},moe_dispatch,fp8,8,{nodes},NVLink,,40,,,{impl},"{said}"\n')
    (row,) = read_rows([path])
    answer = make_predictor(row.category).predict(row)
    assert why_not in answer.why_not
    assert (answer.time_us is None) == bool(why_not)
    if answer.time_us is not None:
        assert answer.ran is Ran.COLLECTIVE
        assert 10 < answer.time_us < 200


# A row of each exchange that was measured, and what it takes.
# Source: ai-dynamo/aiconfigator @095f58a, Apache-2.0.
MEASURED = [
    ("H100-SXM-80GB", "moe_dispatch", "fp8", 32, 4, "DeepEP normal", 4096, "; SMs 8", 2502.0),
    ("H100-SXM-80GB", "moe_combine", "bf16", 16, 2, "DeepEP normal", 4096, "; SMs 16", 2560.0),
    # One switch: tile-ai/tilescale, examples/distributed/deepseek_deepep (32 experts there).
    ("H100-SXM-80GB", "moe_combine", "bf16", 8, 1, "DeepEP normal", 4096, "; SMs 20", 1155.2),
    ("H100-SXM-80GB", "moe_combine", "bf16", 32, 4, "DeepEP normal", 64, "; SMs 24", 139.3),
    ("H100-SXM-80GB", "moe_dispatch", "fp8", 64, 8, "DeepEP low-latency", 128, "", 166.8),
    ("H200-SXM-141GB", "moe_combine", "bf16", 16, 2, "DeepEP low-latency", 8, "", 36.2),
    ("GB200-SXM", "moe_alltoall_prepare", "fp8", 32, 8, "NVLinkTwoSided", 2048, "", 27.9),
    ("GB200-SXM", "moe_alltoall_dispatch", "fp8", 8, 2, "NVLinkTwoSided", 1024, "", 105.7),
    ("GB200-SXM", "moe_alltoall_combine", "nvfp4", 64, 16, "NVLinkTwoSided", 1024, "", 250.8),
    ("GB200-SXM", "moe_alltoall_combine", "nvfp4", 16, 4, "NVLinkOneSided", 4096, "", 705.3),
]


def test_exchanges_between_nodes_and_in_racks_are_near_their_measurements(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    lines = [
        f"aic-deepep,{device},{op},{dtype},{ranks},{nodes},,,{us},,,{impl},"
        f'"tokens/rank {tokens}, hidden 7168, topk 8, experts 256{pes}"'
        for device, op, dtype, ranks, nodes, impl, tokens, pes, us in MEASURED
    ]
    path.write_text("\n".join([HEAD, *lines]))
    for row in read_rows([path]):
        answer = make_predictor(row.category).predict(row)
        assert answer.time_us == pytest.approx(row.time_us, rel=0.1), (str(row), answer)


@pytest.mark.parametrize(
    ("op", "dtype", "ranks", "impl", "why_not"),
    [
        ("moe_alltoall_dispatch", "fp8", 144, "NVLinkTwoSided", "machine gb200 has 72 SIPs"),
        ("moe_alltoall_dispatch", "int3", 8, "NVLinkTwoSided", "no item size for dtype int3"),
        ("moe_dispatch", "fp8", 8, "DeepEP normal", "no preset of the links between"),
    ],
)
def test_what_was_not_measured_is_not_answered(
    tmp_path: Path, op: str, dtype: str, ranks: int, impl: str, why_not: str
) -> None:
    path = tmp_path / "rows.csv"
    note = "tokens/rank 64, hidden 7168, topk 8, experts 288; SMs 24"
    line = f'somebody,GB200-SXM,{op},{dtype},{ranks},2,,,40,,,{impl},"{note}"'
    path.write_text(f"{HEAD}\n{line}\n")
    (row,) = read_rows([path])
    answer = make_predictor(row.category).predict(row)
    assert answer.time_us is None
    assert why_not in answer.why_not
