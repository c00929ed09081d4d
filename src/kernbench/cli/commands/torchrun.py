"""``kernbench torchrun``: an unmodified PyTorch program on the devices of a machine (ADR-0060)."""

from __future__ import annotations

import typer

from kernbench.cli.options import ProgramCommand
from kernbench.cli.programs.torch_programs import TorchrunOptions, torchrun
from kernbench.cli.registry import options_command

PLACE = 30
app = typer.Typer()


@options_command(
    app, "torchrun", cls=ProgramCommand, context_settings={"allow_interspersed_args": False}
)
def _torchrun(context: typer.Context, options: TorchrunOptions) -> int:
    """Run an unmodified PyTorch program on simulated devices; then show where the time went.

    kernbench torchrun --nproc-per-node 8 --machine h100-sxm --no-data train.py --batch 16

    Arguments of the program come after SCRIPT; options of kernbench before it, or after it where
    the program has none of that name. Every rank is a
    simulated process with the variables that torchrun sets (RANK, LOCAL_RANK, WORLD_SIZE, ...);
    "cuda" is the machine, "nccl" its links. Options of torchrun that find other nodes
    (--rdzv-backend, --rdzv-endpoint, ...) are accepted. Needs PyTorch: pip install
    "kernbench[torch]".
    """
    return torchrun(options)
