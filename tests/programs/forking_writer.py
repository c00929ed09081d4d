"""A writer that forks a process, which would take away what it has begun.

python forking_writer.py FILE
"""

import os
import sys

from kernbench.outputs import Outputs, take_away

with Outputs({"--log": sys.argv[1]}) as outputs:
    with outputs.writing("--log") as file:
        file.write(b"whole")
        file.flush()
        child = os.fork()
        if not child:
            take_away()
            os._exit(0)
        os.waitpid(child, 0)
    outputs.publish()
