# "--" before the script's own options, as in nanochat's own command.
# run: kernbench torchrun --nproc-per-node 1 {file} -- --depth=4
# expect: ^\['--depth=4'\]$

import sys

print(sys.argv[1:])
