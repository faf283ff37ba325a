"""What the peers have in common: they look at the whole prompt, and place nothing on a ring."""

from collections.abc import Mapping

from extproc.router.routing.prompt.parse import Prompt
from extproc.router.routing.strategies.base import Strategy, StrategySettings


class WholePrompt(Strategy):
    """A strategy that has to see the body and keeps what it learns to itself."""

    settings = StrategySettings

    def needs_body(self, _headers: Mapping[str, str], /) -> bool:
        return True


def text_of(prompt: Prompt | None) -> str:
    """The whole prompt, roles and texts in order; empty where there is none."""
    return prompt.head(1 << 24) if prompt else ""
