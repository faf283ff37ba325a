"""Which requests become spans, and what a span says: no SDK here."""

import asyncio
from collections.abc import Mapping
from itertools import count
from random import Random
from typing import Any

import orjson
from hypothesis import given
from hypothesis import strategies as st

from extproc.router.routing.endpoint import Endpoint
from extproc.router.routing.picker import Decision, Picker, Query, Route
from extproc.router.routing.pool import Pool
from extproc.router.routing.strategies.base import ClockAndRandom
from extproc.router.routing.strategies.prefix_cache.strategy import PrefixCache
from extproc.router.stream.events import Answer, Phase, RequestBody, Routed
from extproc.router.stream.spans import MODEL_CHARS, Origin, Sampling, clean, describe_span
from tests.grpc_server.calls import RecordedCall
from tests.router.stream.conversations import BODY, MAX_BODY_BYTES, headers, one_pool
from tests.router.stream.served import build_processor
from tests.router.stream.wire import write_request
from tests.tables import table

TRACE = "0af7651916cd43dd8448eb211c80319c"
SAMPLED, UNSAMPLED = f"00-{TRACE}-b7ad6b7169203331-01", f"00-{TRACE}-b7ad6b7169203331-00"
PROXYS, PROXYS_UNSAMPLED = f"00-{TRACE}-00f067aa0ba902b7-01", f"00-{TRACE}-00f067aa0ba902b7-00"
CHAT = "/v1/chat/completions"


@table(
    ("metadata", "header", "parent"),
    [
        ("", "", None),
        ("", SAMPLED, SAMPLED),
        ("", UNSAMPLED, None),
        # The proxy's span stands between the client's and ours, and its word counts.
        (PROXYS, SAMPLED, PROXYS),
        (PROXYS, UNSAMPLED, PROXYS),
        (PROXYS_UNSAMPLED, SAMPLED, None),
        # Other flags than the lowest mean nothing here; versions to come may say more behind them.
        ("", SAMPLED[:-2] + "03", SAMPLED[:-2] + "03"),
        ("", SAMPLED[:-2] + "02", None),
        ("", SAMPLED + "-more", SAMPLED + "-more"),
        ("", "01", None),
        ("", SAMPLED[:-1], None),
    ],
)
def test_only_a_sampled_caller_is_followed(metadata: str, header: str, parent: str | None) -> None:
    sampling = Sampling()
    metadata_fields, asked = ({"traceparent": text} if text else {} for text in (metadata, header))
    origin = sampling.origin(metadata_fields, {":path": CHAT, **asked})

    assert (origin and origin.traceparent) == parent
    if sampling.rules_out(metadata_fields):
        assert parent is None


def test_a_sampler_of_its_own_is_asked_about_the_others_and_a_state_that_is_too_long_left_out() -> (
    None
):
    unsampled = {"traceparent": UNSAMPLED, ":path": CHAT}

    assert Sampling(roots=True).origin({}, {":path": CHAT}) == Origin(path=CHAT)
    assert Sampling(roots=True).origin({}, unsampled) is None
    assert Sampling(unsampled=True).origin({}, unsampled) == Origin(UNSAMPLED, "", CHAT)
    assert not Sampling(unsampled=True).rules_out(unsampled)
    too_long = {"traceparent": SAMPLED, "tracestate": "a=" + "b" * 600}
    assert Sampling().origin({}, too_long) == Origin(SAMPLED)


@given(st.text(), st.text())
def test_any_header_gives_an_origin_or_none(parent: str, state: str) -> None:
    fields = {"traceparent": parent, "tracestate": state}
    for sampling in (Sampling(), Sampling(unsampled=True, roots=True)):
        assert (sampling.origin({}, fields) or Origin()).traceparent in {parent, ""}
        sampling.rules_out(fields)


@given(
    st.text(st.characters(), max_size=3 * MODEL_CHARS) | st.text(st.characters(categories=["Cs"]))
)
def test_clean_text_is_short_and_utf8_can_write_it(text: str) -> None:
    cleaned = clean(text)
    cleaned.encode()

    assert len(cleaned) == min(len(text), MODEL_CHARS)


