# An output that is the bench itself is refused.
# run: python {file}
# never: FAILS
# expect: holds: refused

from pathlib import Path

from common import BENCH, claim, kernbench, write_bench

write_bench()
status, said = kernbench("run", "many.py", "-p", "n=1", "--no-data", "--json", "many.py")
claim("refused", status == 2 and Path("many.py").read_text() == BENCH, (status, said))
