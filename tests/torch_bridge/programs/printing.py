"""Prints whole lines and parts of them, to both outputs; a rank of this number debugs.

python printing.py [RANK]
"""

import os
import pdb
import sys
import time

rank = os.environ["RANK"]
print("hello\nfrom", rank)
sys.stdout.write("un")
sys.stdout.flush()
time.sleep(1)
print("finished")
print("to stderr", file=sys.stderr)
if sys.argv[1:] == [rank]:
    debugger = pdb.Pdb(readrc=False)
    debugger.rcLines = ["p 40 + 2", "c"]
    debugger.set_trace()
done = True
