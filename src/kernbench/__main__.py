"""``python -m kernbench`` is the ``kernbench`` command."""

from kernbench.cli import main

main()
