"""kernbench validate that says when interrupts are no longer held.

python told_validation.py ARGUMENTS
"""

import sys

from kernbench.accuracy import score
from kernbench.cli import main

held = score._interrupts_held


class Telling:
    def __enter__(self):
        self.held = held()
        self.held.__enter__()

    def __exit__(self, *error):
        self.held.__exit__(*error)
        print("ready", flush=True)


score._interrupts_held = Telling  # type: ignore[assignment]
if __name__ == "__main__":
    sys.argv.insert(1, "validate")
    main()
