"""What is not collected: what needs packages that are not installed."""

from importlib.util import find_spec

collect_ignore_glob = ["tests/libraries/*"]
"""They need libraries that no test does; see ``make test-libraries``."""
collect_ignore_glob.append("src/kernbench/torch_bridge/replaced/stand_ins/flash_attn/*")
"""It is imported as the top-level package that it stands in for, within a run only."""
collect_ignore_glob.append("src/kernbench/plans/programs/*")
"""Programs that other processes run."""
if not find_spec("torch"):
    collect_ignore_glob.append("src/kernbench/torch_bridge/*")
