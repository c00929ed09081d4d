"""Numbers of sources stand in files, each with where it is from, and are checked on loading."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from kernbench.errors import UsageError
from validation.sources import tables
from validation.sources.harness import GEMM, MEMBOUND, MeasuredBy
from validation.sources.launching import launching
from validation.sources.peers import PeerKernel
from validation.sources.stacks import OfSource

ENTRY = {"source": "me", "rows": 3, "fitted_to": "nothing", "machine": "h200", "host_us": 4.5}
FILES = sorted(Path(tables.FOLDER).glob("*.yaml"))


def read(*entries: Any) -> tuple[MeasuredBy, ...]:
    return tables.read({"gemm": list(entries)}, "harness.yaml", "gemm", MeasuredBy)


@pytest.mark.adr("0236-D4")
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_number_says_whose_it_is_and_what_it_was_fitted_to(path: Path) -> None:
    contents = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert contents
    for name, entries in contents.items():
        for entry in entries:
            checked = {key: entry[key] for key in ("source", "rows", "fitted_to")}
            (read_back,) = tables.read({name: [checked]}, path.name, name, tables.Entry)
            assert read_back.rows >= 1


@pytest.mark.adr("0236-D4")
@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"hostus": 4}, r"entry 1 of gemm: hostus: Extra inputs are not permitted"),
        ({"host_us": -1}, r"host_us: Input should be greater than or equal to 0 \(found -1\)"),
        ({"rate_share": 0}, r"rate_share: Input should be greater than 0"),
        ({"rows": 0}, r"rows: Input should be greater than or equal to 1"),
        ({"source": ""}, r"source: String should have at least 1 character"),
        ({"fitted_to": None}, r"fitted_to: Input should be a valid string"),
        ({"machine": "h2000"}, r"machine: Value error, no machine is 'h2000'"),
    ],
)
def test_a_wrong_entry_is_named_with_its_key(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=rf"^harness\.yaml: .*{message}"):
        read({**ENTRY, **changed})


@pytest.mark.adr("0236-D4")
def test_two_entries_of_the_same_and_a_table_that_is_missing_are_errors() -> None:
    (entry,) = read(ENTRY)
    assert (entry.host_us, entry.rate_share) == (4.5, 1.0)
    with pytest.raises(UsageError, match=r"entry 2 of gemm is of the same as another: .*'me'"):
        read(ENTRY, {**ENTRY, "host_us": 9})
    with pytest.raises(UsageError, match=r"harness\.yaml has no list membound"):
        tables.read({"gemm": [ENTRY]}, "harness.yaml", "membound", MeasuredBy)


def test_what_is_looked_up_is_what_the_files_say() -> None:
    assert GEMM["aic-gemm", ""].weight_buffers == 6
    assert MEMBOUND["neusight-vec", "v100", "softmax"].release == (2, 1)
    product = {"framework": "vllm", "dtype": "fp8_block", "kernel": "vllm_default"}
    assert launching({**product, "n_releases": "2"}, "gb200").host_us == 678
    assert launching({**product, "n_releases": "3"}, "gb200").host_us == 264
    assert launching({**product, "n_releases": "3"}, "l40s").host_us == 0
    peer = PeerKernel("trtllm graph", "b200", 2)
    assert peer.changes()["collectives.peer.launch_us"] == 4.38
    assert PeerKernel("trtllm graph", "b200", 8).changes()["collectives.peer.round_us"] == 32.9


@pytest.mark.adr("0236-D4")
@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"keep_score": True}, "how has no key 'keep_score'; it has .*keep_scores"),
        ({"run": {"head": 3}}, "a run has no key 'head'; it has heads, microbatch"),
        ({"runs": {64: {"micro": 3}}}, "a run has no key 'micro'"),
        ({"request_us": "long"}, r"how\.request_us: Input should be a valid number"),
        (None, "how must have keys and values"),
    ],
)
def test_a_stack_with_a_key_that_there_is_not_is_an_error(how: Any, message: str) -> None:
    entry = {"source": "me", "rows": 1, "fitted_to": "nothing", "how": how}
    with pytest.raises(UsageError, match=message):
        tables.read({"stacks": [entry]}, "stacks.yaml", "stacks", OfSource)
