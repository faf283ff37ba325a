"""The session, by recorded conversations and by invariants."""

from collections import Counter
from collections.abc import Callable

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.routing.picker import Picker
from extproc.stream.events import (
    Answer,
    BodyMode,
    Continue,
    Event,
    Piece,
    RequestBody,
    RequestHeaders,
    RequestTrailers,
    ResponseBody,
    ResponseHeaders,
    ResponseTrailers,
    Routed,
    StreamConfig,
)
from extproc.stream.session import Session
from tests.stream.conversations import (
    ADDRESSES,
    BODY,
    CONVERSATIONS,
    MAX_BODY_BYTES,
    Conversation,
    agrees,
    headers,
    one_pool,
    overload,
    summarize,
    two_pools,
)


def open_session(picker: Picker, pool: str | None = None) -> Session:
    return Session(picker, new_request_id=lambda: "made", max_body_bytes=MAX_BODY_BYTES, pool=pool)


def in_flight(picker: Picker) -> int:
    return sum(route.pool.book.total for route in picker.routes.values())


@pytest.mark.parametrize("conversation", CONVERSATIONS, ids=str)
def test_conversation_goes_as_recorded(conversation: Conversation) -> None:
    conversation = overload(conversation)
    before = in_flight(conversation.picker)
    session = open_session(conversation.picker, conversation.pool)
    for event, expected in conversation.turns:
        replies = [summarize(reply) for reply in session.on(event)]

        assert len(expected) == len(replies), replies
        assert all(map(agrees, expected, replies)), replies
    session.close()

    assert before == in_flight(conversation.picker)


def test_a_routed_request_counts_until_it_is_closed() -> None:
    picker = one_pool()
    session = open_session(picker)
    session.on(headers(end=True))

    assert in_flight(picker) == 1
    assert repr(session) == "<Session routed>"

    session.close()
    session.close()

    assert in_flight(picker) == 0
    assert session.on(RequestBody(BODY)) == []


def test_a_request_served_elsewhere_counts_there() -> None:
    picker = one_pool()
    pool = picker.routes["llama"].pool
    session = open_session(picker)
    [routed] = session.on(headers(end=True))
    assert isinstance(routed, Routed)
    picked = routed.decision.pick.endpoint
    other = next(address for address in ADDRESSES if address != picked.address)
    session.on(ResponseHeaders(served=other))

    assert session.served_elsewhere is pool
    assert {f"llama-{other}": 1} == {name: count for name, count in pool.book.counts().items() if count}

    session.close()

    assert in_flight(picker) == 0


@pytest.mark.parametrize("served", [None, "picked", "9.9.9.9:1"])
def test_a_request_stays_counted_where_nobody_knows_better(served: str | None) -> None:
    picker = one_pool(ADDRESSES[:1])
    session = open_session(picker)
    session.on(headers(end=True))
    session.on(ResponseHeaders(served=ADDRESSES[0] if served == "picked" else served))

    assert (session.served_elsewhere is not None) is (served == "9.9.9.9:1")
    assert in_flight(picker) == 1


def test_turns_of_a_conversation_go_to_one_endpoint() -> None:
    picker = one_pool()
    messages: list[dict[str, str]] = []
    went = Counter[str]()
    for turn in range(5):
        messages += [{"role": "user", "content": f"turn {turn}"}, {"role": "assistant", "content": "yes"}]
        session = open_session(picker)
        session.on(headers())
        [routed] = session.on(RequestBody(orjson.dumps({"model": "llama", "messages": messages})))
        assert isinstance(routed, Routed)
        went[routed.decision.pick.endpoint.address] += 1
        session.close()

    assert [5] == list(went.values())


def test_the_models_of_all_pools_are_listed_without_globs() -> None:
    [answer] = open_session(two_pools()).on(headers(method="GET", path="/v1/models", end=True))
    assert isinstance(answer, Answer)
    listed = orjson.loads(answer.body)

    assert ["llama", "sql-lora"] == [model["id"] for model in listed["data"]]


EVENTS = st.one_of(
    st.builds(
        RequestHeaders,
        st.dictionaries(
            st.sampled_from([":method", ":path", "content-type", "upgrade", "x-session", "x-extproc-pool"]),
            st.sampled_from(
                ["POST", "GET", "/v1/chat/completions", "/v1/models", "", "multipart/form-data", "é"]
            ),
        ),
        st.booleans(),
        st.none() | st.lists(st.sampled_from([*ADDRESSES, "10.0.0.1", "", "x"]), max_size=3),
        st.builds(
            StreamConfig,
            st.none() | st.sampled_from(BodyMode),
            st.none() | st.sampled_from(BodyMode),
            st.booleans(),
        ),
    ),
    st.builds(RequestBody, st.sampled_from([b"", BODY, BODY[:9], b"x" * 150_000, b"[" * 999]), st.booleans()),
    st.builds(RequestTrailers),
    st.builds(ResponseHeaders, st.none() | st.sampled_from([*ADDRESSES, "x"])),
    st.builds(ResponseBody, st.binary(max_size=4), st.booleans()),
    st.builds(ResponseTrailers),
)

BUILDERS: list[Callable[[], Picker]] = [one_pool, two_pools]


@given(st.lists(EVENTS, max_size=12), st.sampled_from(BUILDERS))
def test_any_order_of_events_is_answered_once_and_released_once(
    events: list[Event], build: Callable[[], Picker]
) -> None:
    picker = build()
    session = open_session(picker)
    replies = [reply for event in events for reply in session.on(event)]
    decisions = [reply for reply in replies if isinstance(reply, Routed | Answer)]
    routed = [reply for reply in decisions if isinstance(reply, Routed)]

    assert sum(isinstance(reply, Answer) for reply in replies) <= 1
    assert len(routed) <= 1
    assert in_flight(picker) == len(routed)
    if any(isinstance(reply, Answer) for reply in replies):
        assert isinstance(replies[-1], Answer)

    session.close()
    session.close()

    assert in_flight(picker) == 0


@given(st.lists(st.binary(max_size=90_000), max_size=3), st.sampled_from(BodyMode))
def test_a_body_given_back_is_the_body_that_came(chunks: list[bytes], mode: BodyMode) -> None:
    session = open_session(one_pool())
    replies = list(session.on(headers(mode)))
    sent = [*((chunk, False) for chunk in chunks), (b"", True)]
    if sum(map(len, chunks)) > MAX_BODY_BYTES:
        return
    for data, is_last in sent:
        replies += session.on(RequestBody(data, is_last))
    pieces = [reply for reply in replies if isinstance(reply, Piece)]

    if mode is BodyMode.FULL_DUPLEX_STREAMED:
        assert b"".join(chunks) == b"".join(piece.data for piece in pieces)
        assert [False] * (len(pieces) - 1) + [True] == [piece.end_of_stream for piece in pieces]
        assert all(len(piece.data) <= 62_000 for piece in pieces)
    else:
        assert pieces == []
        assert all(isinstance(reply, Continue | Routed) for reply in replies)
