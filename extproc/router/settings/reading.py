"""Reads the configuration: a YAML file, and variables that override its section `server`."""

import re
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from extproc.documents import (
    Document,
    Fault,
    describe,
    list_errors,
    parse_document,
    read_file,
    refuse_faults,
)
from extproc.errors import SettingsError
from extproc.router.routing.strategies.registry import STRATEGIES
from extproc.router.settings.server_settings import ServerSettings
from extproc.router.settings.tree import Settings, list_settings

ENVIRONMENT_PREFIX: Final = "EXTPROC_"

# Variables that Kubernetes sets in every Pod beside a Service called extproc or extproc-something.
_SERVICE_LINK: Final = re.compile(
    r"_SERVICE_(HOST|PORT(_[A-Z0-9_]+)?)$|_PORT(_\d+_(TCP|UDP|SCTP)(_[A-Z]+)?)?$"
)


REMOVED: Final[Mapping[str, str]] = {
    "server.workers": "was removed in 0.2: run more replicas, or several services behind one "
    "Envoy cluster; see docs/how-to/several-replicas.md",
    "pools.strategy.learn": "was removed in 0.3: unequal endpoints are found without it, by `signals`; "
    "`extproc calibrate URL` measures an engine's constants for `engine`",
    **dict.fromkeys(
        ("pools.endpoints.kubernetes.context", "pools.endpoints.inference_pool.context"),
        "was removed in 0.2: give a `kubeconfig` whose current context it is",
    ),
    **dict.fromkeys(
        [
            f"share.mesh.peers.kubernetes.{name}"
            for name in ("kubeconfig", "context", "address_family", "namespace")
        ],
        "was removed in 0.2: gateways look in their own namespace; see docs/how-to/several-replicas.md",
    ),
}
"""Settings of former releases, by their places, and what to do instead."""


def load_settings(path: Path, environment: Mapping[str, str] | None = None) -> Settings:
    """Reads a YAML file and the overrides of `environment` (`EXTPROC_SERVER__LISTEN`).

    Raises `SettingsError` that lists every fault, each with its place in the file.
    """
    return parse_settings(read_file(path), environment or {}, str(path))


def parse_settings(
    text: str | bytes, environment: Mapping[str, str], where: str = "settings"
) -> Settings:
    """Parses YAML text, see `load_settings`; only the variables of our prefix count."""
    document = parse_document(text, where, refuses_repeats=False)
    settings, faults = find_faults(document, environment)
    if settings is None or faults:
        raise refuse_faults(faults)
    return settings


def find_faults(
    document: Document, environment: Mapping[str, str]
) -> tuple[Settings | None, list[Fault]]:
    """Overrides the document's tree; returns its settings, if they are valid, and every fault.

    Raises `SettingsError` where there is no such tree or no such variable.
    """
    overrides = read_overrides(environment)
    if not isinstance(document.tree, dict):
        raise SettingsError(
            f"{document.where}:1: expected a mapping with the keys server and pools"
        )
    for name, (path, value) in overrides.items():
        _override(document.tree, path, value, name)
    try:
        return Settings.model_validate(document.tree), [*document.repeats]
    except ValidationError as error:
        return None, [
            *document.repeats,
            *(_fault(document, overrides, fault) for fault in list_errors(error)),
        ]


Overrides = Mapping[str, tuple[tuple[str, ...], Any]]
"""Names of variables with the place in the tree that they override, and the value, read as YAML."""


def read_overrides(environment: Mapping[str, str]) -> Overrides:
    """Raises `SettingsError` for every variable of our prefix that overrides nothing: it was meant to."""
    names = {
        ENVIRONMENT_PREFIX + "__".join(path).upper(): path for path in _server_paths(ServerSettings)
    }
    ours = [name for name in sorted(environment) if name.startswith(ENVIRONMENT_PREFIX)]
    strange = [
        name
        for name in ours
        if name not in names and ("__" in name or not _SERVICE_LINK.search(name))
    ]
    if strange:
        raise SettingsError("\n".join(_suggest(name, names) for name in strange))
    return {
        name: (names[name], parse_document(environment[name], name).tree)
        for name in ours
        if name in names
    }


def _server_paths(
    section: type[BaseModel], above: tuple[str, ...] = ("server",)
) -> Iterator[tuple[str, ...]]:
    for name, field in section.model_fields.items():
        yield (*above, name)
        for kind in (field.annotation, *get_args(field.annotation)):
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                yield from _server_paths(kind, (*above, name))


def _suggest(name: str, names: Iterable[str]) -> str:
    place = name.removeprefix(ENVIRONMENT_PREFIX).lower().replace("__", ".")
    if place in REMOVED:
        return f"{name}: {place} {REMOVED[place]}"
    [nearest] = get_close_matches(name, names, n=1, cutoff=0)
    return f"{name}: there is no such variable; {nearest} is the nearest"


def _override(tree: dict[str, Any], path: tuple[str, ...], value: Any, name: str) -> None:
    for step in path[:-1]:
        below = tree.get(step)
        if below is not None and not isinstance(below, dict):
            raise SettingsError(f"{name}: {step} is not a mapping in the file")
        tree[step] = tree = below or {}
    tree[path[-1]] = value


def _name_owner(strategy: str, option: str) -> str | None:
    """Says which strategies have an option that this one has not."""
    kinds = STRATEGIES.kinds.items()
    owners = [name for name, kind in kinds if option in kind.settings.model_fields]
    there = f"{' and '.join(owners)} {'have' if len(owners) > 1 else 'has'}"
    return f"pools.strategy.{option}: {strategy} has no {option}; {there}" if owners else None


def _fault(document: Document, overrides: Overrides, fault: ErrorDetails) -> Fault:
    """A fault with its place: in the file, or the variable that overrides it."""
    place = tuple(str(step) for step in fault["loc"])
    at = next((name for name, (path, _) in overrides.items() if place[: len(path)] == path), None)
    loc = fault["loc"] if at else document.name_place(fault["loc"])
    name = ".".join(step for step in fault["loc"] if isinstance(step, str))
    # Between a strategy and its options stands its name.
    name = re.sub(r"^pools\.strategy\.\w+\.", "pools.strategy.", name)
    if name in REMOVED:
        what = f"{name} {REMOVED[name]}"
    else:
        what = describe({**fault, "loc": loc}, list_settings())
        if fault["type"] == "extra_forbidden" and fault["loc"][2:3] == ("strategy",):
            what = _name_owner(*map(str, fault["loc"][-2:])) or what
    return (0, f"{at}: {what}") if at else document.fault(loc, what)
