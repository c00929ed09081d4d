# What a program times itself by is modeled: two runs print the same.
# run: python {file}
# never: FAILS
# expect: holds: the same

import time
from pathlib import Path

from common import claim, kernbench

Path("t.py").write_text(
    "import time, torch\nt = time.perf_counter(); x = torch.ones(8, device='cuda');"
    " torch.cuda.synchronize(); print(repr(time.perf_counter() - t), time.perf_counter())\n"
)
lines = []
for _ in range(3):
    lines.append(kernbench("torchrun", "t.py")[1].splitlines()[0])
    time.sleep(1)
claim("the same", len(set(lines)) == 1 and float(lines[0].split()[0]) > 0, lines)
