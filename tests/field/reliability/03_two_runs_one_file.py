# Two runs write into the same files: one of the two results, or an error.
# run: python {file}
# never: FAILS
# expect: holds: whole

import json
import subprocess

import pyarrow.parquet
from common import claim, write_bench

write_bench()
runs = [
    subprocess.Popen(
        ["kernbench", "run", "many.py", "-p", f"n={n}", "--no-data"]
        + ["--log", "s.parquet", "--trace", "s.json"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    for n in (3000, 6000)
]
ends = [(item.communicate()[1], item.returncode) for item in runs]
print(ends)
claim("one run at least succeeds", any(status == 0 for _, status in ends), ends)
claim("who fails names the file", all(status == 0 or "s." in text for text, status in ends), ends)
try:
    events = len(json.load(open("s.json"))["traceEvents"])
    rows = pyarrow.parquet.read_table("s.parquet").num_rows
    claim("whole", events > 3000 and rows > 0, (events, rows))
except Exception as error:
    claim("whole", False, error)
