"""Where FlashInfer would keep compiled kernels: engines name folders of their own after it."""

from pathlib import Path

FLASHINFER_WORKSPACE_DIR = Path("~/.cache/flashinfer/kernbench/100").expanduser()
