"""Leaves a program after a statement of its arguments.

python leaving.py STATEMENT
"""

import atexit
import sys
import threading
import time

from kernbench.cli.console.streams import leave


class Loud:
    def __del__(self):
        print("taken apart")


kept = Loud()
atexit.register(print, "registered")
exec(sys.argv[1], {"sys": sys, "threading": threading, "time": time})
print("written")
leave(3)
print("goes on")
