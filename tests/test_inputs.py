"""Files that users give: no file is refused at once, and what is damaged by its line and key."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest

from kernbench.errors import KernbenchError, MachineError, UsageError
from kernbench.inputs import (
    MOST_YAML_BYTES,
    open_regular,
    opened_csv,
    parse_json,
    parse_yaml,
    read_text,
    source_texts,
)
from tests.cli.command_line import kernbench

LAUGHS = "\n".join(
    ["a0: &a0 [x, x]", *[f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 12)]]
)
"""Each line names the one before nine times: 10^10 values in half a kilobyte."""


def test_what_is_said_once_is_read() -> None:
    assert parse_yaml("a: &x [1, 0]\nb: *x\nc: {d: 0.5, e: 0x10}", "it") == {
        "a": [1, 0], "b": [1, 0], "c": {"d": 0.5, "e": 16}
    }  # fmt: skip
    assert parse_json('{"a": [1, {"b": 0.5}]}', "it") == {"a": [1, {"b": 0.5}]}


@pytest.mark.adr("0234-D4")
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: 1\nb: 2\na: 3", "it line 3: not valid YAML: the key 'a' is given twice"),
        ("b: {a: 1,\n a: 2}", "it line 2: not valid YAML: the key 'a' is given twice"),
        ("m: &a [*a]", "it line 1: not valid YAML: a part that has a name contains itself"),
        ("m: &a {x: *a}", "contains itself"),
        (LAUGHS, "to more than 200,000 values"),
        ("[" * 100_000, "nested too deeply"),
        ("a: " + "[" * 101 + "]" * 101, "nested too deeply"),
        ("a: " + "1" * 5000, "more than 1,000 digits"),
        ("n: [64, 0100]", "it line 1: not valid YAML: 0100 is octal in YAML; write it in decimal"),
        ("n: -1:30", "-1:30 is in base 60 in YAML"),
        ("n: 1:30.5", "1:30.5 is in base 60 in YAML"),
        ("a: !!python/object/apply:os.system [ls]", "could not determine a constructor"),
        ("x" * (MOST_YAML_BYTES + 1), "of at most 524,288 characters"),
    ],
)
def test_yaml_with_traps_is_refused_by_its_line(text: str, said: str) -> None:
    with pytest.raises(MachineError) as error:
        parse_yaml(text, "it", MachineError)
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"a": 1,\n "a": 2}', "it line 2: not valid JSON: the key 'a' is given twice"),
        ('{"b": [{"a": 1,\n\n "a": 2}]}', "it line 3"),
        ("[" * 100_000, "recursion limit"),
        ("[" * 101 + "]" * 101, "nested too deeply"),
        ("[NaN]", "line 1 column 2"),
        ("[1e999]", "1e999"),
        ("[1", "line 1 column 2"),
    ],
)
def test_json_with_traps_is_refused_by_its_line(text: str, said: str) -> None:
    with pytest.raises(UsageError) as error:
        parse_json(text, "it")
    assert said in str(error.value)


def test_only_files_are_opened(tmp_path: Path) -> None:
    pipe, bound = tmp_path / "pipe", tmp_path / "socket"
    os.mkfifo(pipe)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(bound))
    for path, said in (
        (Path("/dev/zero"), "a device"),
        (pipe, "a pipe"),
        (bound, "a socket"),
        (tmp_path, "Is a directory"),
        (tmp_path / "none", "No such file"),
    ):
        with pytest.raises(OSError, match=said):
            open_regular(path)
        with pytest.raises(UsageError, match=said), opened_csv(path):
            pass
    link, file = tmp_path / "link", tmp_path / "file"
    file.write_text("it")
    link.symlink_to(file)
    assert read_text(link, 2) == "it"
    with pytest.raises(OSError, match="more than the 1 bytes"):
        read_text(link, 1)


def test_what_a_shell_puts_in_place_of_a_file_is_read() -> None:
    reader, writer = os.pipe()
    os.write(writer, b"it")
    os.close(writer)
    try:
        assert read_text(f"/dev/fd/{reader}", 10) == "it"
    finally:
        os.close(reader)


def test_a_source_is_read_in_the_encoding_that_it_declares(tmp_path: Path) -> None:
    for name in ("latin-1", "utf-8"):
        (tmp_path / f"{name}.py").write_bytes(f"# coding: {name}\n# café\n".encode(name))
    texts = source_texts([str(path) for path in tmp_path.iterdir()])
    assert [text.splitlines()[1] for text in texts.values()] == ["# café", "# café"]


def test_a_table_has_each_column_once(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("m,n,m\n1,2,3\n")
    with (
        pytest.raises(UsageError, match=r"rows\.csv:1: the column m is there twice"),
        opened_csv(path),
    ):
        pass
    path.write_text("m,n\n1,2\n")
    with opened_csv(path) as rows:
        assert list(rows) == [{"m": "1", "n": "2"}]


STUDY = "program: gemm\ndata: false\ngrid: {block_m: [64]}\n"


@pytest.mark.parametrize(
    "more",
    [
        "grid: {block_n: [64]}",
        "points: &a [*a]",
        f"params: {'[' * 2000}",
        "set: {links.bandwidth_gbps: 1e-300}",
        "set: {links.bandwidth_gbps: 1e-9999999999}",
        f"set: {{links.bandwidth_gbps: {'9' * 900}}}",
        "timeout: .inf",
        "memory: infGB",
        "params: {block_k: x}",
        LAUGHS,
    ],
)
def test_a_study_is_refused_as_machine_files_are(tmp_path: Path, more: str) -> None:
    study = tmp_path / "study.yaml"
    study.write_text(STUDY + more + "\n")
    done = kernbench("sweep", study, "--list")
    assert (done.exit_code, "study.yaml" in done.output, "bug" in done.output) == (2, True, False)


def test_the_study_that_those_add_to_is_none_of_them(tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_text(STUDY)
    assert kernbench("sweep", tmp_path / "study.yaml", "--list").exit_code == 0


def test_a_study_of_a_program_that_cannot_be_names_the_study(tmp_path: Path) -> None:
    study = tmp_path / "study.yaml"
    for name in ("x" * 5000, "no_such_bench"):
        study.write_text(STUDY.replace("gemm", name))
        done = kernbench("sweep", study, "--list")
        assert (done.exit_code, "study.yaml" in done.output) == (2, True), done.output


def test_a_model_is_refused_by_its_file_and_key(tmp_path: Path) -> None:
    from kernbench.plans.models import model_of

    config = tmp_path / "config.json"
    config.write_text(json.dumps({"hidden_size": 64})[:-1] + ', "hidden_size": 32}')
    with pytest.raises(
        KernbenchError, match=r"config\.json line 1: .*'hidden_size' is given twice"
    ):
        model_of(str(config))
