"""What keeps the project simple: budgets, names, what tests may import. It reads sources as text."""

import ast
import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

from tests.budgets import (
    DOCS_WORDS,
    NODES,
    PACKAGE,
    REST,
    ROOT,
    TESTS_FOR_PRODUCT,
    count_nodes,
    count_words,
    house_files,
    is_free,
    parse,
    sources,
)
from tests.tables import table

Function = ast.FunctionDef | ast.AsyncFunctionDef
HOUSES = [house for house in NODES if house != REST]


def public_names(path: Path) -> Iterator[str]:
    for node in parse(path).body:
        if isinstance(node, (ast.ClassDef, Function)) and not node.name.startswith("_"):
            yield node.name


@table("house", NODES)
def test_house_stays_within_its_nodes(house: str) -> None:
    assert count_nodes(house_files(house)) <= NODES[house]


def test_tests_stay_in_proportion_to_the_product() -> None:
    product = sum(count_nodes(house_files(house)) for house in NODES)

    assert count_nodes(sources(ROOT / "tests")) <= TESTS_FOR_PRODUCT * product


def test_docs_stay_within_their_words() -> None:
    assert count_words() <= DOCS_WORDS


def test_every_folder_of_the_package_has_a_budget() -> None:
    folders = {path.relative_to(PACKAGE).parts[0] for path in PACKAGE.rglob("*.py")} - {"manifests"}
    counted = [path for house in NODES for path in house_files(house)]

    assert folders >= {*HOUSES}
    assert sorted(counted) == sources(PACKAGE)


def test_white_space_comments_and_docstrings_cost_nothing(tmp_path: Path) -> None:
    plain, squeezed = tmp_path / "plain.py", tmp_path / "squeezed.py"
    plain.write_text('# Why.\ndef f(a):\n    """What."""\n    b = a\n\n    return b\n')
    squeezed.write_text('def f(a):\n    """W"""; b = a; return b\n')

    assert count_nodes([plain]) == count_nodes([squeezed]) == 14


def test_what_is_built_by_the_recipe_of_a_strategy_is_free() -> None:
    strategies, tests = PACKAGE / "router/routing/strategies", ROOT / "tests/router/routing"

    assert is_free(strategies / "newest.py")
    assert is_free(tests / "test_routing_strategy_newest.py")
    assert not is_free(strategies / "balanced.py")
    assert not is_free(strategies / "prefix_cache" / "newest.py")


def test_no_verb_of_the_router_means_ten_things() -> None:
    methods = Counter(
        each.name
        for path in house_files("router")
        for node in ast.walk(parse(path))
        if isinstance(node, ast.ClassDef)
        for each in node.body
        if isinstance(each, Function) and not each.name.startswith("_")
    )

    assert {verb for verb, count in methods.items() if count > 10} <= {"run", "close", "send"}


def test_public_name_is_defined_in_one_file() -> None:
    places = defaultdict(set)
    for path in sources(PACKAGE):
        for name in public_names(path):
            places[name].add(str(path.relative_to(PACKAGE)))

    assert {name: sorted(found) for name, found in places.items() if len(found) > 1} == {}


@table("house", HOUSES)
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
    assert max(lengths) <= 70


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
