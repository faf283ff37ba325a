"""What an endpoint's metrics said at one moment: a plain value, read by `feedback`, given to strategies.

A new metric of the engine takes two places: a field here, and its name in `feedback.scraper`.
"""

from msgspec import Struct


class EndpointSignals(Struct, frozen=True):
    """Requests that run and that wait, and what the engine has counted since its start.

    Tokens: `kv_tokens` fit into its cache (`None`: it does not say), `block_tokens` make one block
    (0: it does not say); `queried_tokens` were looked up in the cache and `hit_tokens` found;
    `prompt_tokens` were read. `prefills` requests took `prefill_s` seconds together from their
    first step to their first token, `first_tokens` ones `first_token_s` from arrival to it,
    `answers` ones `answer_s` from arrival to their end, for `answer_tokens` in all. `started_s` is
    when its process began, 0 if it does not say. `kv_usage` is the part of its cache that
    running requests hold, 0 to 1.
    """

    running: float = 0.0
    waiting: float = 0.0
    kv_tokens: int | None = None
    queried_tokens: float = 0.0
    hit_tokens: float = 0.0
    prompt_tokens: float = 0.0
    prefills: float = 0.0
    prefill_s: float = 0.0
    started_s: float = 0.0
    block_tokens: int = 0
    answers: float = 0.0
    answer_s: float = 0.0
    kv_usage: float = 0.0
    first_tokens: float = 0.0
    first_token_s: float = 0.0
    answer_tokens: float = 0.0

    def is_after(self, before: "EndpointSignals") -> bool:
        """Whether the same process said both, this one later: its counters have not started again."""
        is_same = abs(self.started_s - before.started_s) < 1
        return (
            is_same
            and self.queried_tokens >= before.queried_tokens
            and self.prefills >= before.prefills
        )
