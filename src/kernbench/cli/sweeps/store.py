"""The folder of a sweep: one file per point, whole or not there (ADR-0110, ADR-0150)."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from kernbench.cli.sweeps.points import Point
from kernbench.errors import OutputError
from kernbench.outputs import SUFFIX, Outputs, write_text

FORMAT = "kernbench sweep 1"
_MANIFEST = "sweep.json"
_POINTS = "points"
_FIRST_BYTES = 1 << 14


class ResultFolder:
    """Results by the key of their point, kept in a folder."""

    def __init__(self, folder: Path, program: str) -> None:
        """Make the folder, or take up one that a sweep of the same program has made.

        Raises:
            OutputError: It is something else, or cannot be made.
        """
        self.folder = folder
        manifest = folder / _MANIFEST
        try:
            if folder.exists() and not folder.is_dir():
                raise OutputError(f"{folder} is a file; name a folder for the results")
            if (
                not manifest.exists()
                and folder.is_dir()
                and any(map(_is_foreign, folder.iterdir()))
            ):
                raise OutputError(
                    f"{folder} holds other things than the results of a sweep; name another folder"
                )
            if manifest.exists():
                _check_manifest(manifest, program)
            (folder / _POINTS).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            if isinstance(error, OutputError):
                raise
            raise OutputError(
                f"{folder}: cannot hold the results of a sweep: {error.strerror}"
            ) from None
        if not manifest.exists():
            write_text(manifest, json.dumps({"format": FORMAT, "program": program}) + "\n")

    def rows(self, points: Iterable[Point]) -> dict[str, dict[str, Any]]:
        """Return what is kept of points, by key, without their reports.

        Raises:
            OutputError: A file is no result of a sweep.
        """
        there = {path.stem for path in (self.folder / _POINTS).glob("*.json")}
        values = {point.key: self.row(point.key) for point in points if point.key in there}
        return {key: row for key, row in values.items() if row is not None}

    def report(self, key: str) -> dict[str, Any] | None:
        """Return the whole report of a point that is kept; None of one that failed."""
        _, _, second = self.path_of(key).read_text(encoding="utf-8").partition("\n")
        report: dict[str, Any] | None = json.loads(second)
        return report

    def keep(self, row: Mapping[str, Any], report: Any, outputs: Outputs) -> None:
        """Write a result under the name that was taken for it.

        Raises:
            OutputError: It cannot be written: the disk is full, say.
        """
        text = f"{json.dumps(row)}\n{json.dumps(report)}\n"
        with outputs.writing("result") as file:
            file.write(text.encode())
        outputs.publish()

    @contextlib.contextmanager
    def taking(self) -> Iterator[Claims]:
        """Yield what takes points for this process; at the end it lets go of them."""
        claims = Claims(self)
        try:
            yield claims
        finally:
            claims.release()

    def row(self, key: str) -> dict[str, Any] | None:
        """Return what is kept of a point without its report, or None.

        Raises:
            OutputError: The file is no result of a sweep.
        """
        path = self.path_of(key)
        try:
            with path.open("rb") as file:
                line = file.read(_FIRST_BYTES)
                if b"\n" not in line:
                    line += file.readline()
            row: dict[str, Any] = json.loads(line.partition(b"\n")[0])
            if row["key"] != key or "status" not in row:
                raise ValueError
        except FileNotFoundError:
            return None
        except OSError as error:
            raise OutputError(f"{path}: cannot be read: {error.strerror}") from None
        except (ValueError, KeyError, TypeError):
            raise OutputError(
                f"{path} is no result of a sweep; remove it, and its point is run again"
            ) from None
        return row

    def path_of(self, key: str) -> Path:
        """Return where a point's result is kept."""
        return self.folder / _POINTS / f"{key}.json"


class Claims:
    """The points that this process runs, and no other sweep in the same folder."""

    def __init__(self, store: ResultFolder) -> None:
        self._store = store
        self._taken: dict[str, Outputs] = {}

    def take(self, key: str) -> bool:
        """Take a point; False if another process runs it."""
        try:
            self._taken[key] = Outputs({"result": self._store.path_of(key)})
        except OutputError as error:
            if "is being written by" in str(error):
                return False
            raise
        return True

    def keep(self, row: Mapping[str, Any], report: Any) -> None:
        """Keep the result of a point that was taken."""
        with self._taken.pop(row["key"]) as outputs:
            self._store.keep(row, report, outputs)

    def drop(self, key: str) -> None:
        """Let go of a point without a result."""
        self._taken.pop(key).release()

    def release(self) -> None:
        """Let go of all."""
        while self._taken:
            self._taken.popitem()[1].release()


def _is_foreign(file: Path) -> bool:
    """Return whether a file in a folder without manifest is not of a sweep that begins just now."""
    return file.name != _POINTS and not file.name.endswith(SUFFIX)


def _check_manifest(manifest: Path, program: str) -> None:
    try:
        data = json.loads(manifest.read_text(encoding="utf-8"))
        known, of = data["format"], data["program"]
    except (OSError, ValueError, KeyError, TypeError):
        raise OutputError(
            f"{manifest} is not what a sweep has written; name another folder"
        ) from None
    if known != FORMAT:
        raise OutputError(
            f"{manifest.parent} was written by another version of kernbench ({known}, not "
            f"{FORMAT}); name another folder"
        )
    if of != program:
        raise OutputError(
            f"{manifest.parent} has results of {of}, not of {program}; name another folder"
        )
