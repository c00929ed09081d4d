"""Many candidates by one judge, a tenth of them hostile: nothing is lost, kept or left behind.

python -m tests.judging.soak [--count 5000]
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
from collections import Counter
from pathlib import Path

from kernbench.judging import CandidateLimits, Judge
from tests.judging.tricks import HEAD, HONEST, SMALL

HOSTILE = (
    "while True: pass",
    "while True: print('x' * 999)",
    "ctypes.string_at(1)",
    "os._exit(7)",
    "sys.exit(3)",
    "bytearray(1 << 40)",
    "[open(str(i), 'wb').write(bytes(1 << 20)) for i in range(9999)]",
    "ctypes.CDLL(None).kill(os.getppid(), 9); os.abort()",
    "ctypes.CDLL(None).fork(); os._exit(1)",
    "[os.write(i, b'{}') for i in range(3, 99) if os.path.exists(f'/proc/self/fd/{i}')]",
    "sys.setrecursionlimit(1 << 30); f = lambda: f(); f()",
    "ctypes.CDLL(None).sigqueue(os.getppid(), 9, 0)",
    "[(os.mkdir('d'), os.chdir('d')) for i in range(1500)]",
    "[open(str(i), 'w').close() for i in range(10**6)]",
    "[threading.Thread(target=time.sleep, args=(99,)).start() for i in range(50)]; os._exit(0)",
)
_WRONG = HONEST["axpy"].replace("axpied(x, y)", "axpied(x, x)")


def _resident_kib(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS:")).split()[1])


def main() -> None:
    """Judge them, and say what was wrong with it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, default=5000)
    count = parser.parse_args().count
    hostile = itertools.cycle(HOSTILE)
    outcomes: Counter[tuple[str, str]] = Counter()
    mistakes = []
    with tempfile.TemporaryDirectory() as scratch, Judge() as judge:
        task, candidate = Path(scratch, "task.py"), Path(scratch, "candidate.py")
        task.write_text(SMALL["axpy"])
        before: set[Path] = set()
        first_kib = 0
        for index in range(count):
            kind = "hostile" if index % 10 == 5 else "wrong" if index % 10 == 7 else "right"
            body = next(hostile) if kind == "hostile" else ""
            solve = {"right": HONEST["axpy"], "wrong": _WRONG}.get(
                kind, f"def solve(x, y):\n    {body}\n    return x"
            )
            candidate.write_text(HEAD + solve)
            limits = CandidateLimits(seconds=3 if kind == "hostile" else 120)
            verdict = judge(candidate, task, times=False, limits=limits)
            outcomes[kind, str(verdict.outcome)] += 1
            if verdict.is_right != (kind == "right"):
                mistakes.append(
                    f"{index}: {kind} {body} is called {verdict.outcome}: {verdict.why}"
                )
            process = judge._process
            assert process is not None
            if index == 20:
                first_kib = _resident_kib(process.pid)
                before = set(Path(tempfile.gettempdir()).glob("kernbench-judge-*"))
        assert judge._process is not None
        grown_kib = _resident_kib(judge._process.pid) - first_kib
        left = set(Path(tempfile.gettempdir()).glob("kernbench-judge-*")) - before
    for (kind, outcome), number in sorted(outcomes.items()):
        print(f"{number} {kind}: {outcome}")
    print(f"the worker has grown by {grown_kib:,} KiB; {len(left)} folders are left behind")
    print("\n".join(mistakes) or "no verdict was of a neighbour, and none was lost")


if __name__ == "__main__":
    main()
