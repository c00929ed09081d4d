"""ADR-0273: what a package hands on is named once."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src"
FOR_USERS = {
    "kernbench",
    *(f"kernbench.{name}" for name in ("api", "ops", "tp", "tp.sharding", "analysis", "hardware")),
    *(f"kernbench.{name}" for name in ("judging", "serving", "service")),
}
STAND_INS = "kernbench.torch_bridge.replaced.stand_ins"


def names_of(path: Path) -> tuple[bool, bool, bool]:
    """Return whether a package imports from its own modules, has ``__all__``, and is lazy."""
    package = ".".join(path.parent.relative_to(SOURCE).parts)
    body = ast.parse(path.read_text(encoding="utf-8")).body
    modules = [node.module or "" for node in body if isinstance(node, ast.ImportFrom)]
    targets = [target for node in body if isinstance(node, ast.Assign) for target in node.targets]
    listed = any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets)
    lazy = any(isinstance(node, ast.FunctionDef) and node.name == "__getattr__" for node in body)
    return any(f"{module}.".startswith(f"{package}.") for module in modules), listed, lazy


@pytest.mark.adr("0273-D1")
def test_packages_for_users_list_names_and_mypy_knows_the_others() -> None:
    config = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    overrides = config["tool"]["mypy"]["overrides"]
    (told,) = (rule["module"] for rule in overrides if rule.get("implicit_reexport"))
    listing: set[str] = set()
    handing_on: set[str] = set()
    on_demand: set[str] = set()
    for path in (SOURCE / "kernbench").rglob("__init__.py"):
        package = ".".join(path.parent.relative_to(SOURCE).parts)
        imports, listed, lazy = names_of(path)
        if lazy:
            on_demand.add(package)
        if listed and not package.startswith(STAND_INS):
            listing.add(package)
        elif imports and not package.startswith(STAND_INS):
            handing_on.add(package)
    assert listing >= FOR_USERS
    assert listing <= FOR_USERS | on_demand
    own = {name for name in told if name.startswith("kernbench.")}
    assert handing_on <= own, "name the package in pyproject.toml, at implicit_reexport"
    assert not own & FOR_USERS
