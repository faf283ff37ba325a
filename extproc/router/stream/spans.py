"""How a request belongs to a trace (W3C Trace Context), and what its decision's span has. Pure.

No OpenTelemetry here: what a request that nobody samples costs is a look at one character of a
header.
"""

from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from msgspec import Struct

from extproc.router.routing.picker import Decision
from extproc.router.routing.prompt.apis import operation_of
from extproc.router.stream.events import Answer, Routed
from extproc.router.stream.names import TRACEPARENT, TRACESTATE

# `00-<32 hexadecimal digits>-<16>-<flags>`; versions to come may go on behind the flags (W3C, 3.2).
_LENGTH: Final = 55
_LAST_FLAG: Final = 54
# The lowest bit of the flags is set where the last digit is odd (3.2.2.5.1).
_ODD: Final = frozenset("13579bdf")
# Every sender must pass on this much (3.3.1.5); longer states are left out.
_STATE_CHARS: Final = 512
# Longest name of a model in a span: the client chooses it, and it may be as long as a body.
MODEL_CHARS: Final = 128

Value = str | int | float | Sequence[str] | Sequence[int] | Sequence[float]


class Origin(Struct, frozen=True):
    """Where a request comes from: its caller's trace, empty if it has none, and the API that it is for."""

    traceparent: str = ""
    tracestate: str = ""
    path: str = ""


class Sampling(Struct, frozen=True):
    """Which requests the sampler decides on: those with a sampled caller in any case.

    `unsampled`: also those whose caller is not sampled; `roots`: also those without one.
    """

    unsampled: bool = False
    roots: bool = False

    def rules_out(self, metadata: Mapping[str, str]) -> bool:
        """Whether the stream's own metadata say already that no sampler will want it."""
        parent = metadata.get(TRACEPARENT, "")
        return len(parent) >= _LENGTH and parent[_LAST_FLAG] not in _ODD and not self.unsampled

    def origin(self, metadata: Mapping[str, str], headers: Mapping[str, str]) -> Origin | None:
        """Where a request comes from, if a sampler could want it.

        The stream's own metadata goes before the request's headers: there the proxy names its own
        span, of which the client's is the parent.
        """
        reply = metadata if TRACEPARENT in metadata else headers
        parent = reply.get(TRACEPARENT, "")
        if len(parent) < _LENGTH:
            return Origin(path=headers.get(":path", "")) if self.roots else None
        if parent[_LAST_FLAG] not in _ODD and not self.unsampled:
            return None
        state = reply.get(TRACESTATE, "")
        return Origin(parent, state if len(state) <= _STATE_CHARS else "", headers.get(":path", ""))


class Tracer(Protocol):
    """Makes spans of decisions. Never raises, never waits."""

    sampling: Sampling

    def record(self, origin: Origin, reply: Routed | Answer, elapsed_s: float) -> None:
        """Makes the span of a decision that was made just now and took `elapsed_s`."""


def describe_span(reply: Routed | Answer, path: str) -> dict[str, Value]:
    """The attributes of a decision: the GenAI semantic conventions' where they have one, else `extproc.*`.

    Never a prompt. The client chooses one of them, the model's name: cut, its broken characters
    replaced.
    """
    operation = operation_of(path)
    attributes: dict[str, Value] = {"gen_ai.operation.name": operation} if operation else {}
    if isinstance(reply, Answer):
        attributes |= {"extproc.pool": reply.pool} if reply.pool else {}
        attributes |= {"extproc.outcome": reply.outcome, "http.response.status_code": reply.status}
        return attributes | ({"error.type": reply.outcome} if reply.status >= 400 else {})
    decision = reply.decision
    if decision.model:
        attributes["gen_ai.request.model"] = clean(decision.model)
    return attributes | _picked(decision) | _offered(decision)


def clean(text: str) -> str:
    """A client's text, cut, as UTF-8 can write it: JSON may hold half a surrogate pair."""
    return text[:MODEL_CHARS].encode(errors="replace").decode()


def _picked(decision: Decision) -> dict[str, Value]:
    pick = decision.pick
    attributes: dict[str, Value] = {
        "extproc.pool": pick.pool.name,
        "extproc.outcome": "routed",
        "extproc.strategy": pick.strategy,
        "extproc.reason": str(pick.reason),
        "extproc.endpoint": pick.endpoint.name,
        "extproc.destination": pick.destination,
    }
    if decision.key is not None:
        attributes["extproc.prefix"] = f"{decision.key:016x}"
    if decision.adapter:
        attributes["extproc.adapter"] = clean(decision.adapter)
    if decision.fault is not None:
        attributes["extproc.body_fault"] = decision.fault.why
    return attributes


def _offered(decision: Decision) -> dict[str, Value]:
    """Arrays of one length: the candidates, the best first, and what spoke for each."""
    rows = decision.costs
    if not rows:
        return {}
    first = rows[0]
    return {
        "extproc.prompt_tokens": first.match_tokens + first.miss_tokens,
        "extproc.match_tokens": first.match_tokens,
        "extproc.candidates": [row.endpoint for row in rows],
        "extproc.candidates.match_tokens": [row.match_tokens for row in rows],
        "extproc.candidates.backlog_ms": [round(row.backlog_ms, 1) for row in rows],
        "extproc.candidates.in_flight": [row.in_flight for row in rows],
        "extproc.candidates.cost_ms": [round(row.cost_ms, 1) for row in rows],
    }
