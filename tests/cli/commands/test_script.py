from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from kernbench.cli.app import app
from kernbench.cli.programs.torch_stand_in import torch_stands_in
from tests.programs import PROGRAMS

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("KERNBENCH_DEBUG", raising=False)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    shutil.copy(PROGRAMS / "script.py", tmp_path / "program.py")
    (tmp_path / "beside.py").write_text("SCALE = 3\n")
    monkeypatch.delitem(sys.modules, "beside", raising=False)

    def call(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as status:
            app(["script", *arguments])
        out, err = capsys.readouterr()
        return int(status.value.code or 0), out, err

    return call


@pytest.mark.adr("0050-D4")
def test_a_program_runs_as_main_and_its_launches_are_reported(run: Run) -> None:
    before = sys.modules["__main__"], sys.argv, list(sys.path)
    status, out, err = run("program.py", "--size", "3", "-v")
    assert (status, err) == (0, "")
    assert "arguments=['--size', '3', '-v']" in out
    assert "TARGET.backend='kernbench'" in out
    assert "fill" in out.split("kernel", 1)[1], "the report comes after what the program prints"
    assert (sys.modules["__main__"], sys.argv, sys.path) == before


@pytest.mark.adr("0050-D5")
@pytest.mark.parametrize("target", ["cuda", "hip"])
def test_a_program_may_hear_of_a_gpu_while_triton_compiles_for_kernbench(
    run: Run, target: str
) -> None:
    status, out, _ = run("--target", target, "program.py")
    assert status == 0
    assert f"TARGET.backend='{target}'" in out


@pytest.mark.adr("0042-D8")
@pytest.mark.parametrize(
    ("options", "factor"),
    [
        ([], 1 + 2**-10),
        (["--tf32", "round"], 1 + 2**-10),
        (["--tf32", "truncate"], 1.0),
        (["--tf32", "ieee"], 1 + 2**-11 + 2**-20),
    ],
)
def test_the_command_line_chooses_how_tf32_is_computed(
    run: Run, options: list[str], factor: float
) -> None:
    shutil.copy(PROGRAMS / "tf32_product.py", "product.py")
    status, out, err = run(*options, "product.py")
    assert (status, err) == (0, "")
    assert f"each is {factor}" in out


def test_a_report_names_kernels_that_spill(run: Run) -> None:
    Path("large.py").write_text(
        "import sys, triton, triton.language as tl\n"
        "from kernbench.runtime_api import current_context\n"
        "@triton.jit\n"
        "def scaled(x, out, BLOCK: tl.constexpr):\n"
        "    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)\n"
        "    v = tl.load(x + at)\n"
        "    tl.store(out + at, v / tl.sum(v, 0))\n"
        "x = current_context().ones(1 << 15)\n"
        "scaled[(1,)](x, x, 1 << 15, num_warps=int(sys.argv[1]))\n"
    )
    _, out, _ = run("--machine", "h100-sxm", "large.py", "1")
    assert "scaled (1054 of each thread, num_warps=1)" in " ".join(out.split())
    for machine, warps in (("h100-sxm", "8"), ("ahbm", "1")):
        _, out, _ = run("--machine", machine, "large.py", warps)
        assert "spilled" not in out


def test_a_precision_that_no_kernel_asks_for_is_said_to_change_nothing(run: Run) -> None:
    shutil.copy(PROGRAMS / "tf32_product.py", "product.py")
    Path("model.py").write_text("import argparse\nif argparse is None:\n    import torch\n")
    for options in (["--tf32", "ieee"], ["--tf32", "truncate"]):
        _, out, _ = run(*options, "product.py")
        assert "changed nothing" not in out
        _, out, _ = run(*options, "program.py")
        unwrapped = " ".join(out.split())
        assert f"{' '.join(options)} changed nothing: no kernel asked" in unwrapped
        assert "torchrun" not in out
        _, out, _ = run(*options, "model.py")
        unwrapped = " ".join(out.split())
        assert "kernbench torchrun runs them on devices" in unwrapped
        assert "torch.backends.cuda.matmul.allow_tf32" in unwrapped
    _, out, _ = run("model.py")
    assert "changed nothing" not in out


@pytest.mark.parametrize(
    ("arguments", "expected", "said"),
    [
        (["program.py", "--status", "3"], 3, ""),
        (["program.py", "--exit", "enough of this"], 1, "enough of this\n"),
        (["program.py", "--raise"], 1, "error: LookupError: nothing there\n  program.py:"),
        (["progam.py"], 2, "error: no script progam.py: did you mean program.py"),
        (["elsewhere/program.py"], 2, "there is no folder elsewhere"),
        (["."], 2, "error: . is a folder; name a Python file in it"),
        (["bench.py"], 2, "use kernbench run bench.py, not kernbench script"),
        (["program.py", "--json", "x", "--status", "0"], 0, ""),
        (["--target", "cdua", "program.py"], 2, "unknown target 'cdua': did you mean cuda"),
        (["--machine", "ahmb", "program.py"], 2, "did you mean ahbm"),
        (["--json", "-", "program.py", "--status", "0"], 0, "fill"),
    ],
)
def test_the_exit_status_says_how_a_program_ended(
    run: Run, arguments: list[str], expected: int, said: str
) -> None:
    Path("bench.py").write_text("def run(torch): ...\n")
    status, _, err = run(*arguments)
    assert status == expected, err
    assert said in err


def test_a_file_that_is_no_python_is_named(run: Run, tmp_path: Path) -> None:
    (tmp_path / "data.py").write_bytes(b"\x00\x01")
    (tmp_path / "broken.py").write_text("def f(:\n")
    for name in ("data.py", "broken.py"):
        status, _, err = run(name)
        assert status != 0
        assert name in err or "null bytes" in err


class FakeTensor:
    """As much of a PyTorch tensor as host code asks for."""

    def cuda(self) -> FakeTensor:
        raise AssertionError("there is no GPU")

    def to(self, *args: Any) -> tuple[Any, ...]:
        return args

    def data_ptr(self) -> int:
        return 4096

    @property
    def is_cuda(self) -> bool:
        return False


class Device:
    def __init__(self, name: str) -> None:
        self.type = name


@pytest.fixture
def fake_torch(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A module in PyTorch's place, with its one mode for all functions."""
    torch: Any = ModuleType("torch")
    modes: list[Any] = []

    class Mode:
        def __enter__(self) -> None:
            modes.append(self)

        def __exit__(self, *_: object) -> None:
            modes.remove(self)

    def call(func: Any, *args: Any, **kwargs: Any) -> Any:
        if modes:
            return modes[-1].__torch_function__(func, (), args, kwargs)
        return func(*args, **kwargs)

    def zeros(*shape: int, device: Any = None) -> Any:
        return shape, device

    torch.overrides = SimpleNamespace(TorchFunctionMode=Mode)
    torch.cuda = SimpleNamespace(get_device_properties=lambda device: "of a real GPU")
    torch.cpu = SimpleNamespace(current_stream=lambda: "the stream of the CPU")
    torch.device = Device
    torch.Tensor = type("Tensor", (FakeTensor,), {})
    torch.nn = SimpleNamespace(functional=SimpleNamespace(layer_norm=object()))
    torch.zeros = lambda *shape, **options: call(zeros, *shape, **options)
    torch.call = call
    monkeypatch.setitem(sys.modules, "torch", torch)
    yield torch
    assert not modes, "a mode was left on"


@pytest.mark.adr("0050-D6")
def test_the_cpu_of_pytorch_stands_for_the_device(fake_torch: Any) -> None:
    tensor = fake_torch.Tensor()
    asked: list[Any] = []
    properties = {"name": "a SIP", "multi_processor_count": 24, "major": 8, "minor": 6}
    with torch_stands_in(properties, asked.append):
        assert fake_torch.zeros(2, device="cuda") == ((2,), "cpu")
        assert fake_torch.zeros(2, device="cuda:1") == ((2,), "cpu")
        assert fake_torch.zeros(2, device="meta") == ((2,), "meta")
        assert fake_torch.zeros(2, device=fake_torch.device("cuda"))[1].type == "cpu"
        assert fake_torch.call(fake_torch.Tensor.cuda, tensor) is tensor
        assert fake_torch.call(fake_torch.Tensor.to, tensor, "cuda", 3) == ("cpu", 3)
        assert fake_torch.call(fake_torch.Tensor.data_ptr, tensor) == 4096
        assert asked == [tensor]
        assert tensor.is_cuda
        assert fake_torch.cuda.get_device_properties("cuda").multi_processor_count == 24
        assert fake_torch.cuda.get_device_name() == "a SIP"
        assert fake_torch.cuda.get_device_capability() == (8, 6)
        assert fake_torch.cuda.current_stream() == "the stream of the CPU"
        fake_torch.cpu.set_stream(None)
        fake_torch.cuda.synchronize()
    assert not tensor.is_cuda
    assert fake_torch.cuda.get_device_properties(0) == "of a real GPU"
    assert set(vars(fake_torch.cpu)) == {"current_stream"}
    assert fake_torch.zeros(2, device="cuda") == ((2,), "cuda")


@pytest.mark.adr("0080-D2")
def test_random_numbers_are_made_only_where_there_is_data(fake_torch: Any) -> None:
    names = ("randn", "rand", "randn_like", "rand_like", "empty", "empty_like")

    def maker(name: str) -> Callable[..., Any]:
        def make(*args: Any, **options: Any) -> Any:
            return name, args, options

        return make

    for name in names:
        setattr(fake_torch, name, maker(name))
    result = {name: getattr(fake_torch, name) for name in names}
    with torch_stands_in({}, [].append, has_data=False):
        for name in ("randn", "rand"):
            torch = fake_torch.call(result[name], 2, 3, device="cuda", generator=1)
            assert torch == ("empty", (2, 3), {"device": "cpu"})
        for name in ("randn_like", "rand_like"):
            assert fake_torch.call(result[name], 7) == ("empty_like", (7,), {})
    with torch_stands_in({}, [].append):
        for name in names:
            assert fake_torch.call(result[name], 2, generator=1) == (name, (2,), {"generator": 1})


def test_pytorch_is_prepared_when_the_program_imports_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    shutil.copy(PROGRAMS / "bare_torch.py", tmp_path / "torch.py")
    hooks = list(sys.meta_path)
    with torch_stands_in({"name": "a SIP"}, [].append):
        assert "torch" not in sys.modules, "only the program imports PyTorch"
        import torch

        assert torch.Tensor().is_cuda is True
    assert torch.Tensor().is_cuda is False
    assert sys.meta_path == hooks
    # monkeypatch would put it back, for all tests that follow.
    del sys.modules["torch"]
    with torch_stands_in({}, [].append):
        pass
    assert sys.meta_path == hooks
