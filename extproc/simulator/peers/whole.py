"""What the peers have in common: they look at the whole prompt, and place nothing on a ring."""

from collections.abc import Collection, Mapping
from typing import Final

from extproc.router.routing.endpoint import Endpoint
from extproc.router.routing.prompt.parse import Prompt
from extproc.router.routing.strategies.base import NOWHERE, Placement, Strategy

# Longer than any prompt here.
ANY_CHARS: Final = 1 << 24


class WholePrompt(Strategy):
    """A strategy that has to see the body and keeps what it learns to itself."""

    headers: Collection[str] = ()

    def needs_body(self, headers: Mapping[str, str]) -> bool:  # noqa: ARG002  # no header says as much
        return True

    def place(self, ready: Mapping[str, Endpoint], before: Placement) -> Placement:  # noqa: ARG002  # nowhere
        return NOWHERE

    def follow(self, ready: Mapping[str, Endpoint]) -> None:
        pass


def text_of(prompt: Prompt | None) -> str:
    """The whole prompt, roles and texts in order; empty where there is none."""
    return prompt.head(ANY_CHARS) if prompt else ""
