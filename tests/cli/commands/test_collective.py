"""``kernbench collective show``."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from kernbench.cli.app import app
from kernbench.cli.commands.collective import parse_size
from kernbench.collectives import known_ops
from kernbench.errors import UsageError

AHBM = Path(__file__).parents[3] / "src/kernbench/hardware/presets/ahbm.yaml"


def show(
    capsys: pytest.CaptureFixture[str], *arguments: str, command: str = "show"
) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as status:
        app(["collective", command, *arguments])
    out, err = capsys.readouterr()
    return int(status.value.code or 0), out, err


@pytest.mark.parametrize("op", known_ops())
def test_every_collective_shows_its_steps_and_a_time_above_its_bound(
    op: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, err = show(capsys, op, "--ranks", "4", "--size", "1MiB")
    assert (status, err) == (0, "")
    assert "step 0" in out
    units = {"ns": 1.0, "us": 1e3, "ms": 1e6}
    result = re.search(r"([\d.]+) (ns|us|ms) on idle links, .* than ([\d.]+) (ns|us|ms) for", out)
    if op == "barrier":
        assert result is None
    else:
        assert result is not None
        time, bound = (float(result[at]) * units[result[at + 1]] for at in (1, 3))
        assert 0 < bound <= time


def test_a_slow_link_is_in_the_bound(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = yaml.safe_load(AHBM.read_text())
    text["links"]["overrides"] = [{"src_sip": 0, "dst_sip": 1, "bandwidth_gbps": 10}]
    machine = tmp_path / "uneven.yaml"
    machine.write_text(yaml.safe_dump(text))
    _, out, _ = show(
        capsys, "all_reduce", "--machine", str(machine), "--ranks", "4", "--size", "64M",
        "--algorithm", "ring", "--steps", "0",
    )  # fmt: skip
    # 2 (n - 1) / n of the message crosses the link.
    assert f"no less than {1.5 * 2**26 / 10 / 1e6:.1f} ms" in out


def test_what_is_named_is_taken_and_steps_are_limited(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = show(
        capsys, "all_reduce", "--machine", "h100-sxm", "--ranks", "4", "--steps", "2",
        "--algorithm", "ring", "--protocol", "ll128", "--size", "128K",
    )  # fmt: skip
    assert "ring in protocol ll128, as asked" in out
    assert "4 ranks, 65536 elements of 2 bytes in chunks of 16384 16384 16384 16384" in out
    assert "... and 4 more steps" in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("all_reducer",), "did you mean all_reduce"),
        (("all_reduce", "--ranks", "99"), "99 ranks were asked for, but machine ahbm has 16"),
        (("all_reduce", "--ranks", "0"), "at least 1 rank"),
        (("all_reduce", "--size", "3"), "must be even"),
        (("all_reduce", "--size", 30 * "9" + "G"), "at most 1048576G"),
        (("all_reduce", "--size", "big"), "got 'big'"),
        (("all_reduce", "--algorithm", "rong"), "did you mean ring"),
        (("all_reduce", "--protocol", "ll"), "has no protocols"),
        (("all_reduce", "--machine", "nowhere"), "nowhere"),
    ],
)
def test_what_cannot_be_shown_is_one_line(
    arguments: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, err = show(capsys, *arguments)
    assert (status, out) == (2, "")
    assert words in err
    assert err.count("\n") == 1


def test_sizes_have_binary_prefixes() -> None:
    assert [parse_size(name) for name in ("4096", "64K", "1MiB", "2gb", "10 B")] == [
        4096,
        1 << 16,
        1 << 20,
        2 << 30,
        10,
    ]
    with pytest.raises(UsageError, match=r"1\.5M"):
        parse_size("1.5M")


def test_an_exchange_of_experts_is_timed_or_refused(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["deepep_combine", "--machine", "h200", "--pes", "20", "--experts", "32"]
    status, out, _ = show(capsys, *asked, command="experts")
    assert status == 0
    assert "deepep_combine of 4096 tokens a rank by 8 ranks of h200" in out
    # One published time, of 8 H100s: 1.155 ms.
    assert 1.0 < float(out.split("\n")[1].split()[0]) < 1.3
    status, _, err = show(capsys, *asked, "--topk", "300", command="experts")
    assert (status, "topk is 300, but there are 32 experts" in err) == (2, True)
