"""``kernbench machine new``, ``set``, ``show``, ``check``, ``diff`` and ``schema``."""

import json
import re
from pathlib import Path

import pytest
import yaml

from kernbench.hardware import (
    known_machines,
    load_machine,
    machine_schema,
    machine_template,
    parse_machine,
    source_of,
)
from tests.cli.command_line import kernbench


@pytest.mark.parametrize("name", known_machines())
def test_every_preset_is_good_and_has_its_sources(name: str) -> None:
    checked = kernbench("machine", "check", name)
    assert checked.exit_code == 0
    assert checked.output.startswith(f"{name}: good at ")
    assert "no entry in sources" not in checked.output


def test_numbers_without_a_source_are_named(tmp_path: Path) -> None:
    data = load_machine("ahbm", 1).spec.model_dump(mode="json")
    data["sources"] = {"sip": "assumed", "sizes": "assumed"}
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(data))
    checked = kernbench("machine", "check", path)
    assert (checked.exit_code, "links.bandwidth_gbps" in checked.output) == (0, True)


def test_an_impossible_machine_is_refused(tmp_path: Path) -> None:
    data = load_machine("ahbm", 1).spec.model_dump(mode="json")
    data["sip"]["cube"]["hbm_bandwidth_gbps"] = 0
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(data))
    checked = kernbench("machine", "check", path)
    assert checked.exit_code == 2
    assert "sip.cube.hbm_bandwidth_gbps: must be above 0" in checked.stderr


def test_machines_are_compared_key_by_key() -> None:
    compared = kernbench("machine", "diff", "h100-sxm", "h200")
    assert compared.exit_code == 0
    assert "sip.cube.hbm_bandwidth_gbps" in compared.output
    assert "3350 -> 4800  x 1.43" in compared.output
    assert "sip.pes_per_cube" not in compared.output
    assert "do not differ" in kernbench("machine", "diff", "ahbm", "ahbm").output
    wrong = kernbench("machine", "diff", "ahbm", "ahmb")
    assert (wrong.exit_code, "did you mean ahbm" in wrong.stderr) == (2, True)


def test_the_schema_is_printed_as_json() -> None:
    assert json.loads(kernbench("machine", "schema").output) == machine_schema()


OF_THE_FILE = {"name", "description", "devices", "clusters", "sources", "base"}


@pytest.mark.adr("0261-D1")
@pytest.mark.parametrize("like", ["ahbm", "h100-sxm", "p5", "dgx-a100-4x200", "wormhole-like"])
def test_a_template_has_every_key_and_the_numbers_of_the_machine_that_it_is_like(like: str) -> None:
    text = machine_template("mine", like)
    result, other = parse_machine(text, "mine").spec, load_machine(like).spec
    assert result.model_dump(exclude=OF_THE_FILE) == other.model_dump(exclude=OF_THE_FILE)
    assert result.devices == ("mine",)
    assert (source_of(result, "sip.clock_ghz") or "").startswith("assumed")
    groups = machine_schema()["$defs"]
    flat = " ".join(line.strip(" #") for line in text.splitlines())
    for name in ("MachineSpec", "SipSpec", "CubeSpec", "PeSpec", "PowerSpec", "LinksSpec"):
        for key, value in groups[name]["properties"].items():
            assert f"{key}:" in text, key
            assert value["description"].replace("`", "") in flat, key


def test_a_machine_of_ones_own_is_written_changed_and_checked(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    done = kernbench("machine", "new", "mine", "--like", "h100-sxm", "-o", path)
    assert (done.exit_code, f"kernbench machine set {path}" in done.output) == (0, True)
    before = path.read_text()
    settings = ["sip.clock_ghz=2x", "sip.power.cap_w=500", "sip.pe.gemm.flops_per_clock.int4=9000",
                "sip.die_to_die.bandwidth_gbps=100", "sip.die_to_die.latency_ns=10"]  # fmt: skip
    assert kernbench("machine", "set", path, *settings, "--source", "a book").exit_code == 0
    spec = load_machine(path).spec
    assert spec.sip.clock_ghz == 2 * load_machine("h100-sxm").sip.clock_ghz
    assert spec.sip.power is not None
    assert spec.sip.power.cap_w == 500
    assert spec.sip.pe.gemm.flops_per_clock["int4"] == 9000
    assert source_of(spec, "sip.die_to_die.latency_ns") == "a book"
    about = re.compile(r" *# [A-Z]")
    comments = list(filter(about.match, before.splitlines()))
    after = path.read_text().splitlines()
    assert list(filter(about.match, after)) == comments
    shown = kernbench("machine", "show", path).output
    assert "TCM of 484 KiB each" in shown
    assert yaml.safe_load(shown)["sip"]["clock_ghz"] == 3.66
    wrong: list[tuple[list[str | Path], str]] = [
        (["set", path, "sip.clok=1"], "did you mean clock_ghz?"),
        (["set", path, "sip.clock_ghz=-1"], "sip.clock_ghz: must be above 0"),
        (["set", path, "sip"], "must be KEY=VALUE"),
        (["set", "ahbm", "sip.clock_ghz=1"], "machine new NAME --like ahbm"),
        (["new", "h100-sxm"], "ships with kernbench"),
        (["new", ""], "cannot be called ''"),
        (["new", "../mine"], "--output FILE says where"),
        (["new", "mine", "-o", path], "is there already"),
        (["new", "mine", "--like", "h100-sxn", "-o", tmp_path / "n.yaml"], "did you mean h100"),
        (["show"], "name a machine"),
        (["show", "--run", path], "is no run saved with --save"),
    ]
    for words, message in wrong:
        failed = kernbench("machine", *words)
        assert failed.exit_code == 2, words
        assert message in failed.output, words
    assert path.read_text().splitlines() == after


def test_the_load_of_each_part_is_shown_beside_it(tmp_path: Path) -> None:
    bench, run = tmp_path / "bench.py", tmp_path / "bench.run"
    bench.write_text(
        "def work(rank, torch):\n"
        "    torch.distributed.init_process_group('nccl')\n"
        "    a = torch.empty(4096, 4096, dtype=torch.float16)\n"
        "    torch.distributed.all_reduce(a @ a)\n"
        "    torch.ahbm.synchronize()\n"
        "def run(torch):\n"
        "    torch.multiprocessing.spawn(work, args=(torch,), nprocs=2)\n"
    )
    words = ("--ranks", "2", "--machine", "h100-sxm", "--no-data", "--save", run)
    assert kernbench("run", bench, *words).exit_code == 0
    lines = kernbench("machine", "show", "--run", run).output.splitlines()
    beside = {key: line for line in lines for key in ("PEs", "HBM ", "links ") if key in line}
    assert "busy " in beside["PEs"]
    assert beside["HBM "].endswith("% of its bandwidth")
    assert "2 used" in beside["links "] or "4 used" in beside["links "]
