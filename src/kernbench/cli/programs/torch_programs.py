"""Running an unmodified PyTorch program on the devices of a machine (ADR-0060)."""

from __future__ import annotations

import gc
import json
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

from kernbench.cli import options as common
from kernbench.cli.programs.folded import check_folding, run_ranks
from kernbench.cli.programs.importing import import_to_stay
from kernbench.cli.programs.reporting import DONE, context_of, guarded, make_room
from kernbench.cli.programs.scripts import compile_program, find_script
from kernbench.errors import UsageError
from kernbench.outputs import Outputs

if TYPE_CHECKING:
    from kernbench.hardware import Machine
    from kernbench.runtime_api import RuntimeContext


@dataclass(frozen=True, kw_only=True)
class TorchrunOptions(common.FoldOptions):
    """How to run a PyTorch program; see ``kernbench torchrun --help``."""

    program: str = common.argument("", metavar="SCRIPT", help="A PyTorch program.")
    args: common.Args = None
    nproc_per_node: str = common.option(
        "1",
        "--nproc-per-node",
        "--nproc_per_node",
        metavar="N|gpu",
        help="Ranks of each node, gpu for one per device; with 1 the program may spawn ranks.",
    )
    module: bool = common.option(
        False, "-m", "--module", help="SCRIPT is a module, as of python -m."
    )
    nnodes: str = common.option(
        "1", "--nnodes", metavar="N", help="Nodes of the machine (links.scale_out); all run here."
    )
    master_addr: str | None = common.option(
        None,
        "--master-addr",
        "--master_addr",
        help="Of MASTER_ADDR [default: localhost, or node0 of several nodes].",
    )
    master_port: int = common.option(
        29500, "--master-port", "--master_port", help="Of MASTER_PORT."
    )
    standalone: bool = common.option(False, "--standalone", help="As torchrun's; it is always so.")
    node_rank: str = common.option("0", "--node-rank", "--node_rank", hidden=True)
    max_restarts: common.MaxRestarts = 0
    rdzv_backend: str = common.option("", "--rdzv-backend", "--rdzv_backend", hidden=True)
    rdzv_endpoint: str = common.option("", "--rdzv-endpoint", "--rdzv_endpoint", hidden=True)
    rdzv_id: str = common.option("none", "--rdzv-id", "--rdzv_id", hidden=True)
    machine: common.Machine = "ahbm"
    ranks_print: str = common.option(
        "all", metavar="all|0,1,...", help="The ranks whose output is shown."
    )
    prefix: bool = common.option(
        False, "--prefix/--no-prefix", help="Show each line's rank before it."
    )
    log_dir: str | None = common.option(
        None,
        "--log-dir",
        "--log_dir",
        metavar="DIR",
        help="Write what the ranks of each node print to DIR/node0.log, node1.log, ...",
    )
    private: list[str] | None = common.option(
        None, metavar="PACKAGE", help="A package that each rank imports for itself; repeatable."
    )
    beside: list[str] | None = common.option(
        None,
        metavar="COMMAND",
        help="Another command of the run, as a client of the server that FILE is: a process of "
        "its own; repeatable. When all of them have ended, so does FILE.",
    )
    hash_seeds: bool = common.option(
        False,
        "--hash-seeds",
        help="Let each rank have its own order of sets of strings, as processes have.",
    )


def torchrun(options: TorchrunOptions) -> int:
    """Run a program, report, and return its exit status."""

    def start() -> int:
        from kernbench.torch_bridge import check_nodes, check_ranks, check_torch

        nnodes, name = _num_nodes(options), options.machine
        path = _find_module(options.program) if options.module else find_script(options.program)
        if nnodes > 1:
            from kernbench.hardware import nodes_of

            name = nodes_of(name, nnodes, f"--nnodes {options.nnodes}")
        nprocs = _num_processes(options, name)
        check_ranks(nprocs, f"--nproc-per-node {options.nproc_per_node}")
        if options.beside and nnodes * nprocs > 1:
            raise UsageError(
                f"--beside is for one process, which may start ranks, not {nnodes * nprocs}: leave "
                "out --nproc-per-node and --nnodes"
            )
        # A program in one process may start ranks itself, as many as there are devices.
        ranks = None if nprocs == 1 or nnodes > 1 else nprocs
        machine, changes = options.load_machine(name, ranks)
        check_nodes(machine, nprocs, nnodes)
        if options.is_folded and options.hash_seeds:
            raise UsageError(
                "--fold runs one rank for all that do the same, but with --hash-seeds each goes "
                "over sets of strings in an order of its own: leave one of them out"
            )
        if options.is_folded:
            asked = "--nproc-per-node, and --nnodes for several nodes"
            check_folding(options.data, nnodes * nprocs, machine, asked)
        check_torch()
        with make_room(options, options.machine, [path]) as outputs:
            return _run(options, path, machine, changes, (nnodes, nprocs), outputs)

    try:
        return guarded(start, options.debug, usage=True)
    finally:
        gc.unfreeze()


