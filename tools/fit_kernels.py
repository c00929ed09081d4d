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
from validation.kernels import FOLDER
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
    parser.add_argument("--dry-run", action="store_true")
    args = parser.parse_args()
    rows = [
        row for row in read_rows(args.data, FORMS) if not args.device or row.device in args.device
    ]
    kernels = fit_kernels(args.architecture, rows, args.only, print, args.hold)
    for change in kernels.changes:
        print(
            f"  {change.kernel + '.' + change.key:50} {change.before:10.4g} -> {change.after:10.4g}"
        )
    print(f"fitted: {_said(kernels.fitted)}\napart:  {_said(kernels.apart)}")
    if not args.dry_run:
        for family in {item.family for item in kernels.changes}:
            paths = (folder / args.architecture / f"{family}.yaml" for folder in _FOLDERS)
            _write(next(path for path in paths if path.exists()), kernels.library.families[family])


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
