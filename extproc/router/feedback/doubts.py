"""Connection failures that a log reports, held until the endpoint was asked. Pure.

Whoever reaches the port for access logs can ask for picks, and so may say of the endpoints that it was
given whatever it likes. That one could not be connected to is what it can say of any endpoint at
any time, and what we can check: the endpoint is asked itself, and three such entries shut it only if
it does not answer. A second proxy's word would prove no more, since senders name themselves.

A failure waits for the answer, at most as long as a question may take. The first of a row asks, so
that the row is complete no later than it was: a port that refuses answers at once. What the endpoint
answered counts for `fresh_s`, then the next failure asks again: one question a second, whatever a
log says.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from msgspec.structs import replace

from extproc.router.feedback.outcome import Outcome

# More of one endpoint tell nothing new: a row of them is far shorter.
_MOST_HELD: Final = 16
# So many endpoints are asked at one time; failures of others count for nothing meanwhile.
MOST_ASKED: Final = 64


@dataclass(slots=True)
class _Question:
    held: list[tuple[Outcome, float]] = field(default_factory=list)
    is_there: bool | None = None  # `None`: no answer yet
    answered_s: float = 0.0


class Doubts:
    """What was asked of endpoints, by address; `ask` sends a question, whose answer goes to `settle`."""

    def __init__(self, clock: Callable[[], float], fresh_s: float = 1.0) -> None:
        self.ask: Callable[[str], None] | None = None
        self._clock, self._fresh_s = clock, fresh_s
        self._questions: dict[str, _Question] = {}

    def weigh(self, outcome: Outcome) -> bool:
        """Whether an outcome counts now; else it is held until its endpoint was asked, or not believed."""
        if self.ask is None or not outcome.is_unreached:
            return True
        now_s, question = self._clock(), self._questions.get(outcome.address)
        if question is None or self._is_old(question, now_s):
            self._questions = {
                address: each
                for address, each in self._questions.items()
                if not self._is_old(each, now_s)
            }
            if sum(each.is_there is None for each in self._questions.values()) >= MOST_ASKED:
                return False
            question = self._questions[outcome.address] = _Question()
            self.ask(outcome.address)
        if question.is_there is None and len(question.held) < _MOST_HELD:
            question.held.append((outcome, now_s))
        return question.is_there is False

    def settle(self, address: str, *, is_there: bool) -> list[Outcome]:
        """Takes an endpoint's answer; returns the failures that are believed now."""
        question = self._questions.get(address)
        if question is None:
            return []
        now_s, held = self._clock(), question.held
        question.is_there, question.answered_s, question.held = is_there, now_s, []
        if is_there:
            return []
        return [
            replace(outcome, duration_s=outcome.duration_s + now_s - heard_s)
            for outcome, heard_s in held
        ]

    def _is_old(self, question: _Question, now_s: float) -> bool:
        return question.is_there is not None and now_s - question.answered_s > self._fresh_s
