"""The commands, a module each: its options, and what it does.

A module that is put here, or in a room of this one, is a command; nothing else names it. It has

- ``app``, a ``typer.Typer``: unnamed if its commands are called by their own names (``kernbench
  run``), named if they are called by its name and theirs (``kernbench machine list``);
- ``PLACE``, where in the list of ``kernbench --help`` the module comes.

All are imported by every call of ``kernbench``: what takes long to import (numpy, pydantic, Triton
and most of kernbench) is imported in functions. Options of several commands are in
``kernbench.cli.options``.
"""
