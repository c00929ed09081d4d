"""Train small models of a torchtitan checkout on simulated devices, sharded in several ways.

usage: python tools/titan_runs.py CHECKOUT [NAME ...]

CHECKOUT is a clone of torchtitan at v0.2.2, whose requirements are installed. Its trainer runs as
it is, on words made up here; a run counts when it ends well and its loss has come down.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import subprocess
import sys
import tempfile
from pathlib import Path

MODELS = "torchtitan/models/{}/train_configs/debug_model.toml"
RUNS = {
    "fsdp": ("llama3", 4, ()),
    "fsdp and tensor parallel": ("llama3", 4, ("--parallelism.tensor-parallel-degree", "2")),
    "fsdp and pipeline": ("llama3", 4, ("--parallelism.pipeline-parallel-degree", "2")),
    "fsdp and context parallel": ("llama3", 4, ("--parallelism.context-parallel-degree", "2")),
    "experts": ("deepseek_v3", 2, ()),
}
"""What is run: the model, on how many ranks, with which options."""
OPTIONS = ("--training.steps=4", "--training.seq-len=256", "--training.local-batch-size=8")
LOSS = re.compile(r"step: +(\d+) .*?loss: +(-?[\d.]+)")


def lay_out(checkout: Path, folder: Path) -> None:
    """Give a folder what the trainer looks for in its working directory."""
    (folder / "torchtitan").symlink_to(checkout.resolve() / "torchtitan")
    assets = folder / "tests/assets"
    (assets / "c4_test").mkdir(parents=True)
    (assets / "tokenizer").symlink_to(checkout.resolve() / "tests/assets/tokenizer")
    words = random.Random(0)
    vocabulary = [f"w{number}" for number in range(50)]
    lines = (json.dumps({"text": " ".join(words.choices(vocabulary, k=200))}) for _ in range(2000))
    (assets / "c4_test/data.json").write_text("\n".join(lines))


def losses(folder: Path, name: str) -> list[float]:
    """Return the losses of a run, each the largest that a rank says."""
    model, ranks, options = RUNS[name]
    command = [sys.executable, "-m", "kernbench", "torchrun", "--machine", f"h100-sxm:{ranks}"]
    command += ["--nproc-per-node", str(ranks), "-m", "torchtitan.train"]
    command += ["--job.config_file", MODELS.format(model), *OPTIONS, *options]
    environ = os.environ | {"HF_HUB_OFFLINE": "1", "NO_COLOR": "1"}
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{name}: {done.stderr[-2000:]}")
    plain = re.sub(r"\x1b\[[\d;]*m", "", done.stdout + done.stderr)
    numbers: dict[int, float] = {}
    for step, loss in LOSS.findall(plain):
        numbers[int(step)] = max(float(loss), numbers.get(int(step), -1.0))
    return [numbers[step] for step in sorted(numbers)]


def main() -> int:
    """Run what was asked for; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("names", nargs="*", default=list(RUNS))
    options = parser.parse_args()
    failed = 0
    with tempfile.TemporaryDirectory() as name:
        lay_out(options.checkout, Path(name))
        for item in options.names:
            result = losses(Path(name), item)
            is_well = len(result) == 4 and result[-1] < result[0]
            failed += not is_well
            print(f"{item}: {'trains' if is_well else 'FAILS'}, losses {result}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
