# A damaged file of Triton's cache is compiled again, or named; a cache that is no folder is named.
# run: python {file}
# never: FAILS
# expect: holds: a file for a cache

from pathlib import Path

from common import claim, kernbench, write_bench

write_bench()
COMMAND = ("run", "many.py", "-p", "n=1")
cache = Path("cache").absolute()
kernbench(*COMMAND, TRITON_CACHE_DIR=str(cache))


def right(status, said, path):
    return "Traceback" not in said and (status == 0 or str(path) in said.replace("\n", ""))


for name in ("inc.kernbench", "inc.json"):
    (path,) = cache.glob(f"*/{name}")
    whole = path.read_bytes()
    path.write_bytes(whole[:40])
    status, said = kernbench(*COMMAND, TRITON_CACHE_DIR=str(cache))
    claim(f"truncated {name}", right(status, said, path), said)
    path.write_bytes(whole)
(path,) = cache.glob("*/inc.kernbench")
whole = bytearray(path.read_bytes())
whole[20] = 0xB8
path.write_bytes(whole)
status, said = kernbench(*COMMAND, TRITON_CACHE_DIR=str(cache))
claim("garbled", right(status, said, path), said)
Path("cf").write_text("\n")
status, said = kernbench(*COMMAND, TRITON_CACHE_DIR=str(Path("cf").absolute()))
claim("a file for a cache", right(status, said, "cf"), said)
