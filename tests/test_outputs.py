"""Files that commands write are whole, whatever ends the command."""

from __future__ import annotations

import fcntl
import json
import os
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kernbench.errors import OutputError, UsageError
from kernbench.outputs import SUFFIX, Outputs, as_text, name_of, whole_file, write_text
from tests.programs import PROGRAMS

NUM_KILLS = 50


@pytest.mark.adr("0110-D1")
def test_a_file_is_the_old_or_the_new_one_wherever_its_writer_is_killed(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(PROGRAMS / "killed_writers.py"), str(tmp_path), str(NUM_KILLS)],
        capture_output=True,
        text=True,
        check=True,
    )
    killed = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(killed) == NUM_KILLS
    before = [0, 0, 0]
    statuses = []
    for number, how, status, result, left in killed:
        statuses.append(status)
        for (num_values, value, size), earlier in zip(result, before, strict=True):
            assert num_values == 1, "two writers in one file"
            assert value in (earlier, number)
            assert size == 40 * 500 * len(f"{value}\n")
        before = [value for _, value, _ in result]
        if how != 9:
            assert not left
        assert len(left) <= 3
    # The signals found writers at work, and some that had done it.
    assert {130, -15, -9} < set(statuses) | {0}
    assert statuses.count(0) < NUM_KILLS / 2
    # What is left goes with the next writer.
    names = [tmp_path / name for name in ("log", "trace", "json")]
    for name in names:
        write_text(name, "new")
    assert sorted(tmp_path.iterdir()) == sorted(names)


@pytest.mark.adr("0110-D1")
def test_what_was_there_stays_until_the_new_one_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "kept.json"
    path.write_text("old")

    def write_half() -> None:
        with whole_file(path) as file:
            file.write(b"half")
            assert path.read_text() == "old"
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write_half()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
    with whole_file(path) as file, as_text(file) as text:
        text.write("new: ä\r\n")
    assert path.read_bytes() == "new: ä\r\n".encode()


@pytest.mark.adr("0110-D1")
def test_a_disk_that_is_full_leaves_all_files_of_a_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import errno

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    for name in ("log", "trace"):
        (tmp_path / name).write_text("old")
    asked = {"--log": tmp_path / "log", "--trace": tmp_path / "trace"}
    monkeypatch.setattr(os, "fsync", full)
    with Outputs(asked) as outputs:
        for option in asked:
            with outputs.writing(option) as file:
                file.write(b"new")
        with pytest.raises(OutputError, match=r"--log .*log: cannot be written: No space left"):
            outputs.publish()
    assert [path.read_text() for path in sorted(tmp_path.iterdir())] == ["old", "old"]


@pytest.mark.adr("0110-D2")
def test_a_second_writer_is_refused_at_once_and_told_who_the_first_is(tmp_path: Path) -> None:
    path = tmp_path / "out.parquet"
    (tmp_path / "link").symlink_to(path)
    with Outputs({"--log": path}):
        for other in (path, tmp_path / "link"):
            with pytest.raises(OutputError, match=f"is being written by process {os.getpid()};"):
                Outputs({"--json": other})
    assert not list(tmp_path.glob(f".*{SUFFIX}"))
    with Outputs({"--log": path}):
        pass


@pytest.mark.adr("0110-D2")
def test_a_single_file_waits_for_another_writer(tmp_path: Path) -> None:
    path = tmp_path / "plot.csv"
    first = Outputs({"--log": path})
    with first.writing("--log") as file:
        file.write(b"first")

    def end() -> None:
        first.publish()
        first.release()

    timer = threading.Timer(0.1, end)
    timer.start()
    write_text(path, "second")
    timer.join()
    assert path.read_text() == "second"


def test_a_file_that_a_killed_writer_has_left_has_no_say(tmp_path: Path) -> None:
    left = tmp_path / f".out{SUFFIX}"
    left.write_text("half of something")
    left.chmod(0o400)
    write_text(tmp_path / "out", "new")
    assert (tmp_path / "out").read_text() == "new"
    assert not left.exists()


def test_a_forked_process_takes_nothing_away(tmp_path: Path) -> None:
    command = [sys.executable, str(PROGRAMS / "forking_writer.py"), str(tmp_path / "out")]
    subprocess.run(command, check=True)
    assert (tmp_path / "out").read_text() == "whole"


@pytest.mark.adr("0110-D3")
def test_one_file_is_one_output_and_no_input_under_whatever_name(tmp_path: Path) -> None:
    bench = tmp_path / "bench.py"
    bench.write_text("source")
    os.link(bench, tmp_path / "hard")
    (tmp_path / "soft").symlink_to(bench)
    for name in ("bench.py", "hard", "soft"):
        with pytest.raises(OutputError, match=rf"--json .*{name} is .*bench\.py, which this"):
            Outputs({"--json": tmp_path / name}, [bench])
        with pytest.raises(OutputError, match="--log and --json both name"):
            Outputs({"--log": bench, "--json": tmp_path / name})
    with pytest.raises(OutputError, match="--log and --json both name"):
        Outputs({"--log": tmp_path / "new", "--json": f"{tmp_path}/./new"})
    assert bench.read_text() == "source"
    # Nothing is lost where two outputs go nowhere.
    with Outputs({"--log": os.devnull, "--json": os.devnull}):
        pass


