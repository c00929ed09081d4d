"""``kernbench serve-bench``: an engine of the test's own under load, on a simulated device."""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kernbench.page.contents import contents
from kernbench.saved import load_run
from tests.cli.command_line import kernbench

pytest.importorskip("torch")
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
ENGINE = Path(__file__).with_name("paged_engine.py")
LOAD = ("--input", "64:512", "--output", "4", "--requests", "8", "--slo", "ttft=150us")


def served(tmp_path: Path, *options: str | Path) -> dict[str, Any]:
    result = kernbench("serve-bench", ENGINE, "--json", tmp_path / "found.json", *LOAD, *options)
    assert result.exit_code == 0, result.output
    data: dict[str, Any] = json.loads((tmp_path / "found.json").read_text())
    return data


@pytest.mark.adr("0269-D1")
@pytest.mark.adr("0269-D3")
@pytest.mark.adr("0269-D4")
def test_each_load_of_a_list_is_served_and_waits_more_at_a_higher_rate(tmp_path: Path) -> None:
    table, kept = tmp_path / "rows.csv", tmp_path / "kept.run"
    files = ("--csv", table, "--save", kept)
    result = served(tmp_path, "--rate", "500,200000", "--engine-arg", "pages=64", *files)
    slow, fast = (item["figures"] for item in result["loads"])
    assert slow["output_tokens"] == fast["output_tokens"] == 8 * 4
    assert fast["requests_per_s"] > slow["requests_per_s"]
    assert fast["queue_s"]["p50"] > 2 * slow["queue_s"]["p50"]
    assert fast["waiting_peak"] > 0 < slow["energy_j"]
    assert fast["kept"] < slow["kept"]
    with table.open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 16
    for row in rows:
        parts = float(row["queue_s"]) + float(row["prefill_s"])
        assert parts == pytest.approx(float(row["ttft_s"]), abs=1e-11)
    # What a page shows is what was served.
    assert contents(load_run(kept))["serving"] == result


@pytest.mark.adr("0269-D3")
def test_the_rate_that_is_found_keeps_to_the_bound_and_the_next_does_not(tmp_path: Path) -> None:
    result = served(
        tmp_path, "--find-rate", "--rate", "4000", "--attained", "0.75", "--slo", "ttft=100us"
    )
    by_rate = {
        float(item["load"].removeprefix("rate ")): item["figures"]["kept"]
        for item in result["loads"]
    }
    low, high = result["rate_found"]["rate"], result["rate_found"]["above"]
    assert low < high < 1.06 * low
    assert max(by_rate[item] for item in by_rate if item == pytest.approx(low, rel=1e-4)) >= 0.75
    assert max(by_rate[item] for item in by_rate if item == pytest.approx(high, rel=1e-4)) < 0.75


@pytest.mark.adr("0269-D5")
def test_ranks_of_an_engine_take_what_the_first_one_takes(tmp_path: Path) -> None:
    result = served(tmp_path, "--rate", "20000", "--tp", "2")
    (load,) = result["loads"]
    assert result["devices"] == 2
    assert load["figures"]["output_tokens"] == 8 * 4
    one = served(tmp_path, "--rate", "20000")["loads"][0]["figures"]
    per_device = load["figures"]["output_tokens_per_s_per_device"]
    assert load["figures"]["output_tokens_per_s"] == pytest.approx(2 * per_device)
    # Each step sums over the ranks, and hears what the first one takes.
    assert load["figures"]["tpot_s"]["p50"] > one["tpot_s"]["p50"]


@pytest.mark.adr("0291-D1")
def test_folded_ranks_serve_as_all_of_them_do(tmp_path: Path) -> None:
    options = ("--concurrency", "4", "--tp", "4")
    (whole,), (folded,) = (served(tmp_path, *options, *more)["loads"] for more in ((), ("--fold",)))
    assert folded["figures"]["tpot_s"] == whole["figures"]["tpot_s"]
    # Python that a library runs once for each shape is run by one of the ranks, or by each.
    energies = [load["figures"]["energy_j"] for load in (folded, whole)]
    assert energies[0] == pytest.approx(energies[1], rel=0.01)
    for row, expected in zip(folded["requests"], whole["requests"], strict=True):
        assert row["decode_s"] == expected["decode_s"]
        assert row["ttft_s"] == pytest.approx(expected["ttft_s"], abs=1e-6)


