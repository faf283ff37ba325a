"""What an endpoint says of itself, at one moment: a plain value, for strategies to make something of."""

from msgspec import Struct


class Vitals(Struct, frozen=True):
    """Requests it works on and requests that wait, and what it has counted since its start.

    Tokens: `kv_tokens` fit into its cache (`None`: it does not say), `block_tokens` of them together or none
    (0: likewise); `queried_tokens` were looked for there and `hit_tokens` found; `prompt_tokens` is what it
    read. `prefills` requests took `prefill_s` seconds together from their first step to their first token.
    `started_s` is when its process began, 0 if it does not say.
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

    def is_after(self, before: "Vitals") -> bool:
        """Whether the same process said both, this one later: what it counted has not begun again."""
        is_same = abs(self.started_s - before.started_s) < 1
        return is_same and self.queried_tokens >= before.queried_tokens and self.prefills >= before.prefills
