"""Leaves files open, which refer to each other; without PyTorch it is a script.

python leaving_open.py FOLDER
"""

import gc
import gzip
import os
import sys
import time
import zipfile
from pathlib import Path

folder = Path(sys.argv[1], os.environ.get("RANK", "0"))
folder.mkdir(exist_ok=True)


class Log:
    def __init__(self):
        self.file = (folder / "held.txt").open("w")
        self.file.write("held by an object")
        self.itself = self


log = Log()
text = (folder / "text.txt").open("w")
text.write("a line\n")
packed = gzip.open(folder / "packed.gz", "wt")  # noqa: SIM115 - left open
packed.write("packed")
archive = zipfile.ZipFile(folder / "archive.zip", "w")
archive.writestr("name", "stored")
if os.environ.get("RANK") == "1":
    time.sleep(1)  # rank 0 has ended
    gc.collect()
    sys.stdout = (folder / "stdout.txt").open("w")
print("printed")
