"""The configuration: one tree, strict; every fault comes with the place it is at.

Each field says its unit and why its default is what it is; `extproc schema` prints all of it.
"""

from collections.abc import Iterator
from posixpath import normpath
from typing import Self

from pydantic import BaseModel, Field, ValidationError, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError

from extproc.documents import Place, list_sections
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
    """Share picks with other gateways. Omitted: each gateway knows only its own picks."""

    @model_validator(mode="after")
    def _are_unique(self) -> Self:
        faults = [
            InitErrorDetails(
                type=PydanticCustomError("repeated", "{why}", {"why": why}), loc=place, input=None
            )
            for place, why in self._repeats()
        ]
        if faults:
            raise ValidationError.from_exception_data("Settings", faults)
        return self

    def _repeats(self) -> Iterator[tuple[Place, str]]:
        """Yields what a pool must not have in common with another, or with the service itself."""
        names, models, opened = set[str](), dict[str, int](), list[str]()
        for number, pool in enumerate(self.pools):
            if pool.name in names:
                yield ("pools", number, "name"), f"the name {pool.name} is used twice"
            names.add(pool.name)
            for field, served in (("models", pool.models or ()), ("adapters", pool.adapters)):
                for place, name in enumerate(served):
                    if (other := models.setdefault(name, number)) != number:
                        why = f"{name} is served by the pool {self.pools[other].name}, too"
                        yield ("pools", number, field, place), why
            for place, address in enumerate(pool.endpoints.static or ()):
                if setting := self.server.name_own(address):
                    why = f"{address} is the service's own port, server.{setting}"
                    yield ("pools", number, "endpoints", "static", place), why
            if pool.when_down == "open":
                opened.append(pool.name)
                if len(opened) > 1:
                    why = f"one pool can be open when the service is down, and {opened[0]} is"
                    yield ("pools", number, "when_down"), why

        yield from self._repeated_files()

    def _repeated_files(self) -> Iterator[tuple[Place, str]]:
        files = [normpath(pool.record.file) if pool.record else "" for pool in self.pools]
        for number, file in enumerate(files):
            if file and file in files[:number]:
                yield ("pools", number, "record", "file"), f"{file} has another pool's rows"

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
        opened = (
            pool.name for pool in self.pools if (pool.when_down or (alone and "open")) == "open"
        )
        return next(opened, None)


def list_settings(section: type[BaseModel] = Settings) -> Iterator[str]:
    """Yields the place of every setting, as `pools.probe.path`; those of each strategy stand side by side."""
    for name, field in section.model_fields.items():
        below = list(list_sections(field.annotation))
        if STRATEGIES in field.metadata:
            below = [kind.settings for kind in STRATEGIES.kinds.values()]
        for each in below:
            yield from (f"{name}.{place}" for place in list_settings(each))
        if not below:
            yield name