def decide_last(*texts: str) -> Decision:
    """The last of several requests, a second or more apart and none of them released, to a pool of three."""
    outside = ClockAndRandom(Random(0), count().__next__)
    pool = Pool("llama", PrefixCache(outside), fallbacks=1)
    pool.replace([Endpoint(name, f"10.0.0.{place}:80") for place, name in enumerate("abc", 1)])
    picker = Picker([Route(pool)])
    for text in texts:
        body = orjson.dumps({"model": "llama", "messages": [{"role": "user", "content": text}]})
        decision = picker.pick(Query("POST", CHAT, {}, body))
    return decision


def test_a_span_says_what_spoke_for_the_choice_before_it_was_made() -> None:
    text = "lorem ipsum " * 200
    decision = decide_last(text, text)
    attributes: Mapping[str, Any] = describe_span(Routed(Phase.REQUEST_BODY, decision), CHAT)
    first, *others = attributes["extproc.candidates"]

    assert attributes["gen_ai.operation.name"] == "chat"
    assert attributes["gen_ai.request.model"] == "llama"
    assert (attributes["extproc.pool"], attributes["extproc.strategy"]) == ("llama", "prefix_cache")
    assert (attributes["extproc.outcome"], attributes["extproc.reason"]) == ("routed", "prefix")
    assert attributes["extproc.prefix"] == f"{decision.key:016x}"
    assert attributes["extproc.endpoint"] == first == decision.pick.endpoint.name
    assert attributes["extproc.destination"].count(",") == 1
    assert others
    assert (
        attributes["extproc.match_tokens"] == attributes["extproc.candidates.match_tokens"][0] > 500
    )
    assert attributes["extproc.prompt_tokens"] - attributes["extproc.match_tokens"] < 20
    assert attributes["extproc.candidates.match_tokens"][1:] == [0] * len(others)
    assert attributes["extproc.candidates.cost_ms"] == sorted(
        attributes["extproc.candidates.cost_ms"]
    )
    lengths = {
        len(value) for name, value in attributes.items() if name.startswith("extproc.candidates")
    }
    assert lengths == {1 + len(others)}
    assert "lorem" not in str(attributes)
    # An open request keeps none of what was weighed.
    assert len(decision.costs) > 1
    assert decision.pick.reading.costs == ()


class Noted:
    """A tracer that notes what it records."""

    def __init__(self) -> None:
        self.sampling = Sampling()
        self.notes: list[tuple[Origin, Routed | Answer]] = []
        self.sent_before: list[int] = []
        self.call = RecordedCall()

    def record(self, origin: Origin, reply: Routed | Answer, elapsed_s: float) -> None:
        assert elapsed_s > 0
        self.notes.append((origin, reply))
        self.sent_before.append(len(self.call.sent))


async def send_traced(tracer: Noted, traceparent: str, *, body: bytes = BODY) -> None:
    stream = build_processor(one_pool(), tracer=tracer).open(tracer.call)
    stream.on_message(write_request(headers(traceparent=traceparent)))
    stream.on_message(write_request(RequestBody(body)))
    stream.on_close()
    await asyncio.sleep(0)


async def test_a_span_is_made_behind_the_answer_and_once_of_who_is_sampled() -> None:
    tracers = [Noted() for _ in range(3)]
    await send_traced(tracers[0], SAMPLED)
    await send_traced(tracers[1], SAMPLED, body=b"x" * (MAX_BODY_BYTES + 1))
    await send_traced(tracers[2], UNSAMPLED)
    [(origin, routed)], [(_, refused)], nothing = (tracer.notes for tracer in tracers)

    assert origin == Origin(SAMPLED, "", CHAT)
    assert isinstance(routed, Routed)
    assert tracers[0].sent_before == [2]
    assert isinstance(refused, Answer)
    assert refused.outcome == "body_too_large"
    assert (nothing, len(tracers[2].call.sent)) == ([], 2)


@table(("metadata", "kind"), [({}, "_TracedStream"), ({"traceparent": UNSAMPLED}, "_Stream")])
def test_a_stream_that_the_proxy_does_not_sample_is_like_any(
    metadata: dict[str, str], kind: str
) -> None:
    tracer = Noted()
    tracer.call.metadata = metadata

    assert type(build_processor(one_pool(), tracer=tracer).open(tracer.call)).__name__ == kind
