# A fifo gets the report, a dangling link is written through, two links to one file are two outputs of one name.
# run: python {file}
# never: FAILS
# expect: holds: fifo
# expect: holds: hard links

import json
import os
import subprocess
from pathlib import Path

from common import claim, kernbench, write_bench

write_bench()
os.mkfifo("ff")
with open("got", "w") as got:
    reader = subprocess.Popen(["timeout", "60", "cat", "ff"], stdout=got)
status, said = kernbench("run", "many.py", "-p", "n=5", "--no-data", "--json", "ff", seconds=60)
reader.wait()
text = Path("got").read_text()
claim("fifo", status == 0 and text.strip() and json.loads(text), (status, said[-200:], text[:80]))

Path("link.json").symlink_to("target.json")
Path("fail.py").write_text('def run(torch): raise ValueError("x")')
status, said = kernbench("run", "fail.py", "--json", "link.json")
claim("a failing run keeps the link", Path("link.json").is_symlink(), said)
claim(
    "and leaves no empty target",
    not Path("target.json").exists() or json.loads(Path("target.json").read_text()),
)
status, said = kernbench("run", "many.py", "-p", "n=5", "--no-data", "--json", "link.json")
claim(
    "written through the link",
    Path("link.json").is_symlink() and json.loads(Path("target.json").read_text()),
    said,
)

Path("h1").write_text("x")
os.link("h1", "h2")
status, said = kernbench(
    "run", "many.py", "-p", "n=5", "--no-data", "--json", "h1", "--trace", "h2"
)
claim("hard links", status == 2 and Path("h1").read_text() == "x", (status, said))
