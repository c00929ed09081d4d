"""How a source's rows were launched: hosts, medians of releases, rows that are not aligned."""

from pathlib import Path

from kernbench.accuracy.rows.devices import presets
from kernbench.accuracy.rows.reference import read_rows
from validation.predictors.gemm import GemmPredictor
from validation.sources.launching import Launching, launching

STACK = "source,device,op,framework,kernel,dtype,m,n,k,time_us,n_releases\n"
VLLM = {"framework": "vllm", "dtype": "fp8_block", "kernel": "vllm_default"}


def test_releases_of_a_machine_have_their_own_entry_before_all_others() -> None:
    two, three = (launching(VLLM | {"n_releases": n}, "gb200") for n in ("2", "3"))
    assert two != three
    one, two, other = (launching(VLLM | {"n_releases": n}, "h100-sxm") for n in ("1", "2", "5"))
    assert one == other
    assert two.added_us > one.added_us
    assert launching(VLLM | {"n_releases": "1"}, "a100-sxm-80g") == Launching()
    assert launching({"n_releases": "2"}, "h100-sxm") == Launching()


def test_an_entry_without_a_machine_or_a_kernel_is_for_all_others() -> None:
    rows = {"framework": "trtllm", "dtype": "fp8", "kernel": "torch_flow"}
    alike = {launching(rows, machine).added_us for machine in ("h200", "b200", "l40s")}
    assert len(alike) == 1
    assert min(alike) > 0


def test_unaligned_rows_cost_the_host_where_it_launches_and_the_device_in_a_graph() -> None:
    eager, graph = Launching(host_us=100, unaligned_us=7), Launching(unaligned_us=7)
    assert [eager.host_of(m, 512) for m in (4, 5)] == [100, 107]
    assert [graph.device_of(m, 512) for m in (4, 5)] == [0, 7]
    assert eager.device_of(5, 512) == graph.host_of(5, 512) == 0
    # One block of K has one column of scales, which needs no new layout.
    assert graph.device_of(5, 128) == 0


def test_a_median_shows_its_share_of_what_a_graph_saves(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    line = "aic-gemm-2,H200-SXM-141GB,gemm,vllm,vllm_default,fp8_block,{m},{m},512,1,4\n"
    path.write_text(STACK + "".join(line.format(m=m) for m in (8, 32768)))
    predictor = GemmPredictor(presets())
    told = launching(VLLM, "h200")
    small, large = (predictor.measured(row) for row in read_rows([path]))
    assert small.least_share == told.share < 1
    device_us = (small.time_us() - told.share * told.host_us) / (1 - told.share)
    assert 0 < device_us < told.host_us
    assert large.time_us() > told.host_us
