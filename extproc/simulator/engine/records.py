"""What an engine is given and what comes out of it: requests, steps, counters, and events of its KV cache."""

from collections.abc import Callable, Sequence, Sized
from dataclasses import dataclass
from typing import Generic, TypeVar

from msgspec import Struct

Names = TypeVar("Names", bound=Sized)


@dataclass(slots=True, eq=False)
class EngineRequest(Generic[Names]):
    """One request's place in the schedule and what it holds of the KV cache.

    `names` has the full blocks of prompt and output, as far as they have names; the first `shared`
    of them are held under those names, its other blocks have none. `number` is its place in the
    order of admission. While it decodes, its computed tokens are `lead` plus the engine's steps,
    and `last_step` is the step that ends it; both mean nothing before, and `last_step` is -1 then.
    `is_computed`: another engine has computed the prompt, all but its last token.
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
    is_computed: bool = False

    @property
    def tokens(self) -> int:
        """Prompt and output so far: what must be in the KV cache before the next token."""
        return self.prompt_tokens + self.generated


class Admitted(Struct, frozen=True):
    """A request left the queue; `cached_tokens` of it were in the prefix cache.

    A preempted request queues again and is admitted again; `is_first` marks the first time.
    `waited_s` counts from its arrival.
    """

    request_id: str
    cached_tokens: int
    waited_s: float
    is_first: bool


class StepResult(Struct, frozen=True):
    """One step. Everything in it becomes visible to clients at `ends_at`.

    `emitted` names the requests that got one token; `prefilled` those of them whose prompt was
    completed in this step (their first token, or the next one after a preemption), `finished` those
    that are done. `context_tokens` and `prefill_tokens` are the step's terms in `Profile.step_s`.
    """

    duration_s: float
    ends_at: float
    emitted: tuple[str, ...]
    prefilled: tuple[str, ...]
    finished: tuple[str, ...]
    admitted: tuple[Admitted, ...]
    preempted: tuple[str, ...]
    context_tokens: int
    prefill_tokens: int


@dataclass(frozen=True, slots=True)
class EngineCounters:
    """vLLM's metrics of one engine; those in `_total` never fall. Queries and hits are tokens.

    `kv_usage` is the share of blocks in use, 0..1. A prompt counts in `prompt_tokens_total` when
    its first token is emitted. Preempted requests look into the prefix cache again, but are counted
    once (vLLM).
    """

    running: int
    waiting: int
    kv_usage: float
    prefix_queries_total: int
    prefix_hits_total: int
    preemptions_total: int
    prompt_tokens_total: int
    generation_tokens_total: int


@dataclass(frozen=True, slots=True)
class BlockStored:
    """Full blocks, one chained 64-bit hash each, became reusable; `parent_hash` of `None`: a prompt's head.

    `token_ids` holds the tokens of all of them; empty if the engine was given hashes only.
    """

    block_hashes: Sequence[int]
    parent_hash: int | None
    token_ids: Sequence[int]
    block_size: int
    extra_key: str = ""


@dataclass(frozen=True, slots=True)
class BlockRemoved:
    """Blocks were evicted."""

    block_hashes: Sequence[int]


@dataclass(frozen=True, slots=True)
class AllBlocksCleared:
    """The whole prefix cache was reset."""


KvEvent = BlockStored | BlockRemoved | AllBlocksCleared
EventSink = Callable[[KvEvent], None]
