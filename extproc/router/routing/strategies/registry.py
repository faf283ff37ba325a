"""The list of all strategies. The settings, the factory and the table of reasons derive from it."""

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final, Literal, Union

from pydantic import BeforeValidator, Field, GetCoreSchemaHandler
from pydantic_core import CoreSchema

from extproc.errors import SettingsError
from extproc.router.routing.strategies.balanced import LeastLoad, RandomChoice, RoundRobin
from extproc.router.routing.strategies.base import ClockAndRandom, Reason, Strategy
from extproc.router.routing.strategies.prefix_cache.strategy import PrefixCache
from extproc.router.routing.strategies.prefix_hash import PrefixHash


class StrategyRegistry:
    """Strategies by name. As the annotation of a settings field it accepts any of their sections."""

    def __init__(self, *kinds: type[Strategy]) -> None:
        self.kinds: Final[Mapping[str, type[Strategy]]] = {kind.name: kind for kind in kinds}
        self.reasons: Final[Mapping[str, Reason]] = {
            reason: reason for kind in kinds for reason in kind.reasons
        }

    def build(self, name: str, options: Mapping[str, object], outside: ClockAndRandom) -> Strategy:
        """Builds a strategy; `options` are its settings by their names in a configuration.

        Raises `SettingsError` for a name or an option that there is not.
        """
        if name not in self.kinds:
            raise SettingsError(f"{name!r} is no strategy: choose from {', '.join(self.kinds)}")
        make: Callable[..., Strategy] = self.kinds[name]
        try:
            return make(outside, **options)
        except (TypeError, ValueError) as error:
            raise SettingsError(f"{name}: {error}") from None

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        """One section of several, chosen by its `name`; a bare name stands for its defaults."""
        sections: Any = Union[tuple(kind.settings for kind in self.kinds.values())]  # noqa: UP007  # of a list
        chosen: Any = Annotated[sections, Field(discriminator="name")]
        names: Any = Literal[tuple(self.kinds)]
        named = BeforeValidator(
            lambda given: {"name": given} if isinstance(given, str) else given,
            json_schema_input_type=chosen | names,
        )
        return handler.generate_schema(Annotated[chosen, named])


STRATEGIES: Final = StrategyRegistry(PrefixCache, PrefixHash, LeastLoad, RoundRobin, RandomChoice)
