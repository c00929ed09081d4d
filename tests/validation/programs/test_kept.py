"""Answers of programs are kept in a file, and not asked for again."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from kernbench.cli.app import app
from kernbench.errors import UsageError
from kernbench.hardware import load_machine
from validation.programs import (
    LOOPS,
    KeptAnswers,
    Program,
    ProgramAnswer,
    ProgramError,
    ProgramFiles,
    ProgramRunner,
    forget,
    said_of,
)
from validation.programs.runner import ProgramRunner as Runner

MACHINE = load_machine("a100-sxm-80g", 1)
ANSWER = ProgramAnswer(step_us=123.4567, host_share=0.25)


def program_in(folder: Path) -> Program:
    folder.mkdir(exist_ok=True)
    script = folder / "train.py"
    script.write_text("print('step 1 ms')\n")
    return Program(script=script, args=("--config", str(folder / "small.toml")), folder=folder)


@pytest.mark.adr("0131-D4")
def test_an_answer_is_found_again_wherever_the_scripts_lie(tmp_path: Path) -> None:
    kept = tmp_path / "kept.jsonl"
    here, there = (ProgramFiles(folder=tmp_path / name, kept=kept) for name in ("one", "two"))
    KeptAnswers(here).keep(program_in(here.folder), MACHINE.name, ANSWER)
    other = program_in(there.folder)
    kept_answer = KeptAnswers(there).get(other, MACHINE.name)
    assert kept_answer == dataclasses.replace(ANSWER, step_us=123.457)
    for differs in (
        dataclasses.replace(other, args=("--config", "large.toml")),
        dataclasses.replace(other, ranks=8),
        dataclasses.replace(other, is_compiled=True),
    ):
        assert KeptAnswers(there).get(differs, MACHINE.name) is None
    assert KeptAnswers(there).get(other, "h100-sxm") is None
    (line,) = kept.read_text().splitlines()
    assert str(tmp_path) not in line


@pytest.mark.adr("0131-D4")
def test_names_are_as_they_were_before_programs_had_nodes(tmp_path: Path) -> None:
    kept = KeptAnswers(ProgramFiles(folder=Path("/programs"), kept=tmp_path / "kept.jsonl"))
    program = Program(script=Path("/programs/train.py"), args=("--steps", "2"), ranks=2)
    assert kept._id(program, "h100-sxm") == "c2e32f26a18185e4"
    others = [dataclasses.replace(program, nodes=2), dataclasses.replace(program, folded_to=0)]
    assert len({kept._id(item, "h100-sxm") for item in (program, *others)}) == 3


@pytest.mark.adr("0131-D5")
def test_a_loop_that_has_changed_is_another_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("validation.programs.kept.LOOPS", tmp_path / "loops")
    files = ProgramFiles(folder=tmp_path / "none", kept=tmp_path / "kept.jsonl")
    program = program_in(tmp_path / "loops")
    answers = KeptAnswers(files)
    answers.keep(program, "t4", ANSWER)
    assert answers.get(program, "t4") == ANSWER
    program.script.write_text("print('step 2 ms')\n")
    assert answers.get(program, "t4") is None
    assert LOOPS.is_dir()


def test_a_runner_runs_what_is_not_kept_and_keeps_it_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = ProgramFiles(folder=tmp_path, kept=tmp_path / "kept.jsonl")
    program = program_in(tmp_path)
    asked = []

    def run(self: Runner, program: Program, machine: object) -> ProgramAnswer:
        asked.append(program)
        return ANSWER if program.ranks == 1 else ProgramAnswer(why_not="it hangs")

    monkeypatch.setattr(ProgramRunner, "_run", run)
    hanging = dataclasses.replace(program, ranks=2)
    for _ in range(2):
        runner = ProgramRunner(kept=KeptAnswers(files))
        assert runner.step_us(program, MACHINE) == pytest.approx(123.457, abs=1e-3)
        with pytest.raises(ProgramError, match="it hangs"):
            runner.answer(hanging, MACHINE)
    assert asked == [program, hanging]
    others = KeptAnswers(dataclasses.replace(files, runs=()))
    assert ProgramRunner(kept=others).step_us(program, MACHINE) > 0
    with pytest.raises(ProgramError, match="not run for this table"):
        ProgramRunner(kept=others).step_us(dataclasses.replace(program, ranks=3), MACHINE)
    assert asked == [program, hanging]
    # The twin: without a file each runner runs them.
    ProgramRunner().step_us(program, MACHINE)
    assert len(asked) == 3


@pytest.mark.adr("0131-D5")
def test_a_page_says_how_many_programs_were_run_with_what(tmp_path: Path) -> None:
    kept = tmp_path / "kept.jsonl"
    assert said_of(kept) == "no program was run"
    line = {"id": "a", "step_us": 1.0, "host_share": 0.0, "why_not": "", "date": "2026-11-01"}
    lines = [
        {**line, "commit": "aaaa"},
        {**line, "id": "b", "commit": "bbbb", "date": "2026-11-03"},
        {**line, "commit": "bbbb", "date": "2026-11-02"},
    ]
    kept.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    assert said_of(kept) == (
        "2 programs were run with 2 commits up to bbbb (2026-11-01 to 2026-11-03) and are kept in "
        "kept.jsonl"
    )


@pytest.mark.parametrize("text", ["{", "7", '{"id": "a"}', '{"id": 3, "step_us": 1}'])
def test_a_line_that_is_no_answer_is_named(tmp_path: Path, text: str) -> None:
    kept = tmp_path / "kept.jsonl"
    kept.write_text(f"{text}\n")
    with pytest.raises(UsageError, match=r"kept.jsonl:1 is no kept answer of a program"):
        KeptAnswers(ProgramFiles(kept=kept))


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--keep=none/kept.jsonl", "there is no folder none"),
        ("--kept=none.jsonl", "--kept none.jsonl: no such file; --keep makes it"),
        ("--programs=none", "no such folder"),
    ],
)
def test_a_folder_that_is_missing_is_said_before_anything_runs(
    option: str,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    head = "device,op,dtype,m,n,k,time_us,source\n"
    Path("rows.csv").write_text(f"{head}A100,gemm,fp16,64,64,64,9.9,mine\n")
    with pytest.raises(SystemExit) as status:
        app(["validate", "rows.csv", option])
    assert status.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.adr("0251-D3")
def test_programs_are_run_anew_where_their_words_begin_so(tmp_path: Path) -> None:
    path = tmp_path / "kept.jsonl"
    kept = KeptAnswers(ProgramFiles(folder=tmp_path, kept=path))
    train = program_in(tmp_path)
    other = Program(script=tmp_path / "infer.py", args=("--config",))
    for item in (train, other):
        kept.keep(item, MACHINE.name, ANSWER)
    placed = Program(script=tmp_path / "net.py", args=(str(tmp_path / "level1" / "1.py"),))
    kept.keep(placed, MACHINE.name, ANSWER)
    # As the file has them: the folder of programs is PROGRAMS there.
    begins = ("train.py --con", "net.py PROGRAMS/level1/1.py")
    forget(path, begins)
    after = KeptAnswers(ProgramFiles(folder=tmp_path, kept=path, runs=begins))
    for program, is_run in ((train, True), (placed, True), (other, False)):
        assert (after.get(program, MACHINE.name) is None) == is_run
        assert after.has_run(program) == is_run
