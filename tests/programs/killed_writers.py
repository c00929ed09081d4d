"""Forks writers of three files, and kills each at some time; says how it ended and what there is.

python killed_writers.py FOLDER COUNT

One process forks the writers: none is started anew for each. A writer stops for a moment between
its lines, as one that computes them does, so that signals find it at work.
"""

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

from kernbench.cli.console.streams import interruptible
from kernbench.outputs import SUFFIX, Outputs

folder, num_kills = sys.argv[1], int(sys.argv[2])
names = [f"{folder}/{name}" for name in ("log", "trace", "json")]


def write(number, begun=lambda: None):
    with Outputs({f"--{name}": name for name in names}) as outputs:
        begun()
        for name in names:
            with outputs.writing(f"--{name}") as file:
                for _line in range(40):
                    file.write(b"%d\n" % number * 500)
                    time.sleep(0.0001)
        outputs.publish()


chosen = random.Random(11)
began = time.monotonic()
write(0)
takes_s = time.monotonic() - began
for number in range(1, num_kills + 1):
    how = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)[number % 3]
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        status = 1
        try:
            with interruptible():

                def tell(writer=writer):
                    os.write(writer, b"!")

                # Who is asked to end takes away what is its own: it must have taken the places
                # over from a writer that was killed.
                if how == signal.SIGKILL:
                    tell()
                    write(number)
                else:
                    write(number, tell)
            status = 0
        except KeyboardInterrupt:
            status = 130
        finally:
            os._exit(status)
    os.read(reader, 1)
    os.close(reader)
    os.close(writer)
    time.sleep(chosen.random() * takes_s * 1.1)
    os.kill(child, how)
    _, status = os.waitpid(child, 0)
    result = []
    for name in names:
        lines = set(Path(name).read_text().split())
        result.append([len(lines), int(lines.pop()), Path(name).stat().st_size])
    left = [path.name for path in Path(folder).glob(f"*{SUFFIX}")]
    print(json.dumps([number, int(how), os.waitstatus_to_exitcode(status), result, left]))
