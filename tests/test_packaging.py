"""What is installed is what is in the tree, and the walls between the layers stand."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
FOLDERS = ("engine", "upcasters", "snapshots", "cli")


def test_every_folder_with_code_is_a_package_in_the_wheel() -> None:
    found = {
        "tailfold." + ".".join(path.parent.relative_to(ROOT).parts)
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*.py")
    }
    assert set(PROJECT["tool"]["setuptools"]["packages"]) == found


def test_every_package_has_a_docstring_and_every_root_its_typed_marker() -> None:
    for folder in FOLDERS:
        assert (ROOT / folder / "py.typed").exists()
        for path in (ROOT / folder).rglob("*.py"):
            assert ast.get_docstring(ast.parse(path.read_text())), path


def test_the_links_for_type_checkers_lead_to_the_folders() -> None:
    for folder in FOLDERS:
        link = ROOT / ".types/tailfold" / folder
        assert link.is_symlink()
        assert link.readlink() == Path(f"../../{folder}")


def test_the_layers_are_kept() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "from importlinter.cli import lint_imports_command as c; c()"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("folder", [*FOLDERS, "tests", "benchmarks"])
def test_modules_stay_small_enough_to_read_in_one_go(folder: str) -> None:
    for path in (ROOT / folder).rglob("*.py"):
        assert len(path.read_text().splitlines()) <= 700, path


def test_only_one_package_imports_lmdb_and_one_module_builds_keys() -> None:
    """The layouts of whole files, which have no keys, stand beside what reads and writes them."""
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*.py"):
            text = path.read_text()
            if path.parent != ROOT / "engine/backend/lmdb":
                assert "\nimport lmdb" not in text, path
            if path.parent.name not in ("backend", "snapshots") and path.name not in ("ahead_file.py", "metas.py"):
                assert "struct.Struct(" not in text, path


def test_importing_the_engine_does_not_import_what_few_use() -> None:
    script = "import sys, tailfold.engine; print({'ollama', 'httpx', 'typer', 'rich'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "set()"
