"""What an engine answers: the result of a step, and its counters."""

from dataclasses import dataclass

from msgspec import Struct


class Admission(Struct, frozen=True):
    """A request left the queue; `cached_tokens` of it were in the prefix cache.

    A preempted request queues again and is admitted again; `is_first` tells the first time. `waited_s`
    counts from its arrival.
    """

    request_id: str
    cached_tokens: int
    waited_s: float
    is_first: bool


class StepResult(Struct, frozen=True):
    """One step. Everything in it becomes visible to clients at `ends_at`.

    `emitted` names the requests that got one token; `prefilled` those of them whose prompt was completed
    in this step (their first token, or the next one after a preemption), `finished` those that are done.
    `context_tokens` and `prefill_tokens` are the step's terms in `Profile.step_s`.
    """

    duration_s: float
    ends_at: float
    emitted: tuple[str, ...]
    prefilled: tuple[str, ...]
    finished: tuple[str, ...]
    admitted: tuple[Admission, ...]
    preempted: tuple[str, ...]
    context_tokens: int
    prefill_tokens: int


@dataclass(frozen=True, slots=True)
class Counters:
    """vLLM's metrics of one engine; those in `_total` never fall. Queries and hits are tokens.

    `kv_usage` is the share of blocks in use, 0..1. A prompt counts in `prompt_tokens_total` when its
    first token is emitted. Preempted requests ask the prefix cache again, but are counted once (vLLM).
    """

    running: int
    waiting: int
    kv_usage: float
    prefix_queries_total: int
    prefix_hits_total: int
    preemptions_total: int
    prompt_tokens_total: int
    generation_tokens_total: int
