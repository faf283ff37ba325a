"""One request on its way through the fleet, and what became of it."""

from dataclasses import dataclass
from enum import Enum

from extproc.simulator.fleet.session import PlannedSession, PlannedTurn


class Leg(Enum):
    """What an endpoint does of a request: all of it, its prompt alone, or its answer to a prompt that came computed."""

    WHOLE = "whole"
    PREFILL = "prefill"
    DECODE = "decode"


@dataclass(slots=True, eq=False)
class Flight:
    """A request; times in virtual seconds, `-1.0` where it did not come to that.

    `due_at` is when the client wanted to send it, `sent_at` when it did. `endpoint`, `reason` and
    `gateway` describe the routing, `cached_tokens` what the first admission found in the prefix
    cache. `leg` says which part of it an endpoint is asked for.
    """

    number: int
    session: PlannedSession
    turn: int
    due_at: float
    sent_at: float = -1.0
    admitted_at: float = -1.0
    first_at: float = -1.0
    ended_at: float = -1.0
    stalled_at: float = -1.0
    endpoint: str = ""
    reason: str = ""
    gateway: int = 0
    cached_tokens: int = 0
    is_failed: bool = False
    leg: Leg = Leg.WHOLE

    @property
    def is_answered(self) -> bool:
        return self.ended_at >= 0 and not self.is_failed

    @property
    def plan(self) -> PlannedTurn:
        return self.session.turns[self.turn]

    @property
    def tokens(self) -> int:
        return self.plan.prompt_tokens + self.plan.output_tokens

    @property
    def output_tokens(self) -> int:
        """What is asked of the endpoint: vLLM answers a prefill with one token."""
        return 1 if self.leg is Leg.PREFILL else self.plan.output_tokens

    @property
    def ttft_s(self) -> float:
        return self.first_at - self.sent_at

    @property
    def due_ttft_s(self) -> float:
        return self.first_at - self.due_at

    @property
    def e2e_s(self) -> float:
        return self.ended_at - self.sent_at

    @property
    def tpot_s(self) -> float:
        """Time per output token after the first; of one that has more than one."""
        return (self.ended_at - self.first_at) / (self.plan.output_tokens - 1)
