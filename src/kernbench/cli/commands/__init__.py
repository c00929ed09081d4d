"""The commands, a module each: its options, and what it does.

A module that is put here, or in a room of this one, is the command of its name, with ``-`` for
``_``; nothing else names it. It has

- ``app``, a ``typer.Typer``: unnamed with one command (``kernbench run``), or named with several
  that are called by its name and theirs (``kernbench machine list``);
- ``PLACE``, where in the list of ``kernbench --help`` the module comes.

A call of ``kernbench`` imports the one that it names, and ``--help`` all: what takes long to import
(numpy, pydantic, Triton and most of kernbench) is imported in functions. Options of several
commands are in ``kernbench.cli.options``.
"""
