# A huge recursion is reported in seconds.
# run: python {file}
# never: FAILS
# expect: holds: reported

import time
from pathlib import Path

from common import claim, kernbench

Path("rec.py").write_text(
    "import sys\nsys.setrecursionlimit(10**6)\ndef f(): f()\ndef run(torch): f()\n"
)
start = time.monotonic()
status, said = kernbench("run", "rec.py", seconds=100)
print(said[:300])
claim("reported", status == 1 and "RecursionError" in said, (status, said[:300]))
claim("in seconds", time.monotonic() - start < 30, time.monotonic() - start)
