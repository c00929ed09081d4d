# kill -9 and a full disk while a file is written keep the file that was there.
# run: python {file}
# never: FAILS
# expect: holds: whole after SIGKILL
# expect: holds: whole on a full disk

import json
import os
import resource
import signal
import subprocess
import time
from pathlib import Path

from common import claim, kernbench, kill_when, write_bench

write_bench()
COMMAND = ("run", "many.py", "--no-data", "--trace", "t.json")
kernbench(*COMMAND)
events = len(json.load(open("t.json"))["traceEvents"])
for kind in (signal.SIGKILL, signal.SIGTERM):
    before = set(os.listdir("."))
    stamp = Path("t.json").stat().st_mtime_ns
    start = []

    def writing():
        changed = (
            set(os.listdir(".")) != before
            or not Path("t.json").exists()
            or Path("t.json").stat().st_mtime_ns != stamp
        )
        if changed and not start:
            start.append(time.monotonic())
        return bool(start) and time.monotonic() - start[0] > 0.1

    kill_when(writing, kind, *COMMAND)
    try:
        now = len(json.load(open("t.json"))["traceEvents"])
    except ValueError as error:
        now = error
    claim(f"whole after {kind.name}", now == events, now)

Path("u.json").write_text('{"good": 1}')
done = subprocess.run(
    ["kernbench", "run", "many.py", "-p", "n=2000", "--no-data", "--trace", "u.json"],
    capture_output=True,
    text=True,
    preexec_fn=lambda: (
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN),
        resource.setrlimit(resource.RLIMIT_FSIZE, (40 << 10, 40 << 10)),
    ),
)
claim("whole on a full disk", Path("u.json").read_text() == '{"good": 1}')
claim("a full disk is an error", done.returncode == 1 and "u.json" in done.stderr, done.stderr)
