"""``--energy`` and ``--price`` of runs, kept runs and runs timed anew."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from tests.cli.command_line import PRODUCTS, kernbench


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("energy")
    (folder / "bench.py").write_text(PRODUCTS)
    done = kernbench(
        *("run", folder / "bench.py", "--machine", "h100-sxm:1", "--energy", "--price", "3.60"),
        *("--save", folder / "kept.run", "--json", folder / "report.json"),
    )
    assert done.exit_code == 0, done.output
    for said in ("where the energy went", "1 device of h100-sxm: ", " W on average, ", " USD"):
        assert said in done.output
    return folder


@pytest.mark.adr("0160-D4")
def test_a_price_is_per_device_and_hour(folder: Path) -> None:
    report = json.loads((folder / "report.json").read_text())
    assert report["cost_usd"] == pytest.approx(report["time_ns"] / 1e9 / 1000)


@pytest.mark.adr("0160-D3")
def test_a_kept_run_has_the_energy_of_its_report(folder: Path) -> None:
    report = json.loads((folder / "report.json").read_text())
    kept = json.loads(kernbench("why", folder / "kept.run", "--energy", "--json", "-").output)
    assert kept.pop("cost_usd") == report["cost_usd"]
    assert kept == report["energy"]
    shown = kernbench("why", folder / "kept.run", "--energy")
    for said in ("idle", "matmul", "HBM"):
        assert said in shown.output


@pytest.mark.adr("0160-D2")
def test_a_run_is_timed_anew_under_a_cap_and_why_names_what_it_costs(folder: Path) -> None:
    done = kernbench(
        *("retime", folder / "kept.run", "--set", "sip.power.cap_w=90", "--energy"),
        *("--save", folder / "capped.run"),
    )
    assert done.exit_code == 0, done.output
    why = json.loads(kernbench("why", folder / "capped.run", "--json", "-").output)
    spent = {item["resource"]: item["time_ns"] for item in why["spent"] if item["name"] == "matmul"}
    assert spent["power"] > 0
    again = kernbench(
        *("run", folder / "bench.py", "--machine", "h100-sxm:1", "--set", "sip.power.cap_w=90"),
        *("--json", "-"),
    )
    assert json.loads(again.stdout)["time_ns"] == why["time_ns"]


def test_what_has_no_energy_is_refused_with_what_to_do(folder: Path) -> None:
    refused = kernbench("run", folder / "bench.py", "--set", "sip.power=null", "--energy")
    assert refused.exit_code == 2, refused.output
    assert "sip.power of machine ahbm is a group" in refused.output
    described = yaml.safe_load(kernbench("machine", "show", "ahbm").output)
    del described["sip"]["power"]
    kept = {key: said for key, said in described["sources"].items() if "sip.power" not in key}
    (folder / "bare.yaml").write_text(yaml.safe_dump({**described, "sources": kept}))
    bare = kernbench("run", folder / "bench.py", "--machine", folder / "bare.yaml", "--energy")
    assert bare.exit_code == 2, bare.output
    assert "says nothing of energy; add sip.power to its file" in bare.output
    wrong = kernbench("run", folder / "bench.py", "--price", "-1")
    assert wrong.exit_code == 2, wrong.output
    assert "usd_per_device_hour: must be above 0, but got -1" in wrong.output


def test_a_run_that_was_kept_without_energies_says_so(folder: Path) -> None:
    old = folder / "old.run"
    with zipfile.ZipFile(folder / "kept.run") as kept, zipfile.ZipFile(old, "w") as written:
        for name in kept.namelist():
            data = kept.read(name)
            if name == "templates.parquet":
                sink = pa.BufferOutputStream()
                table = pq.read_table(pa.BufferReader(data))
                pq.write_table(table.drop_columns(["energy_pj"]), sink)
                data = sink.getvalue().to_pybytes()
            written.writestr(name, data)
    refused = kernbench("why", old, "--energy")
    assert refused.exit_code == 2, refused.output
    assert "was saved without energies; save it again" in " ".join(refused.output.split())
