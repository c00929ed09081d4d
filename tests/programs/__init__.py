"""Programs that tests run as files, in this process or another; those of PyTorch are beside its."""

from pathlib import Path

PROGRAMS = Path(__file__).parent
