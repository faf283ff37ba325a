"""A helper's name leads to one place: whoever reads it in a test finds it with one search."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Final

TESTS: Final = Path(__file__).parent

# Folders and files below tests/ whose names are still to be told apart.
NOT_YET: Final[tuple[str, ...]] = ()

# Every program below tests/ begins with it.
ENTRY_POINT: Final = "main"

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def helpers_of(text: str) -> Iterator[Definition]:
    """The public functions and classes of a module that are no tests."""
    for node in ast.parse(text).body:
        if isinstance(node, Definition):
            is_hook_or_test = node.name.startswith(("_", "test_", "pytest_"))
            if not is_hook_or_test and node.name != ENTRY_POINT:
                yield node


def is_fixture(helper: Definition) -> bool:
    return any("fixture" in ast.unparse(each) for each in helper.decorator_list)


def list_clashes(texts: dict[str, str]) -> list[str]:
    """Each name with the files that define it, where these are several.

    A conftest.py may override a fixture of a helper module or of another conftest.py; a test file
    may not.
    """
    places = defaultdict(list)
    for file, text in texts.items():
        for helper in helpers_of(text):
            overrides = file.endswith("conftest.py") and is_fixture(helper)
            places[helper.name].append((file, overrides))
    clashes = []
    for name, found in sorted(places.items()):
        own = [file for file, overrides in found if not overrides]
        in_tests = [file for file in own if Path(file).name.startswith("test_")]
        if len(own) > 1 or (in_tests and len(found) > 1):
            clashes.append(f"{name}: {', '.join(file for file, _ in found)}")
    return clashes


def test_helper_of_tests_is_defined_in_one_file() -> None:
    files = {path.relative_to(TESTS) for path in TESTS.rglob("*.py")}
    texts = {
        str(file): (TESTS / file).read_text()
        for file in sorted(files)
        if file.parts[0] not in NOT_YET
    }

    assert list_clashes(texts) == []


def test_names_in_two_files_and_overrides_in_tests_are_found() -> None:
    fixture = "@pytest.fixture\ndef stack() -> None: ..."
    texts = {
        "a.py": f"def ask() -> None: ...\ndef main() -> None: ...\n{fixture}",
        "conftest.py": fixture,
        "slow/conftest.py": fixture,
        "test_b.py": "class ask: ...\ndef main() -> None: ...\ndef test_it() -> None: ...",
        "test_c.py": "def test_it() -> None: ...\ndef _ask() -> None: ...",
    }
    overridden = texts | {"test_c.py": fixture, "test_b.py": ""}

    assert list_clashes(texts) == ["ask: a.py, test_b.py"]
    assert list_clashes(overridden) == ["stack: a.py, conftest.py, slow/conftest.py, test_c.py"]
