"""Run Triton's own tutorials 01 to 09 from a checkout, unmodified, and say which pass.

    python tools/run_tutorials.py PATH_TO/triton/python/tutorials [--only 03] [--timeout 900]

Needs PyTorch (its CPU), and for some tutorials pandas, matplotlib, tabulate and llnl-hatchet. The
exit status is the number of tutorials that failed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

# What a tutorial is run with: only the launch differs, never the file.
OPTIONS = {
    "07": ["--target", "cuda"],  # refuses to go on without a vendor's name
}
CALLED = {
    # These end in benchmarks with more arithmetic than a CPU gets through: with data their own
    # functions are called, 06 for smaller problems, 09 once instead of 20,000 times.
    "06": "test_op(1, 2, 128, 64, True, False, 'bwd', 'triton-fp16')\n"
    "test_op(1, 2, 1024, 64, False, False, 'bwd', 'triton-fp16')",
    "09": "validate(32, 32, 32, torch.float16)\nvalidate(8192, 8192, 512, torch.float16)\n"
    "proton.start('matmul', hook='triton')\nproton.deactivate()\n"
    "bench(512, torch.float16, 1, 0)\nproton.finalize()\nshow_profile('fp16', 'matmul')",
}
WITHOUT_DATA = {
    "06": "",
    # All of its benchmark but PyTorch's own product, which the host would compute 20,000 times, and
    # the vendor's: where there is none, the tutorial leaves it out itself.
    "09": "a, b = (torch.randn((8192, 512), device='cuda', dtype=torch.float16) for _ in 'ab')\n"
    "proton.start('matmul', hook='triton')\nproton.deactivate()\n"
    "bench_fn('naive', 10000, 10000, matmul, a, b.T)\n"
    "bench_fn('persistent', 10000, 10000, matmul_persistent, a, b.T)\n"
    "proton.finalize()\nshow_profile('fp16', 'matmul')",
}
"""Afterwards called without data, at full size; the whole file where nothing is named."""
CALLING = """
import pathlib, sys
path = pathlib.Path({path!r})
names = {{"__name__": "tutorial", "__file__": str(path)}}
sys.path.insert(0, str(path.parent))
exec(compile(path.read_bytes(), str(path), "exec"), names)
exec({calls!r}, names)
"""


def main() -> int:
    """Run the tutorials and return how many failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="python/tutorials of a Triton checkout")
    parser.add_argument("--only", metavar="NN", action="append", help="one of 01 to 09; repeatable")
    parser.add_argument("--timeout", type=int, default=900, metavar="S", help="for each")
    options = parser.parse_args()
    files = sorted(options.folder.glob("0[1-9]-*.py"))
    if options.only:
        files = [path for path in files if path.name[:2] in options.only]
    if not files:
        parser.error(f"there are no such tutorials in {options.folder}")
    failed = 0
    for path in files:
        started_s = time.monotonic()
        reason = run(path.resolve(), options.timeout)
        failed += bool(reason)
        verdict = f"FAILED  {reason}" if reason else "passed"
        how = "all of it"
        if path.name[:2] in CALLED:
            how = "its functions, benchmark"
        print(
            f"{path.name:<32} {time.monotonic() - started_s:6.0f} s  {how:<24} {verdict}",
            flush=True,
        )
    print(f"{len(files) - failed} of {len(files)} passed")
    return failed


def run(path: Path, timeout_s: int) -> str:
    """Return why a tutorial failed, or nothing."""
    number = path.name[:2]
    with tempfile.TemporaryDirectory() as folder:
        options = OPTIONS.get(number, [])
        if number not in CALLED:
            return script(path, options, Path(folder), timeout_s)
        program = calling(path, CALLED[number], Path(folder))
        reason = script(program, options, Path(folder), timeout_s)
        calls = WITHOUT_DATA[number]
        program = calling(path, calls, Path(folder)) if calls else path
        return reason or script(program, [*options, "--no-data"], Path(folder), timeout_s)


def calling(path: Path, calls: str, folder: Path) -> Path:
    """Return a program that loads a tutorial and calls its functions."""
    program = folder / f"calling_{path.name[:2]}.py"
    program.write_text(CALLING.format(path=str(path), calls=calls))
    return program


def script(program: Path, options: list[str], folder: Path, timeout_s: int) -> str:
    """Return why `kernbench script` failed on a program, or nothing."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", "kernbench", "script", *options, str(program)],
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout_s,
            # Without a display, plots go nowhere.
            env={**os.environ, "MPLBACKEND": "Agg"},
            cwd=folder,
        )
    except subprocess.TimeoutExpired:
        return f"not done after {timeout_s} s"
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.startswith("error")]
        return (lines or done.stderr.splitlines() or ["no message"])[-1][:300]
    return "it says itself that numbers differ" if "❌" in done.stdout else ""


if __name__ == "__main__":
    sys.exit(main())
