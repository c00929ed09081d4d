"""Fit the constants of vendor libraries' kernels, and write them into the architecture's files.

    python tools/fit_kernels.py sm80 DATA.csv... --only 'flash2_*'

Fitted are the constants that a kernel's entry in a file of ``kernel_libraries/ARCHITECTURE`` gives,
of ``kernbench.hardware`` or of ``validation.kernels``: to have one fitted that an entry leaves out,
write a first guess there. One row in four, by whole shapes, is kept apart and only scored.
``--dry-run`` writes nothing.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from kernbench.accuracy.rows import read_rows
from kernbench.accuracy.score import Errors
from kernbench.hardware import KernelFamily, library_folder
from validation.fits.kernel_fit import family_as_text, fit_kernels
from validation.fits.lean import lean_library
from validation.kernels import FOLDER, load_library
from validation.sources.forms import FORMS

_FOLDERS = library_folder(), FOLDER


def main() -> None:
    """Fit, say what changed, and write the file."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("architecture")
    parser.add_argument("data", nargs="+")
    parser.add_argument("--only", action="append", default=[], metavar="PATTERN")
    parser.add_argument("--device", action="append", default=[], metavar="NAME")
    parser.add_argument(
        "--hold", type=float, default=0.0, help="weight of a first guess, beside one row's error"
    )
    parser.add_argument("--lean", type=float, metavar="PRICE", help="leave out what is worth less")
    parser.add_argument("--dry-run", action="store_true")
    args = parser.parse_args()
    rows = [
        row for row in read_rows(args.data, FORMS) if not args.device or row.device in args.device
    ]
    if args.lean is None:
        kernels = fit_kernels(args.architecture, rows, args.only, print, args.hold)
    else:
        kernels = lean_library(args.architecture, rows, args.only, args.lean, print)
    for change in kernels.changes:
        print(
            f"  {change.kernel + '.' + change.key:50} {change.before:10.4g} -> {change.after:10.4g}"
        )
    print(f"fitted: {_said(kernels.fitted)}\napart:  {_said(kernels.apart)}")
    before = load_library(args.architecture).families
    for name, family in kernels.library.families.items():
        if family != before[name] and not args.dry_run:
            paths = (folder / args.architecture / f"{name}.yaml" for folder in _FOLDERS)
            _write(next(path for path in paths if path.exists()), family)


def _write(path: Path, family: KernelFamily) -> None:
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    comment = "".join(line for line in lines if line.startswith("#"))
    path.write_text(family_as_text(family, comment), encoding="utf-8")


def _said(errors: Errors) -> str:
    if errors.mape is None:
        return "no rows"
    return (
        f"{errors.rows} rows, MAPE {errors.mape:.1f} %, median {errors.median:.1f} %, "
        f"p90 {errors.p90:.1f} %, bias {errors.bias:+.1f} %"
    )


if __name__ == "__main__":
    main()
