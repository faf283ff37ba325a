"""What keeps the project simple: budgets, names, what tests may import. It reads sources as text."""

import ast
import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.tables import table

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "extproc"

# The budgets only ever go down. A feature that goes over one brings its own saving.
LINES = {
    "router": 19_974,
    "bench": 10_500,
    "simulator": 8_000,
    "operator": 2_500,
    "doctor": 700,
    "pages": 450,
}
TEST_LINES = 52_000
FILES = 297

Function = ast.FunctionDef | ast.AsyncFunctionDef


def sources(folder: Path) -> list[Path]:
    """Every Python file below `folder` that a person wrote."""
    return sorted(path for path in folder.rglob("*.py") if not path.name.endswith("_pb2.py"))


def count_lines(folder: Path) -> int:
    return sum(len(path.read_text().splitlines()) for path in sources(folder))


@cache
def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def public_names(path: Path) -> Iterator[str]:
    for node in parse(path).body:
        if isinstance(node, (ast.ClassDef, Function)) and not node.name.startswith("_"):
            yield node.name


@table("house", LINES)
def test_house_stays_within_its_lines(house: str) -> None:
    assert count_lines(PACKAGE / house) <= LINES[house]


def test_tests_stay_within_their_lines() -> None:
    assert count_lines(ROOT / "tests") <= TEST_LINES


def test_package_has_few_files() -> None:
    assert len(sources(PACKAGE)) <= FILES


def test_public_name_is_defined_in_one_file() -> None:
    places = defaultdict(set)
    for path in sources(PACKAGE):
        for name in public_names(path):
            places[name].add(str(path.relative_to(PACKAGE)))

    assert {name: sorted(found) for name, found in places.items() if len(found) > 1} == {}


@table("house", LINES)
def test_module_name_is_used_once_in_a_house(house: str) -> None:
    names = Counter(path.stem for path in sources(PACKAGE / house) if path.stem != "__init__")

    assert {name for name, count in names.items() if count > 1} == set()


def test_functions_are_neither_crumbs_nor_walls() -> None:
    lengths = [
        (node.end_lineno or node.lineno) - node.lineno + 1
        for path in sources(PACKAGE)
        for node in ast.walk(parse(path))
        if isinstance(node, Function)
    ]

    assert statistics.median(lengths) >= 5
    assert max(lengths) <= 60


def imports(path: Path) -> Iterator[tuple[str, str]]:
    """Every (module, name) that a file imports, wherever it does so."""
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield from ((node.module, alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)


def test_no_test_file_imports_another() -> None:
    guilty = [
        f"{path.relative_to(ROOT)} imports {module}"
        for path in sources(ROOT / "tests")
        for module, name in imports(path)
        if module.startswith("tests.")
        and (module.rpartition(".")[2].startswith("test_") or name.startswith("test_"))
    ]

    assert guilty == []


def is_private(name: str) -> bool:
    # `_replace` of a named tuple is public: it has its underscore so that no field is called so.
    return name.startswith("_") and not name.endswith("__") and name != "_replace"


def private_uses(path: Path) -> Iterator[str]:
    """Private names that a file imports or patches, or reads or sets on anything but `self` and `cls`."""
    yield from (f"import {module}.{name}" for module, name in imports(path) if is_private(name))
    for node in ast.walk(parse(path)):
        match node:
            case ast.Attribute(value=ast.Name(id="self" | "cls")):
                pass
            case ast.Attribute(attr=name) if is_private(name):
                yield f"line {node.lineno}: {ast.unparse(node)}"
            case ast.Constant(value=str(text)) if re.fullmatch(r"extproc[.\w]*\._\w+", text):
                yield f"line {node.lineno}: {text!r}"


def test_tests_use_no_private_names() -> None:
    found = {str(path.relative_to(ROOT)): [*private_uses(path)] for path in sources(ROOT / "tests")}

    assert {path: uses for path, uses in found.items() if uses} == {}


def test_property_tests_leave_their_effort_to_the_profile() -> None:
    guilty = [
        str(path.relative_to(ROOT))
        for path in sources(ROOT / "tests")
        if path.name not in {"conftest.py", "test_house.py"} and "max_examples=" in path.read_text()
    ]

    assert guilty == []
