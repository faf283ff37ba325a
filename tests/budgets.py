"""What the project may measure: syntax-tree nodes of each house, tests for a node of product, words of docs.

Nodes are what a reader takes in. Comments, docstrings of any length, and white space cost nothing, so a line
that is squeezed saves nothing, and one that is written plainly costs nothing. `make budgets` prints how much
of each is used. A release re-cuts every limit to 3 % above what stands then (docs/maintaining.md).
"""

import ast
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
PACKAGE: Final = ROOT / "extproc"

REST: Final = "the rest"
NODES: Final[Mapping[str, int]] = {
    "router": 139_550,
    "grpc_server": 16_550,
    "bench": 79_300,
    "simulator": 66_700,
    "operator": 18_000,
    "doctor": 9_700,
    "pages": 5_000,
    "calibrate": 3_300,
    REST: 9_000,
}
TESTS_FOR_PRODUCT: Final = 1.45  # the aim is 1.35: what new tests replace goes
SETTINGS: Final = 101
DOCS_WORDS: Final = 73_700

# A strategy is meant to be added: one of its own file, and its tests in a file of its own, are free.
_STRATEGIES: Final = PACKAGE / "router" / "routing" / "strategies"
_SHIPPED: Final = {"__init__", "balanced", "base", "prefix_hash", "registry"}
_STRATEGY_TEST: Final = "test_routing_strategy_"


def sources(folder: Path) -> list[Path]:
    """Every Python file below `folder` that a person wrote."""
    return sorted(path for path in folder.rglob("*.py") if not path.name.endswith("_pb2.py"))


@cache
def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def is_free(path: Path) -> bool:
    """Whether no budget counts a file: that of a strategy which is not ours, or of its tests."""
    is_new = path.parent == _STRATEGIES and path.stem not in _SHIPPED
    return is_new or path.name.startswith(_STRATEGY_TEST)


def count_nodes(paths: Iterable[Path]) -> int:
    """Counts syntax-tree nodes; what is free is left out."""
    return sum(sum(1 for _ in ast.walk(parse(path))) for path in paths if not is_free(path))


def house_files(house: str) -> list[Path]:
    """The files of a house; `REST` are those on the ground floor, and of every folder without a budget."""
    if house != REST:
        return sources(PACKAGE / house)
    return [path for path in sources(PACKAGE) if path.relative_to(PACKAGE).parts[0] not in NODES]


def count_words() -> int:
    """Counts the words of all pages below docs/, the reference included, as `wc -w` does."""
    return sum(len(path.read_text().split()) for path in (ROOT / "docs").rglob("*.md"))


def lines() -> Iterator[str]:
    """The budgets as a table: what, how much stands, the limit, and 3 % above what stands."""
    product = 0
    for house, limit in NODES.items():
        nodes = count_nodes(house_files(house))
        product += nodes
        yield f"{house:<20}{nodes:>9,} of {limit:>7,} nodes{round(nodes * 1.03):>10,}"
    tests = count_nodes(sources(ROOT / "tests"))
    share = tests / product
    yield f"{'product':<20}{product:>9,}"
    yield f"{'tests':<20}{tests:>9,}: {share:.3f} of {TESTS_FOR_PRODUCT} for one of product"
    yield f"{'docs':<20}{count_words():>9,} of {DOCS_WORDS:>7,} words"


if __name__ == "__main__":
    print(*lines(), sep="\n")