def _run(
    options: TorchrunOptions,
    path: Path,
    machine: Machine,
    changes: list[str],
    processes: tuple[int, int],
    outputs: Outputs,
) -> int:
    """Run the program on so many nodes, and processes of each; return its exit status."""
    from kernbench.cli.programs.parameters import exit_status, say_whose_options
    from kernbench.torch_bridge import check_private

    nnodes, nprocs = processes
    num_ranks = nnodes * nprocs
    shown = _ranks(options.ranks_print, num_ranks if num_ranks > 1 else machine.num_sips)
    args = options.args or []
    say_whose_options(path, args, options.own_options)
    import_bridge()
    from kernbench.torch_bridge import run_torchrun

    check_private(options.private or (), path.parent)
    log_dir = _log_dir(options)

    # As torchrun does: a `--` behind the program only says that options end there.
    args = args[1:] if args[:1] == ["--"] else args
    # A module's own name is that of its file.
    module = options.program if options.module else None
    argv = [str(path) if module else options.program, *args]
    if options.beside:
        commands = [(module or "", [str(path), *args]), *map(_command, options.beside)]
        path, module = Path(__file__).with_name("beside.py"), None
        argv = [str(path), json.dumps(commands)]
    code = compile_program(path, "torchrun")

    def work(context: RuntimeContext) -> int:
        try:
            run_torchrun(
                context,
                path,
                code,
                argv,
                nprocs,
                shown=shown,
                with_rank=options.prefix,
                module=module,
                variables={
                    **({"MASTER_ADDR": options.master_addr} if options.master_addr else {}),
                    "MASTER_PORT": str(options.master_port),
                    "TORCHELASTIC_RUN_ID": options.rdzv_id,
                },
                private=options.private or (),
                num_nodes=nnodes,
                max_restarts=options.max_restarts,
                log_dir=log_dir,
                hash_seeds=options.hash_seeds,
                is_last=True,
            )
        except SystemExit as end:
            return exit_status(end)
        return DONE

    return guarded(
        lambda: run_ranks(
            context_of(options, machine, changes), num_ranks, work, options, outputs, code
        ),
        options.debug,
    )


def _command(text: str) -> tuple[str, list[str]]:
    """Return the module of a command, if it is one's, and its file with its arguments.

    Raises:
        UsageError: It is not a Python file, an installed command, or ``-m MODULE``.
    """
    try:
        program, *args = shlex.split(text) or [""]
    except ValueError as error:
        raise UsageError(f"--beside {text}: {error}") from None
    if program == "-m" and args:
        return args[0], [str(_find_module(args[0])), *args[1:]]
    return "", [str(find_script(program)), *args]


def _log_dir(options: TorchrunOptions) -> Path | None:
    """Return the folder of ``--log-dir``, which is there from then on.

    Raises:
        UsageError: It cannot be made.
    """
    if options.log_dir is None:
        return None
    try:
        Path(options.log_dir).mkdir(exist_ok=True)
    except OSError as error:
        raise UsageError(f"--log-dir {options.log_dir}: {error.strerror or error}") from None
    return Path(options.log_dir)


def import_bridge() -> None:
    """Import PyTorch, and what runs its programs."""
    from kernbench.torch_bridge import importing_torch

    with importing_torch():
        import_to_stay("kernbench.torch_bridge.front.programs")


def _num_nodes(options: TorchrunOptions) -> int:
    """Return how many nodes were asked for.

    Raises:
        UsageError: It is no number, or one of several that torchrun would be started on.
    """
    least, _, most = options.nnodes.partition(":")
    if not least.isdecimal() or int(least) < 1 or (most or least) != least:
        raise UsageError(
            f"--nnodes must be at least 1, or such a number twice (2:2), but got {options.nnodes}"
        )
    if options.node_rank != "0":
        raise UsageError(
            f"--node-rank must be 0, but got {options.node_rank}; the ranks of all nodes run here: "
            "leave it out"
        )
    return int(least)


def _num_processes(options: TorchrunOptions, machine: str) -> int:
    """Return how many ranks of each node were asked for.

    Raises:
        UsageError: It is no number, or less than 1.
    """
    text = options.nproc_per_node
    if text in ("gpu", "auto"):
        from kernbench.hardware import load_machine

        return load_machine(machine, None).sips_per_host
    if not text.isdecimal() or int(text) < 1:
        raise UsageError(f"--nproc-per-node must be at least 1, or gpu, but got {text}")
    return int(text)


def _find_module(name: str) -> Path:
    """Return the file of a module that is found from the working directory.

    Raises:
        UsageError: There is none, or it is not a Python file.
    """
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    spec = _spec_of(name)
    if spec is not None and spec.submodule_search_locations is not None:
        spec = _spec_of(f"{name}.__main__")
    if spec is None or not spec.has_location or not str(spec.origin).endswith(".py"):
        raise UsageError(f"-m {name}: no such module from {folder}; give a file without -m")
    return Path(str(spec.origin))


def _spec_of(name: str) -> ModuleSpec | None:
    """Find a module as an import would, without importing its parent packages.

    They belong to the program: they may look at its arguments, and at its devices.
    """
    module_spec: ModuleSpec | None = None
    path: Sequence[str] | None = None
    for full_name in accumulate(name.split("."), "{}.{}".format):
        specs = (finder.find_spec(full_name, path) for finder in sys.meta_path)
        module_spec = next((spec for spec in specs if spec is not None), None)
        path = None if module_spec is None else module_spec.submodule_search_locations
        if path is None:
            break
    return module_spec if module_spec is not None and module_spec.name == name else None


def _ranks(text: str, most: int) -> frozenset[int] | None:
    """Return the ranks that an option names, None for all.

    Raises:
        UsageError: It names none, or one that cannot be.
    """
    if text == "all":
        return None
    try:
        ranks = frozenset(int(part) for part in text.split(","))
    except ValueError:
        ranks = frozenset((-1,))
    if not all(0 <= rank < most for rank in ranks):
        raise UsageError(
            f"--ranks-print must be all, or ranks from 0 to {most - 1} such as 0 or 0,1, but got "
            f"{text!r}"
        )
    return ranks
