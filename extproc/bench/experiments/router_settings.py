"""A router's settings as a benchmark reads and changes them: the strategy of one pool, nothing else. Pure."""

from collections.abc import Iterable, Mapping

import yaml

from extproc.documents import parse_document
from extproc.errors import ExtprocError


class LabError(ExtprocError):
    """A strategy could not be put in force, or a cache not be emptied: nothing can be compared."""


def lay_strategy(text: str, pool: str | None, strategy: Mapping[str, object]) -> str:
    """Returns a router's settings with another `strategy` section; raises as `read_strategy` does."""
    tree = parse_document(text, "the settings").tree
    find_pool(list_pools(tree), pool)["strategy"] = dict(strategy)
    return yaml.safe_dump(tree, sort_keys=False)


def read_strategy(text: str, pool: str | None) -> dict[str, object]:
    """Returns a pool's `strategy` section, of the first pool where none is named.

    Raises `SettingsError` for a text that is no document, `LabError` if the pool is not in it.
    """
    section = find_pool(list_pools(parse_document(text, "the settings").tree), pool).get("strategy")
    return section if isinstance(section, dict) else {}


def list_pools(tree: object) -> list[dict[str, object]]:
    """Returns the pools of a settings' tree; raises `LabError` if there are none."""
    pools = tree.get("pools") if isinstance(tree, dict) else None
    found = [each for each in pools if isinstance(each, dict)] if isinstance(pools, list) else []
    if not found:
        raise LabError("the settings have no pools")
    return found


def find_pool(pools: Iterable[dict[str, object]], name: str | None) -> dict[str, object]:
    """Returns the pool of that name, the first one for `None`; raises `LabError`."""
    for pool in pools:
        if name in {None, pool.get("name")}:
            return pool
    raise LabError(f"the settings have no pool {name!r}")


def is_alike(told: Mapping[str, object], asked: Mapping[str, object]) -> bool:
    """Whether two `strategy` sections say the same: a router tells a single value of a list as the list."""
    return told.keys() == asked.keys() and all(
        told[name] in (value, [value]) for name, value in asked.items()
    )
