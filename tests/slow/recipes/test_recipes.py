"""The recipes of docs/maintaining.md, followed to the letter as a stranger would, in a copy of the tree.

Four changes, one after the other. Each touches at most five files, its test and what `make` writes included,
and deletes nothing. Then what the gate checks must hold: lint, types, budgets, docs, and the new tests.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[3]
MOST_FILES = 5
CHANGES = yaml.safe_load(Path(__file__).with_name("changes.yaml").read_text())
TESTS = [
    "tests/test_house.py",
    "tests/test_docs.py",
    "tests/router/routing/test_routing_recipes.py",
    "tests/router/service/test_service_settings.py",
    "tests/router/service/test_service_metrics.py",
]


def run_module(copied_tree: Path, *command: str) -> None:
    environment = {**os.environ, "PYTHONPATH": str(copied_tree)}
    done = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=copied_tree,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout[-4000:]}{done.stderr[-2000:]}"


@pytest.fixture(scope="module")
def copied_tree(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """What git has of this checkout, and mypy's cache, so that it reads the changed files alone."""
    copy = tmp_path_factory.mktemp("stranger") / "tree"
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for name in listed.stdout.splitlines():
        if (ROOT / name).exists() or (ROOT / name).is_symlink():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, copy / name, follow_symlinks=False)
    if (ROOT / ".mypy_cache").exists():
        shutil.copytree(ROOT / ".mypy_cache", copy / ".mypy_cache")
    yield copy
    shutil.rmtree(copy)


def follow(change: dict[str, Any], copied_tree: Path) -> None:
    for name, text in change.get("new", {}).items():
        assert not (copied_tree / name).exists()
        (copied_tree / name).write_text(text)
    for name, additions in change.get("behind", {}).items():
        text = (copied_tree / name).read_text()
        for anchor, more in additions.items():
            assert text.count(anchor) == 1, f"{name}: {anchor!r}"
            text = text.replace(anchor, anchor + more)
        (copied_tree / name).write_text(text)


def files(change: dict[str, Any]) -> list[str]:
    return [name for part in ("new", "behind", "made") for name in change.get(part, {})]


@pytest.mark.parametrize("title", CHANGES)
def test_a_recipe_names_every_file_and_there_are_few(title: str) -> None:
    text = (ROOT / "docs" / "maintaining.md").read_text()
    section = re.split(r"^##", text.partition(f"### {title}\n")[2], flags=re.MULTILINE)[0]
    named = [name.replace("two_choices", "NAME") for name in files(CHANGES[title])]

    assert len(named) <= MOST_FILES
    assert [name for name in named if f"`{name}`" not in section] == []


def test_all_recipes_followed_at_once_pass_what_the_gate_checks(copied_tree: Path) -> None:
    for change in CHANGES.values():
        follow(change, copied_tree)
    run_module(copied_tree, "docs.generate")  # `make reference`
    run_module(copied_tree, "ruff", "format")  # `make format`

    run_module(copied_tree, "ruff", "check")
    run_module(copied_tree, "mypy")
    added = [name for change in CHANGES.values() for name in change.get("tests", ())]
    run_module(copied_tree, "pytest", "-q", *TESTS, *added)
    run_module(copied_tree, "pytest", "-q", "tests/slow/golden", "-k", "cold or every_constant")
