"""Imports go down only: the floors of the house, as docs/design.md draws them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "dist_mp"
FLOORS = {
    # Rooms of one floor that build on each other stand on steps of it.
    "errors": 0.0,
    "log": 0.0,
    "timeline": 0.0,
    "section": 0.05,
    "model_settings": 0.06,
    "data_settings": 0.06,
    "config": 0.1,
    "schedule": 0.2,
    "settings": 0.2,
    "codec": 1.0,
    "comm": 1.0,
    "data": 1.0,
    "precision": 1.0,
    "model": 1.1,
    "exchange": 2.0,
    "launch": 2.0,
    "doctor": 2.1,
    "train": 3.0,
    "experiments": 3.1,
    "cli": 4.0,
    "__main__": 5.0,
    "__init__": 5.0,
}
TENSORFLOW_ALLOWED = {"model", "precision", "exchange", "train", "experiments"}
MPI_ALLOWED = {"comm"}
MAX_LINES = 330


def modules() -> list[Path]:
    """All sources, those behind the link `launch` too."""
    return sorted([*PACKAGE.rglob("*.py"), *(PACKAGE / "launch").glob("*.py")])


def room(path: Path) -> str:
    """The top name below dist_mp that a source belongs to."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return parts[0]


def imports(path: Path, *, top_only: bool = False) -> Iterator[str]:
    """Names of imported modules; with `top_only` those that are imported when the module is."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    nodes = tree.body if top_only else list(ast.walk(tree))
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            assert node.module is not None
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names if node.module == "dist_mp")


def test_every_room_has_a_floor() -> None:
    assert {room(path) for path in modules()} <= set(FLOORS)


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_go_down(path: Path) -> None:
    own = room(path)
    for name in imports(path):
        parts = name.split(".")
        if parts[0] == "dist_mp" and len(parts) > 1 and parts[1] in FLOORS:
            other = parts[1]
            assert other == own or FLOORS[other] < FLOORS[own], f"{own} (floor {FLOORS[own]}) imports {name}"
        if parts[0] in ("tensorflow", "keras"):
            assert own in TENSORFLOW_ALLOWED, f"{own} imports {name}"
        if parts[0] == "mpi4py":
            assert own in MPI_ALLOWED, f"{own} imports {name}"


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_modules_can_be_read_in_one_go(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= MAX_LINES


def test_command_line_starts_without_heavy_imports() -> None:
    """``dist-mp --help`` answers at once: no NumPy, TensorFlow or MPI is imported for it."""
    for path in (PACKAGE / "cli").glob("*.py"):
        heavy = {name.split(".")[0] for name in imports(path, top_only=True)} & {
            "tensorflow",
            "keras",
            "numpy",
            "numba",
        }
        assert not heavy, f"{path.name} imports {heavy}"
