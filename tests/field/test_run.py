from __future__ import annotations

from pathlib import Path

import pytest

from tests.field.run import judge, main, missing, read_program, read_programs, run_program

PROGRAM = """\
# A program that says where it runs.
# run: python {{file}} {argument}
# expect: ^argument first$
# never: second
import sys

print("argument", sys.argv[1])
"""


def write(folder: Path, argument: str) -> Path:
    path = folder / "01_program.py"
    path.write_text(PROGRAM.format(argument=argument))
    return path


def test_a_program_that_gives_what_it_expects_is_right(tmp_path: Path) -> None:
    assert run_program(read_program(write(tmp_path, "first"))) == ""


def test_a_program_that_does_not_is_told_with_what_it_printed(tmp_path: Path) -> None:
    wrong = run_program(read_program(write(tmp_path, "second")))
    assert "does not print '^argument first$'" in wrong
    assert "argument second" in wrong


def test_status_and_time_are_judged(tmp_path: Path) -> None:
    program = read_program(write(tmp_path, "first"))
    assert judge(program, 3, "argument first") == "ended with status 3, not 0"
    assert judge(program, None, "") == "did not end within 120 s"
    assert judge(program, 0, "argument first\nsecond") == "prints 'second'"


def test_a_program_without_a_promise_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "01_program.py"
    path.write_text("# A program.\nprint(1)\n")
    with pytest.raises(ValueError, match="must say '# run:'"):
        read_program(path)


def test_every_program_of_the_field_promises_something() -> None:
    assert len(read_programs()) >= 40
    assert all(program.title for program in read_programs())


def test_what_a_program_needs_is_looked_for(tmp_path: Path) -> None:
    path = write(tmp_path, "first")
    path.write_text(path.read_text().replace("# never:", "# needs: no_such_module\n# never:"))
    assert missing(read_program(path)) == ["no_such_module"]


def test_a_name_that_no_program_has_is_refused() -> None:
    with pytest.raises(SystemExit):
        main(["no such program"])
