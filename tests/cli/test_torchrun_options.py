"""``kernbench torchrun`` takes what torchrun takes, or says why not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kernbench.cli.app import app
from tests.tiers import daily

pytest.importorskip("torch")
PROGRAM = """
import os, sys
from {where} import name
names = ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_PORT", "TORCHELASTIC_RUN_ID")
print(name, *sys.argv[1:], *(os.environ[each] for each in names))
sys.exit(int(sys.argv[1]) if len(sys.argv) > 1 and os.environ["RANK"] == "1" else 0)
"""


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    package = tmp_path / "some_package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "part.py").write_text("name = 'part'\n")
    (package / "train.py").write_text(PROGRAM.format(where=".part"))
    (package / "script.py").write_text(PROGRAM.format(where="part"))
    monkeypatch.chdir(tmp_path)
    return "some_package/script.py"


def run(*args: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["torchrun", *args])
    return done.exit_code, done.output


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        (["--standalone", "--nnodes=1", "--nproc_per_node=2"], "part 0 2 2 29500 none"),
        (["--nproc-per-node", "gpu", "--machine", "ahbm:2"], "part 1 2 2 29500 none"),
        (["--nproc-per-node=2", "--master_port", "1234", "--rdzv-id=7"], "part 1 2 2 1234 7"),
        (["--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0"], "part 0 1 1 29500 none"),
    ],
)
def test_options_of_torchrun_are_taken(options: list[str], shown: str, program: str) -> None:
    status, output = run(*options, program)
    assert status == 0
    assert shown in output


def test_two_dashes_behind_the_program_are_dropped_once(program: str) -> None:
    """As by torchrun's own parser, which keeps those behind an argument."""
    parse = pytest.importorskip("torch.distributed.run").get_args_parser().parse_args
    for args in (["--", "0"], ["0", "--", "--x"], ["--", "--", "0"]):
        Path("args.py").write_text("import sys\nprint('given', sys.argv[1:])\n")
        status, output = run("--nproc-per-node=1", "args.py", *args)
        assert status == 0
        assert f"given {parse(['args.py', *args]).training_script_args}\n" in output


def test_a_bench_is_sent_to_run(program: str) -> None:
    Path("bench.py").write_text("import os\n\ndef run(torch):\n    assert False\n")
    status, output = run("bench.py")
    assert status == 2
    assert "bench.py is a bench: it defines run() and does nothing itself" in output
    assert "use kernbench run bench.py, not kernbench torchrun" in output


def test_a_run_in_place_of_a_program_is_sent_to_why(program: str) -> None:
    Path("a.run").write_bytes(b"PK\3\4\0\0")
    status, output = run("a.run")
    assert status == 2
    assert "a.run is not a Python file: it has null bytes; kernbench why" in output


def test_a_module_is_run_as_a_part_of_its_package(program: str) -> None:
    status, output = run("--nproc-per-node=2", "-m", "some_package.train")
    assert status == 0
    assert "part 1 2 2" in output


def test_packages_of_a_module_are_imported_by_the_program(program: str) -> None:
    package = Path(program).parent
    (package / "__init__.py").write_text(
        "import sys, torch\nprint('package', sys.argv[1:], torch.cuda.is_available())\n"
    )
    for ranks in ("1", "2"):
        status, output = run(f"--nproc-per-node={ranks}", "-m", "some_package.train", "0", "steps")
        assert status == 0, output
        assert output.count("package ['0', 'steps'] True") == int(ranks)
    assert "some_package" not in sys.modules


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--nnodes=2"], "--nnodes 2 asks for nodes, but ahbm has none"),
        (["--nnodes=0"], "--nnodes must be at least 1"),
        (["--nnodes=1:4"], "--nnodes must be at least 1, or such a number twice (2:2)"),
        (["--nnodes=2", "--node-rank=1"], "--node-rank must be 0, but got 1"),
        (
            ["--nnodes=2", "--nproc-per-node=4", "--machine=h100-sxm"],
            "4 ranks per node do not fill the nodes of machine h100-sxm, which have 8 devices",
        ),
        (
            ["--nnodes=4", "--nproc-per-node=8", "--machine=h100-sxm:2x8"],
            "--nnodes 4: h100-sxm:2x8 has 2 nodes; take h100-sxm:4x8",
        ),
        (
            ["--nproc-per-node=16", "--machine=h100-sxm:2x8"],
            "asks for 16 processes on one node, but nodes of machine h100-sxm have 8 devices",
        ),
        (["--nproc-per-node=many"], "must be at least 1, or gpu, but got many"),
        (["-m"], "no such module"),
    ],
)
def test_what_cannot_be_is_refused(options: list[str], words: str, program: str) -> None:
    status, output = run(*options, "missing_module" if "-m" in options else program)
    assert status == 2
    assert words in output


