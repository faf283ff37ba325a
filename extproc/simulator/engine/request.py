"""A request inside an engine."""

from collections.abc import Sequence, Sized
from dataclasses import dataclass
from typing import Generic, TypeVar

Names = TypeVar("Names", bound=Sized)


@dataclass(slots=True, eq=False)
class Request(Generic[Names]):
    """One request's place in the schedule and what it holds of the KV cache.

    `names` has the full blocks of prompt and output, as far as they are known; the first `shared` of
    them are held under that name, what else it holds has none. `number` is its place in the order of
    admission. While it decodes, its computed tokens are `lead` plus the engine's steps, and
    `last_step` is the step that ends it; both mean nothing before, and `last_step` is -1 then.
    """

    id: str
    prompt_tokens: int
    max_tokens: int
    names: Names
    token_ids: Sequence[int]
    extra_key: str
    arrived_at: float
    number: int = 0
    generated: int = 0
    computed: int = 0
    shared: int = 0
    lead: int = 0
    last_step: int = -1

    @property
    def tokens(self) -> int:
        """Prompt and output so far: what must be in the KV cache before the next token."""
        return self.prompt_tokens + self.generated
