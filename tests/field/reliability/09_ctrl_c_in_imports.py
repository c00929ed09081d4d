# Ctrl-C while libtriton is imported ends with 130.
# run: python {file}
# expect: ^\{130: 30\}$

import collections
import random
import shutil
import signal
import subprocess
import time
from pathlib import Path

ends = collections.Counter()
draw = random.Random(4)
for _ in range(30):
    process = subprocess.Popen(
        [shutil.which("kernbench"), "run", "gemm", "--no-data"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    while (
        process.poll() is None and "libtriton" not in Path(f"/proc/{process.pid}/maps").read_text()
    ):
        time.sleep(0.001)
    time.sleep(draw.random() * 0.25)
    process.send_signal(signal.SIGINT)
    process.communicate()
    ends[process.returncode] += 1
print(dict(ends))
