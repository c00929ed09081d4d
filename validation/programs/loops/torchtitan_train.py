"""Runs torchtitan's trainer as it is, on made-up texts in place of the C4 data set.

arguments: the trainer's.
"""

import random
import runpy
from typing import Any

TEXTS, WORDS = 200, 20_000


def made_up(*_: Any, **__: Any) -> Any:
    """Return long texts, whatever data set is asked for."""
    import datasets

    words = random.Random(0)
    known = [f"w{number}" for number in range(50)]
    one = " ".join(words.choices(known, k=WORDS))
    return datasets.Dataset.from_dict({"text": [one] * TEXTS})


def main() -> None:
    """Train."""
    # Not needed to look at this module.
    import datasets

    datasets.load_dataset = made_up
    runpy.run_module("torchtitan.train", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
