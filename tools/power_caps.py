"""How far power caps slow devices down: published measurements, and what the model says.

    python tools/power_caps.py

Each program runs once, without data, and is kept; ``retime`` does it again under each cap. Programs
are like those that were measured, not the same: training of BERT base is a stack of PyTorch's own
encoder layers, a query of a language model its products.
"""

from __future__ import annotations

import csv
import json
import subprocess
import sys
import tempfile
from itertools import groupby
from pathlib import Path
from typing import Any

ROWS = Path(__file__).with_suffix(".csv")
_PRODUCTS = """
import torch
with torch.no_grad():
    shapes = ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336))
    layers = [torch.empty(shape, device="cuda", dtype=torch.half) for shape in shapes * 4]
    rows = {n: torch.empty(QUERIES, n, device="cuda", dtype=torch.half) for _, n in shapes}
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for weight in layers:
            torch.nn.functional.linear(rows[weight.shape[1]], weight)
    for _ in range(300):
        graph.replay()
torch.cuda.synchronize()
"""
PROGRAMS = {
    "training BERT base, batch 24": '''
import torch
from torch import nn
torch.backends.cuda.matmul.allow_tf32 = True  # as PyTorch did until 1.12
layer = nn.TransformerEncoderLayer(768, 12, 3072, 0.1, "gelu", batch_first=True)
model = nn.TransformerEncoder(layer, 12, enable_nested_tensor=False).cuda()
optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
x = torch.randn(24, 384, 768, device="cuda")
for _ in range(8):
    model(x).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
torch.cuda.synchronize()
''',
    "one query of a language model": _PRODUCTS.replace("QUERIES", "1"),
    "64 queries of a language model": _PRODUCTS.replace("QUERIES", "64"),
}  # fmt: skip
"""The last two: the products of four layers of Llama 3 8B, in a CUDA graph."""


class KeptProgram:
    """A program that ran once on a machine, to be timed under caps."""

    def __init__(self, program: str, machine: str, folder: Path) -> None:
        self._report, self._run = folder / "report.json", folder / "program.run"
        file = folder / "program.py"
        file.write_text(PROGRAMS[program])
        self._call("run", "--no-data", "--machine", machine, "--save", str(self._run), str(file))

    def _call(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "kernbench", *arguments]
        subprocess.run(command, check=True, capture_output=True)

    def under(self, cap_w: float) -> tuple[float, float]:
        """Return seconds, and the watts that the device draws meanwhile."""
        cap = f"sip.power.cap_w={cap_w:g}"
        self._call("retime", str(self._run), "--set", cap, "--json", str(self._report))
        report: dict[str, Any] = json.loads(self._report.read_text())
        return report["time_ns"] / 1e9, report["energy"]["average_w"]


def main() -> None:
    """Print the table."""
    with ROWS.open(newline="") as file:
        rows = list(csv.DictReader(file))
    print("| what | cap | slower | modeled | draws | modeled |")
    print("| --- | --- | --- | --- | --- | --- |")
    for (source, what, machine), group in groupby(
        rows, lambda row: (row["source"], row["program"], row["machine"])
    ):
        with tempfile.TemporaryDirectory() as folder:
            program = KeptProgram(what, machine, Path(folder))
            base_s = None
            for row in group:
                taken_s, watts = program.under(float(row["cap_w"]))
                base_s = base_s or taken_s
                slower = f"{float(row['slowdown']) - 1:.0%}", f"{taken_s / base_s - 1:.0%}"
                drawn = f"{float(row['watts']):.0f} W" if row["watts"] else "-"
                cells = (f"{row['device']}, {what} ({source})", f"{row['cap_w']} W", *slower)
                print("|", " | ".join((*cells, drawn, f"{watts:.0f} W")), "|", flush=True)


if __name__ == "__main__":
    main()