@pytest.mark.campaign
def test_a_sweep_has_what_was_served_in_its_table(tmp_path: Path) -> None:
    axes = ("--grid", "rate=500,200000", "--arg", "requests=8", "--machine", "h100-sxm")
    files = ("-o", tmp_path / "kept", "--table", tmp_path / "table.csv")
    lengths = ("--input", "64:512", "--output", "4")
    result = kernbench("sweep", "serve-bench", *axes, "--no-data", *files, "--", ENGINE, *lengths)
    assert result.exit_code == 0, result.output
    with (tmp_path / "table.csv").open() as file:
        slow, fast = list(csv.DictReader(file))
    assert float(fast["requests_per_s"]) > float(slow["requests_per_s"])
    assert float(fast["ttft_p99_s"]) > float(slow["ttft_p99_s"]) >= float(slow["ttft_p50_s"])


@pytest.mark.adr("0269-D2")
@pytest.mark.campaign
def test_two_runs_give_the_same_bytes_with_any_hash_seed(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "kernbench", "serve-bench", str(ENGINE), *LOAD]
    texts = [
        subprocess.run(
            [*command, "--rate", "9000", "--json", "-"],
            env=os.environ | {"PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
            cwd=tmp_path,
        ).stdout
        for seed in ("1", "2")
    ]
    assert texts[0] == texts[1]
    assert json.loads(texts[0])["loads"][0]["figures"]["requests"] == 8


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("vlm", "--rate", "1"), "unknown engine 'vlm'.*vllm"),
        (("none.py", "--rate", "1"), "there is no file none.py"),
        (("vllm",), "a load is one of --rate R, --concurrency C and --trace FILE, but got none"),
        (("vllm", "--rate", "1", "--concurrency", "2"), "but got --rate and --concurrency"),
        (("vllm", "--rate", "0"), "--rate must be a number above 0"),
        (("vllm", "--rate", "1", "--slo", "ttft=200"), "--slo must be bounds such as"),
        (("vllm", "--rate", "1", "--find-rate"), "--find-rate needs --slo"),
        (("vllm", "--concurrency", "4", "--burst", "2"), "--burst is of arrivals at a --rate"),
        (("vllm", "--rate", "1", "--input", "9:3"), "--input 9:3: the first number"),
        (("vllm", "--rate", "1", "--engine-arg", "x"), "--engine-arg must be NAME=VALUE"),
        (
            ("vllm", "--rate", "1", "--model", "llama-3-70b"),
            "llama-3-70b has 141 GB of weights, and 1 device has 85 GB: give --tp 2",
        ),
        (("vllm", "--rate", "1", "--fold"), "--fold needs ranks: pass --tp N"),
        (("vllm", "--rate", "1", "--tp", "16"), "--tp 16: h100-sxm has 8 devices"),
    ],
)
def test_what_cannot_be_served_is_refused_before_anything_runs(
    options: tuple[str, ...], expected: str
) -> None:
    result = kernbench("serve-bench", *options)
    assert result.exit_code == 2
    assert re.search(expected, result.output), result.output


def test_a_request_longer_than_the_model_is_named(tmp_path: Path) -> None:
    result = kernbench("serve-bench", ENGINE, "--rate", "9", "--input", "5000")
    assert result.exit_code != 0
    assert "request 0 has 5,000 tokens and asks for 128" in result.output
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    ("first_line", "expected"),
    [
        ("import nowhere_to_be_seen", "vLLM 0.33.0 imports nowhere_to_be_seen, which is not insta"),
        ("", "--engine-arg max_num_seq: vLLM 0.33.0 has no such argument.*max_num_seqs"),
    ],
)
def test_what_vllm_lacks_is_named(
    first_line: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = {
        "": f"""{first_line}
import dataclasses
@dataclasses.dataclass
class EngineArgs:
    model: str
    max_num_seqs: int = 8
SamplingParams = None
""",
        "sampling_params": "RequestOutputKind = None",
        "usage": "",
        "usage.usage_lib": "UsageContext = None",
        "v1": "",
        "v1.engine": "",
        "v1.engine.llm_engine": "LLMEngine = None",
    }
    for name, text in parts.items():
        folder = tmp_path.joinpath("vllm", *filter(None, name.split(".")))
        folder.mkdir()
        (folder / "__init__.py").write_text(text)
    (tmp_path / "vllm-0.33.0.dist-info").mkdir()
    (tmp_path / "vllm-0.33.0.dist-info" / "METADATA").write_text("Name: vllm\nVersion: 0.33.0\n")
    monkeypatch.syspath_prepend(tmp_path)
    result = kernbench("serve-bench", "vllm", "--rate", "1", "--engine-arg", "max_num_seq=4")
    assert result.exit_code == 2
    assert re.search(expected, " ".join(result.output.split()))
