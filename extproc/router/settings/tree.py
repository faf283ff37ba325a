"""The configuration: one tree, strict; every fault comes with the place it is at.

Each field says its unit and why its default is what it is; `extproc schema` prints all of it.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Self, get_args

from pydantic import BaseModel, Field, model_validator

from extproc.router.routing.strategies.registry import STRATEGIES
from extproc.router.settings.pool_settings import PoolSettings
from extproc.router.settings.sections import Section
from extproc.router.settings.server_settings import ServerSettings
from extproc.router.settings.share_settings import ShareSettings


class Settings(Section):
    """The configuration file of `extproc serve`."""

    server: ServerSettings = ServerSettings()
    pools: list[PoolSettings] = Field(min_length=1)
    share: ShareSettings | None = None
    """Sharing of picks among gateways; omitted: each knows its own."""

    @model_validator(mode="after")
    def _are_unique(self) -> Self:
        names = [pool.name for pool in self.pools]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"pool names used twice: {', '.join(twice)}")
        models = Counter(name for pool in self.pools for name in {*(pool.models or ()), *pool.adapters})
        shared = sorted(name for name, count in models.items() if count > 1)
        if shared:
            raise ValueError(f"models that two pools serve: {', '.join(shared)}")
        opened = [pool.name for pool in self.pools if pool.when_down == "open"]
        if len(opened) > 1:
            raise ValueError(f"one pool can be open when the service is down, not {', '.join(opened)}")
        return self

    def unreachable(self) -> Iterator[tuple[int, str]]:
        """Yields the pools, by their places, that no model leads to, and why."""
        takers = [pool.name for pool in self.pools if pool.models is None]
        for place, pool in enumerate(self.pools):
            names_any = pool.models or pool.adapters or pool.learn_models
            if not names_any and pool.name != takers[0]:
                why = f"no model leads to {pool.name}: {takers[0]} stands before it and takes any"
                hint = "give `models` (its own name where routes choose it by x-extproc-pool)"
                yield place, f"pools.{place}: {why}; {hint}"

    @property
    def open_pool(self) -> str | None:
        """The pool that takes every request while the service is away; `None`: they are refused."""
        alone = len(self.pools) == 1
        opened = (pool.name for pool in self.pools if (pool.when_down or (alone and "open")) == "open")
        return next(opened, None)


def list_settings(section: type[BaseModel] = Settings) -> Iterator[str]:
    """Yields the place of every setting, as `pools.probe.path`; those of each strategy stand side by side."""
    for name, field in section.model_fields.items():
        below = list(_sections(field.annotation))
        if STRATEGIES in field.metadata:
            below = [kind.settings for kind in STRATEGIES.kinds.values()]
        for each in below:
            yield from (f"{name}.{place}" for place in list_settings(each))
        if not below:
            yield name


def _sections(kind: object) -> Iterator[type[BaseModel]]:
    """Yields the sections in an annotation such as `list[PoolSettings] | None`."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        yield kind
    for part in get_args(kind):
        yield from _sections(part)
