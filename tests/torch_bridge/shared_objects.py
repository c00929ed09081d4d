"""Shared objects with names, texts and needs alone, as packages of CUDA C++ have them."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path


def make_engine(
    root: Path, modules: Mapping[str, tuple[str, Sequence[str]]], package: str = "engine"
) -> Path:
    """Write a package whose modules hold schemas of operators of a namespace; return its folder."""
    (root / package).mkdir()
    (root / package / "__init__.py").touch()
    runtime = root / "libcudart.so.13"
    link(runtime, "", f"-Wl,-soname,{runtime.name}")
    for name, (namespace, schemas) in modules.items():
        texts = (namespace, "not a (schema) -> at all", "%s: %zu -> ", *schemas)
        lines = [f'const char *text{number} = "{text}";' for number, text in enumerate(texts)]
        if namespace:
            lines.append(f"static int TORCH_LIBRARY_static_init_{namespace} = 1;")
            lines.append(f"int *used = &TORCH_LIBRARY_static_init_{namespace};")
        file = root / package / f"{name}.abi3.so"
        link(file, "\n".join(lines), "-Wl,--no-as-needed", str(runtime))
    return root


def link(file: Path, source: str, *options: str) -> None:
    """Write a shared object."""
    command = ["gcc", "-shared", "-fPIC", "-x", "c", "-", "-x", "none", *options, "-o", str(file)]
    subprocess.run(command, input=source, text=True, check=True, capture_output=True)
