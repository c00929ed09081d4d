"""What is not collected: modules of the bridge where PyTorch, an extra, is not installed."""

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("torch") else ["src/kernbench/torch_bridge/*"]