def test_where_the_command_prints_to_is_no_output(tmp_path: Path) -> None:
    path = tmp_path / "out"
    source = "import sys; from kernbench.outputs import Outputs; Outputs({'--json': sys.argv[1]})"
    with path.open("w") as out:
        done = subprocess.run(
            [sys.executable, "-c", source, str(path)],
            stdout=out,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert "is where the command prints to; name another file" in done.stderr


@pytest.mark.adr("0110-D4")
def test_links_stay_and_lead_to_what_was_written(tmp_path: Path) -> None:
    target = tmp_path / "folder" / "target"
    link = tmp_path / "link"
    link.symlink_to(target)
    outputs = Outputs({"--json": link})
    outputs.release()
    assert link.is_symlink()
    assert not target.exists()
    for text in ("first", "second"):
        with Outputs({"--json": link}) as outputs:
            with outputs.writing("--json") as file:
                file.write(text.encode())
            outputs.publish()
        assert link.is_symlink()
        assert target.read_text() == text
    (tmp_path / "round").symlink_to(tmp_path / "round")
    with pytest.raises(OutputError, match="Too many levels of symbolic links"):
        Outputs({"--json": tmp_path / "round"})


@pytest.mark.adr("0110-D4")
def test_permissions_stay_and_new_files_have_the_usual_ones(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    old.write_text("")
    old.chmod(0o640)
    before = os.umask(0o027)
    try:
        write_text(old, "x")
        write_text(new, "x")
    finally:
        os.umask(before)
    assert [stat.S_IMODE(item.stat().st_mode) for item in (old, new)] == [0o640, 0o640]
    old.chmod(0o604)
    write_text(old, "x")
    assert stat.S_IMODE(old.stat().st_mode) == 0o604


@contextmanager
def reader_of(path: Path) -> Iterator[list[bytes]]:
    datas: list[bytes] = []
    thread = threading.Thread(target=lambda: datas.append(path.read_bytes()), daemon=True)
    thread.start()
    yield datas
    thread.join(10)
    assert not thread.is_alive()


@pytest.mark.adr("0110-D4")
def test_a_pipe_is_opened_once_and_gets_everything(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with reader_of(pipe) as reader, Outputs({"--log": pipe}) as outputs:
        with outputs.writing("--log") as file:
            file.seek(2)
            file.write(b"tail")
            file.seek(0)
            file.write(b"he")
        assert not reader
        outputs.publish()
    assert reader == [b"hetail"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    with pytest.raises(OutputError, match="/dev/full: cannot be written: No space left"):
        write_text("/dev/full", "x")


@pytest.mark.adr("0110-D4")
def test_a_descriptor_is_written_where_it_stands(tmp_path: Path) -> None:
    source = """
import os
from kernbench.outputs import write_text
print("before")
write_text("/dev/stdout", "between\\n")
print("after")
write_text("/dev/fd/2", "said\\n")
"""
    path = tmp_path / "out"
    with path.open("wb") as out:
        done = subprocess.run(
            [sys.executable, "-c", source], stdout=out, stderr=subprocess.PIPE, check=True
        )
    assert path.read_text() == "before\nbetween\nafter\n"
    assert done.stderr == b"said\n"
    with pytest.raises(OutputError, match="/dev/fd/987: cannot be written: Bad file"):
        write_text("/dev/fd/987", "x")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("", "--json has an empty name; name a file"),
        ("-", "--json takes a file, and - is none"),
        ("folder", "is a folder; name a file in it"),
        ("train.py", "is a program; name another file"),
        ("file/below", "no folder can be made"),
        ("n" * 300, "File name too long"),
    ],
)
def test_a_place_that_cannot_be_is_refused(name: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    for file in ("file", "train.py"):
        (tmp_path / file).write_text("")
    path = f"{tmp_path}/{name}" if name not in ("", "-") else name
    with pytest.raises(UsageError, match=message) as error:
        Outputs({"--json": path})
    assert isinstance(error.value, OSError)


def test_the_longest_name_there_is_can_be_written(tmp_path: Path) -> None:
    path = tmp_path / ("n" * 255)
    write_text(path, "x")
    assert [path.name for path in tmp_path.iterdir()] == [path.name]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_what_may_not_be_written_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "mine"
    path.write_text("old")
    path.chmod(0o400)
    with pytest.raises(OutputError, match="Permission denied"):
        write_text(path, "new")
    path.chmod(0o600)
    tmp_path.chmod(0o500)
    with pytest.raises(OutputError, match=f"no file can be made in {tmp_path}: Permission"):
        write_text(path, "new")
    tmp_path.chmod(0o700)
    assert path.read_text() == "old"


def test_a_file_system_without_locks_is_written_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    write_text(tmp_path / "out", "x")
    # Nobody is waited for, but none publishes what another writes.
    with Outputs({"--log": tmp_path / "out"}) as first:
        with first.writing("--log") as file:
            file.write(b"first")
        with Outputs({"--log": tmp_path / "out"}) as second:
            with second.writing("--log") as file:
                file.write(b"second")
            with pytest.raises(OutputError, match="another process took"):
                first.publish()
            second.publish()
    assert (tmp_path / "out").read_text() == "second"


def test_writers_that_open_a_name_themselves_write_the_same_file(tmp_path: Path) -> None:
    with whole_file(tmp_path / "out") as file:
        Path(name_of(file)).write_text("by name")
    assert (tmp_path / "out").read_text() == "by name"
