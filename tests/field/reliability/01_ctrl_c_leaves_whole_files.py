# Ctrl-C while the outputs are written: each file is the old one or the new one, whole.
# run: python {file}
# never: FAILS
# expect: holds: trace whole

import json
import os
import signal
import time

import pyarrow.parquet
from common import claim, kernbench, kill_when, write_bench

write_bench()
COMMAND = ("run", "many.py", "--no-data", "--log", "o.parquet", "--trace", "t.json")


def sizes():
    return (
        pyarrow.parquet.read_metadata("o.parquet").num_rows,
        len(json.load(open("t.json"))["traceEvents"]),
    )


def being_written(name):
    """Tell whether a file of this folder besides the bench has changed since the last run."""
    seen = {item.name: item.stat().st_mtime_ns for item in os.scandir(".")}

    def ready():
        now = {}
        for item in os.scandir("."):
            try:
                now[item.name] = item.stat().st_mtime_ns
            except FileNotFoundError:
                return True
        return any(now.get(key) != value for key, value in now.items() if seen.get(key) != value)

    return ready


kernbench(*COMMAND)
full = sizes()
for name in ("trace", "log"):
    for wait in (0.0, 0.1, 0.4):
        ready = being_written(name)
        start = []

        def after():
            if ready() and not start:
                start.append(time.monotonic())
            return bool(start) and time.monotonic() - start[0] >= wait

        kill_when(after, signal.SIGINT, *COMMAND)
        claim(f"{name} whole", sizes() == full, sizes())
left = sorted(set(os.listdir(".")) - {"many.py", "o.parquet", "t.json"})
claim("nothing else is left", not left, left)
