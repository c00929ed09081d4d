# A field of 200,000 characters in a file of measured rows is an error with file and line.
# run: python {file}
# never: FAILS
# expect: holds: named
# expect: holds: m of 1e8 ends

from pathlib import Path

from common import claim, kernbench

HEAD = "device,op,dtype,m,n,k,time_us,source\n"
Path("f.csv").write_text(HEAD + "H100-80GB,gemm,fp16,64,64,64,5," + "y" * 200_000 + "\n")
status, said = kernbench("validate", "f.csv", "--jobs", "1")
claim(
    "named",
    "Traceback" not in said and (status == 0 or "f.csv:2" in said.replace("\n", "")),
    said[-300:],
)
Path("g.csv").write_text(HEAD + "H100-80GB,gemm,fp16,100000000,64,64,5,y\n")
status, said = kernbench("validate", "g.csv", "--jobs", "1", seconds=60)
claim("m of 1e8 ends", status in (0, 1) and "Traceback" not in said, (status, said[-300:]))
