"""A router's settings as a benchmark changes them, and whether every replica has a strategy in force."""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, Final

import aiohttp
import yaml

from extproc.bench.spec.section import Component
from extproc.bench.status_server import split_location
from extproc.documents import parse_document
from extproc.errors import ExtprocError


class LabError(ExtprocError):
    """A strategy could not be put in force, or a cache not be emptied: nothing can be compared."""


def with_strategy(text: str, pool: str | None, strategy: Mapping[str, object]) -> str:
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


def is_alike(running: Mapping[str, object], wanted: Mapping[str, object]) -> bool:
    """Whether two `strategy` sections say the same: a router shows a single value of a list as the list."""
    return running.keys() == wanted.keys() and all(
        running[name] in (value, [value]) for name, value in wanted.items()
    )


_REFUSED: Final = 'extproc_config_reloads_total{result="refused"} '
_LOADED: Final = 'extproc_config_reloads_total{result="applied"} '

Resolve = Callable[[str, int], Awaitable[Iterable[str]]]
"""Returns every address of a name, as `ip:port`."""


async def resolve(host: str, port: int) -> list[str]:
    """Every address of a name, as a headless Service has one for each Pod; raises `OSError`."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [f"[{at[0]}]:{port}" if ":" in str(at[0]) else f"{at[0]}:{port}" for *_, at in found]


class Replicas:
    """The replicas at `admin` (`host:port`, several with commas), looked up each time: they come and go."""

    def __init__(
        self, http: aiohttp.ClientSession, admin: str, pool: str | None, resolve: Resolve = resolve
    ) -> None:
        self._http, self._pool, self._resolve = http, pool, resolve
        self._targets = [split_location(each.strip()) for each in admin.split(",")]
        self._refusals: dict[str, float] = {}
        self._loads: dict[str, float] = {}

    async def look(self, arm: Component, *, must_exist: bool = False) -> str | None:
        """Says what is missing until every replica has the strategy in force, `None` if nothing is.

        Raises `LabError` for one that refuses it; with `must_exist` for a name that does not
        resolve, too.
        """
        found: list[str] = []
        for host, port in self._targets:
            try:
                found += await self._resolve(host, port)
            except OSError as error:
                missing = f"the router is not found: ab.admin: {host}:{port}: {error}"
                if must_exist:
                    raise LabError(missing) from error
                return missing
        if not found:
            return "the router has no replica"
        answers = await asyncio.gather(
            *(self._find_missing(at, arm) for at in dict.fromkeys(found))
        )
        return next((each for each in answers if each is not None), None)

    async def find_change(self) -> str | None:
        """Says which replica has read settings since it had the strategy in force; `None`: none."""
        before = dict(self._loads)
        await self.note_loads()
        changed = [at for at, count in self._loads.items() if count > before[at]]
        return f"the settings of the router at {changed[0]} were changed" if changed else None

    async def note_loads(self) -> None:
        """Notes how often each replica has read settings."""
        for at in self._loads:
            with suppress(aiohttp.ClientError, TimeoutError):
                self._loads[at] = _count(await self._get(at, "metrics"), _LOADED)

    async def _find_missing(self, at: str, arm: Component) -> str | None:
        try:
            pool = find_pool(yaml.safe_load(await self._get(at, "pools")), self._pool)
            settings = list_pools(yaml.safe_load(await self._get(at, "config")))
            self._raise_refusals(at, metrics := await self._get(at, "metrics"), arm)
        except (aiohttp.ClientError, TimeoutError, yaml.YAMLError) as error:
            return f"{at} does not say what is in force: {type(error).__name__} {error}"
        section: Any = find_pool(settings, self._pool).get("strategy", {})
        if pool["strategy"] == arm.name and is_alike(section, arm.section):
            self._loads[at] = _count(metrics, _LOADED)
            return None
        return f"{at} has another strategy in force: {section}"

    async def _get(self, at: str, what: str) -> str:
        async with self._http.get(f"http://{at}/{what}", raise_for_status=True) as answer:
            return await answer.text()

    def _raise_refusals(self, at: str, metrics: str, arm: Component) -> None:
        """How often a replica has refused a changed file, by its own metrics: once more, and it is ours."""
        count = _count(metrics, _REFUSED)
        if count > self._refusals.setdefault(at, count):
            raise LabError(f"the router at {at} refused {arm.name}: its log says why")


def _count(metrics: str, name: str) -> float:
    return sum(
        float(line.removeprefix(name)) for line in metrics.splitlines() if line.startswith(name)
    )
