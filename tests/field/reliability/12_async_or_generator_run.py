# An async run and a generator run nothing of the bench: usage errors.
# run: python {file}
# never: FAILS
# expect: holds: async
# expect: holds: torchrun of a bench

from pathlib import Path

from common import claim, kernbench

Path("a.py").write_text("async def run(torch):\n    assert False\n")
Path("g.py").write_text("def run(torch):\n    assert False\n    yield 1\n")
Path("b.py").write_text("def run(torch):\n    assert False\n")
for name, arguments in (
    ("async", ("run", "a.py")),
    ("generator", ("run", "g.py")),
    ("torchrun of a bench", ("torchrun", "b.py")),
):
    status, said = kernbench(*arguments)
    claim(name, status == 2 and "run" in said, (status, said))