def test_a_rank_that_exits_with_a_status_fails_the_run(program: str) -> None:
    status, output = run("--nproc-per-node=2", program, "3")
    assert status == 1
    assert "rank 1 called sys.exit(3)" in output


NAMES = """
import json, os, sys
main = sys.modules["__main__"]
said = [sys.argv[0], os.path.normpath(__file__), sys.path[0], __package__, __name__]
said += [__spec__ and __spec__.name, type(__loader__).__name__ if __spec__ else None]
said += [main.__dict__ is globals()]
print("names", json.dumps(said))
"""


@pytest.mark.parametrize(
    "value",
    daily(
        "../{here}/names.py",
        "-m names x",
        of=(
            *("names.py", "./names.py x", "../{here}/names.py", "{there}/names.py"),
            *("one_package/names.py", "link.py"),
            *("-m names x", "-m one_package", "-m one_package.names"),
        ),
    ),
)
def test_a_program_finds_the_names_that_torchrun_gives_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    """The command that real torchrun starts for each rank is run here for the names to expect."""
    torchs = pytest.importorskip("torch.distributed.run")
    package = tmp_path / "one_package"
    package.mkdir()
    for path in (tmp_path / "names.py", package / "names.py", package / "__main__.py"):
        path.write_text(NAMES)
    (package / "__init__.py").touch()
    (tmp_path / "link.py").symlink_to("one_package/names.py")
    monkeypatch.chdir(tmp_path)
    words = value.format(here=tmp_path.name, there=tmp_path).split()
    _, command, arguments = torchs.config_from_args(torchs.parse_args(words))
    real = subprocess.run(
        [command, *arguments], capture_output=True, text=True, check=True
    ).stdout.strip()
    for ranks in ("1", "2"):
        status, output = run(f"--nproc-per-node={ranks}", *words)
        assert status == 0, output
        assert output.count(f"{real}\n") == int(ranks), (words, real, output)


SERVER = """
import http.server, sys, torch

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = str((torch.ones(4, device="cuda") * int(self.path[1:])).sum().item()).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""
CLIENT = """
import sys, time, urllib.request

_, port, number, status = sys.argv
while True:
    try:
        print(number, urllib.request.urlopen(f"http://127.0.0.1:{port}/{number}").read())
        sys.exit(int(status))
    except OSError:
        time.sleep(0.01)
"""


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    Path("server.py").write_text(SERVER)
    Path("client.py").write_text(CLIENT)
    return "server.py"


@pytest.mark.parametrize("status", [0, 3])
def test_commands_beside_a_server_are_clients_of_it_and_end_it(status: int, server: str) -> None:
    beside = ["--beside", "client.py 8123 2 0", "--beside", f"-m client 8123 5 {status}"]
    found, output = run(*beside, server, "8123")
    assert found == status
    assert "2 b'8.0'" in output
    assert "5 b'20.0'" in output


def test_a_server_that_fails_ends_those_beside_it(
    server: str, capfd: pytest.CaptureFixture[str]
) -> None:
    status, output = run("--beside", "client.py 8123 2 0", server, "no-port")
    assert status == 1
    assert "invalid literal for int() with base 10: 'no-port'" in output
    assert 'server.py", line 12' in output
    assert "front/workers.py" not in output


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--beside", "clint.py"], "no script clint.py: did you mean client.py?"),
        (["--beside", "client.py '2"], "--beside client.py '2: No closing quotation"),
        (["--beside", "-m no_client"], "-m no_client: no such module"),
        (["--beside", ""], "name a program"),
        (["--beside", "client.py", "--nproc-per-node=2"], "--beside is for one process"),
    ],
)
def test_a_wrong_command_beside_is_refused(options: list[str], said: str, server: str) -> None:
    status, output = run("--machine", "ahbm:2", *options, server)
    assert status == 2
    assert said in " ".join(output.split())
