"""What is run for a measured program, and where its time is read."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from kernbench.errors import KernbenchError

LOOPS = Path(__file__).parent / "loops"
STEP = r"^step ([\d.]+) ms"
"""What loops of ours print."""
APART_S = 0.5
"""What a program of kernels (``of_kernels``) launches so much after all else is what it timed."""


class ProgramError(KernbenchError):
    """A program cannot be run or timed; the text is the reason, in equal words for equal ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """One configuration of a program."""

    script: Path
    args: tuple[str, ...] = ()
    ranks: int = 1
    module: str = ""
    """Its name where it is run as a module (``python -m``)."""
    reads: str = STEP
    """What a line that says the time of a step looks like; its group is the number."""
    reads_first: str = ""
    """What a line before it looks like that says another time, in the same unit; empty: none is."""
    unit_us: float = 1e3
    """What a 1 in that number is."""
    units_per_step: float = 0.0
    """Where the number is a rate in units a second, how many a step has; 0 where it is a time."""
    line: int = 1
    """Which such line counts: it ends the program. Earlier ones are of steps that warm up."""
    needs: tuple[str, ...] = ()
    """Packages that it imports."""
    installed: tuple[str, ...] = ()
    """Packages that must be there, too, and that each rank imports for itself."""
    folder: Path | None = None
    """Its working directory."""
    paths: tuple[Path, ...] = ()
    """Folders from which it imports, besides its own."""
    variables: tuple[tuple[str, str], ...] = ()
    """Environment variables."""
    is_compiled: bool = False
    """Whether what it hands to ``torch.compile`` is compiled; else that runs as it is."""
    is_before_2_8: bool = False
    """Whether its compiler follows rules of Inductor before PyTorch 2.8 (``old_inductor``)."""
    nodes: int = 1
    """Nodes that its ranks are on, as many on each."""
    folded_to: int | None = None
    """The rank that runs for all that do the same (ADR-0166): the one that says the time. None: all
    ranks run."""
    of_kernels: bool = False
    """Whether its time is of kernels alone, however long its host takes, as ``do_bench`` has it."""
    changes: tuple[tuple[str, str], ...] = ()
    """Regular expressions, and what stands in their place in the script: what the source changed,
    or a setting that the script leaves to its text."""

    def check(self) -> None:
        """Raise ``ProgramError`` where the script, or a package that it needs, is missing."""
        missing = [need for need in (*self.needs, *self.installed) if find_spec(need) is None]
        if missing:
            how = "docs/serving.md says how" if "vllm" in missing else "make programs"
            raise ProgramError(f"needs {', '.join(missing)}: {how}")
        if not self.script.is_file():
            raise ProgramError(f"needs {self.script.name}: make programs")

    def text(self) -> str:
        """Return the script's text.

        Raises:
            ProgramError: The script has nothing that a change is for.
        """
        name = self.script.read_text(encoding="utf-8")
        for pattern, text in self.changes:
            name, count = re.subn(pattern, text, name, flags=re.MULTILINE)
            if not count:
                raise ProgramError(f"{self.script.name} has nothing like {pattern!r} to change")
        return name


def loop(name: str, *args: object, needs: tuple[str, ...] = (), ranks: int = 1) -> Program:
    """Return a loop of ours, by the name of its file."""
    return Program(
        script=LOOPS / f"{name}.py", args=tuple(map(str, args)), needs=needs, ranks=ranks
    )
