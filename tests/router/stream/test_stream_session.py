"""The session, by recorded conversations and by invariants."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.errors import NoRoomForBody, RequestError
from extproc.grpc_server.budget import Budget
from extproc.router.routing.admission import FAIRNESS_ID, OBJECTIVE, Admission
from extproc.router.routing.endpoint import Endpoint
from extproc.router.routing.picker import Found, Picker, Route
from extproc.router.routing.pool import Pool
from extproc.router.routing.queue import Queue, QueueLimits
from extproc.router.routing.strategies.prefix_cache.strategy import PrefixCache
from extproc.router.routing.tickets import Tickets
from extproc.router.stream import events as say
from extproc.router.stream.session import Session, SessionOptions
from extproc.router.stream.uploads import LATE_S, SMALL_BYTES, Uploads
from tests.router.outside import fixed_outside
from tests.router.routing.fleet import ask, words
from tests.router.routing.staged import StagedFleet
from tests.router.stream.conversations import (
    ADDRESSES,
    BODY,
    CONVERSATIONS,
    GATEWAYS,
    MAX_BODY_BYTES,
    SKIPPED,
    Conversation,
    agrees,
    headers,
    one_pool,
    open_session,
    picks_in_flight,
    summarize,
    two_pools,
)
from tests.tables import table

BUFFERING = [say.BodyMode.BUFFERED, say.BodyMode.BUFFERED_PARTIAL]
LARGE = 8 * SMALL_BYTES


class ClockedUploads(Uploads):
    """Uploads with room for four large bodies, at a time that the test sets."""

    def __init__(self) -> None:
        self.now_s = 0.0
        super().__init__(Budget(4 * LARGE), lambda: self.now_s)


def announce(
    uploads: Uploads, length: str | None, mode: say.BodyMode = say.BodyMode.BUFFERED
) -> tuple[Session, say.Reply]:
    session = Session(one_pool(), SessionOptions(lambda: "made", LARGE, uploads=uploads))
    [reply] = session.on(headers(mode, content_length=length or ""))
    if isinstance(reply, say.Buffer):
        reply.upload.give_way = lambda: session.on(say.GiveWay())
    return session, reply


def is_unread(reply: say.Reply) -> bool:
    return isinstance(reply, say.Routed) and reply.is_unread and reply.skip_body


@table("mode", BUFFERING)
@table(
    ("length", "bytes_each"),
    [
        (str(LARGE), LARGE),
        ("9" * 17, LARGE),  # a proxy holds no more
        (str(SMALL_BYTES + 1), SMALL_BYTES + 1),
        (str(SMALL_BYTES), SMALL_BYTES),
        (None, SMALL_BYTES),
        ("-5", SMALL_BYTES),
        ("9" * 40, SMALL_BYTES),
    ],
)
def test_bodies_beyond_what_proxies_may_buffer_are_routed_unread(
    mode: say.BodyMode, length: str | None, bytes_each: int
) -> None:
    uploads = ClockedUploads()
    # Small ones have room beyond the limit: half as much again.
    is_small = bytes_each == SMALL_BYTES
    most = (6 if is_small else 4) * LARGE // bytes_each
    taken = [announce(uploads, length, mode) for _ in range(most)]
    _, reply = announce(uploads, length, mode)

    assert not any(is_unread(reply) for _, reply in taken)
    assert isinstance(reply, say.Routed)
    assert is_unread(reply)
    assert isinstance(reply.decision.fault, NoRoomForBody)
    assert reply.decision.key is None
    assert is_unread(announce(uploads, None)[1]) is is_small

    uploads.now_s = LATE_S
    assert not is_unread(announce(uploads, length, mode)[1])


def test_the_oldest_large_upload_gives_way_and_no_small_or_fresh_one() -> None:
    uploads = ClockedUploads()
    sessions = [announce(uploads, length)[0] for length in (None, *[str(LARGE)] * 3)]
    uploads.now_s = LATE_S
    sessions += [announce(uploads, str(LARGE))[0] for _ in range(3)]

    states = ["buffering", *["closed"] * 3, *["buffering"] * 3]
    assert [repr(each) for each in sessions] == [f"<Session {state}>" for state in states]
    for session in sessions:
        session.close()
    assert uploads.budget.used == 0


def test_whoever_announces_the_largest_bodies_again_and_again_keeps_out_no_smaller_one() -> None:
    """Four that never come, four times a second: behind the first second others are read all the same."""
    uploads, unread = ClockedUploads(), 0
    for quarter in range(40):
        uploads.now_s = quarter / 4
        for _ in range(4):
            announce(uploads, str(LARGE))
        session, reply = announce(uploads, str(2 * SMALL_BYTES))
        unread += is_unread(reply)
        session.close()

    assert unread == 4


def test_many_at_once_give_way_to_nobody() -> None:
    """All are fresh, and nothing was broken: an error for one is worse than no affinity for another."""
    uploads = ClockedUploads()
    sessions = [announce(uploads, str(LARGE))[0] for _ in range(4)]

    assert is_unread(announce(uploads, str(2 * SMALL_BYTES))[1])
    assert {repr(each) for each in sessions} == {"<Session buffering>"}


def test_what_was_announced_is_given_back_when_it_is_there() -> None:
    uploads = ClockedUploads()
    session, reply = announce(uploads, str(len(BODY)))

    assert isinstance(reply, say.Buffer)
    assert (reply.reply, uploads.budget.used) == (
        say.Continue(say.Phase.REQUEST_HEADERS),
        len(BODY),
    )

    session.on(say.RequestBody(BODY))

    assert uploads.budget.used == 0
    session.close()
    assert uploads.budget.used == 0

    # One that is not buffered does not count.
    session = open_session(two_pools(), uploads=uploads)
    assert session.on(headers(say.BodyMode.FULL_DUPLEX_STREAMED, content_length="50")) == []
    assert uploads.budget.used == 0


def hear(session: Session, event: say.Event) -> list[say.Reply]:
    """Tells the session an event, and reads for it what it wants read."""
    match session.on(event):
        case [say.BodyToRead() as reading]:
            found: Found | RequestError
            try:
                found = reading.find()
            except RequestError as error:
                found = error
            return session.on(say.BodyRead(found))
        case replies:
            return replies


@contextmanager
def every_body_is_long() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("extproc.router.routing.picker.is_large", lambda _: True)
        yield


@table("reads_apart", [False, True])
@table("conversation", [*CONVERSATIONS, *SKIPPED, *GATEWAYS], ids=str)
def test_conversation_goes_as_recorded(conversation: Conversation, *, reads_apart: bool) -> None:
    picker, budget = conversation.picker, Budget(conversation.budget_bytes)
    before = picks_in_flight(picker)
    session = open_session(picker, pool=conversation.pool, budget=budget, reads_apart=reads_apart)
    with every_body_is_long() if reads_apart else nullcontext():
        for event, expected in conversation.turns:
            replies = [summarize(reply) for reply in hear(session, event)]

            assert len(expected) == len(replies), replies
            assert all(map(agrees, expected, replies)), replies
    unseen = session.leave()
    session.close()

    assert (unseen is not None) is conversation.goes_unseen
    if unseen is not None:
        assert before + 1 == picks_in_flight(picker)
        unseen.release()
    assert before == picks_in_flight(picker)
    assert budget.used == 0


def test_a_request_served_elsewhere_counts_there() -> None:
    picker = one_pool()
    pool = picker.routes["llama"].pool
    session = open_session(picker)
    [routed] = session.on(headers(end=True))
    assert isinstance(routed, say.Routed)
    picked = routed.decision.pick.endpoint
    other = next(address for address in ADDRESSES if address != picked.address)

    answered = say.ResponseHeaders(served=other)

    assert session.on(answered) == [say.Served("llama", other, answered, is_elsewhere=True)]
    assert {f"llama-{other}": 1} == {
        name: count for name, count in pool.book.counts().items() if count
    }

    session.close()

    assert picks_in_flight(picker) == 0


@table("served", [None, ADDRESSES[0], "9.9.9.9:1"])
def test_the_response_headers_are_reported_once_and_the_request_counts_on(
    served: str | None,
) -> None:
    picker = one_pool(ADDRESSES[:1])
    session = open_session(picker)
    event = say.ResponseHeaders(served, status=503, retry_after="7")
    served_reply = say.Served(
        "llama", served or ADDRESSES[0], event, is_elsewhere=served == "9.9.9.9:1"
    )

    assert open_session(picker).on(event) == [say.Continue(say.Phase.RESPONSE_HEADERS)], (
        "nobody routed it"
    )
    session.on(headers(end=True))
    assert session.on(event) == [served_reply]
    assert session.on(event) == [say.Continue(say.Phase.RESPONSE_HEADERS)]
    assert picks_in_flight(picker) == 1


ENDS = [
    say.ResponseHeaders(end_of_stream=True),
    say.ResponseBody(b"", end_of_stream=True),
    say.ResponseTrailers(),
]


@table("end", [*ENDS, say.ResponseHeaders(ADDRESSES[0], end_of_stream=True)])
def test_a_request_counts_until_its_response_has_ended(end: say.Event) -> None:
    picker = one_pool()
    session = open_session(picker)
    for event in (headers(end=True), say.ResponseHeaders(), say.ResponseBody(b"data")):
        session.on(event)
        assert picks_in_flight(picker) == 1
    for _ in range(2):
        session.on(end)
        assert picks_in_flight(picker) == 0


@table("event", [say.RequestBody(BODY), say.BodySkipped()], ids=["budget", "skipped"])
def test_a_request_routed_without_its_body_says_why(event: say.Event) -> None:
    is_skipped = isinstance(event, say.BodySkipped)
    session = open_session(one_pool(), budget=Budget(1))
    session.on(headers(say.BodyMode.BUFFERED if is_skipped else say.BodyMode.FULL_DUPLEX_STREAMED))
    routed = session.on(event)[0]
    assert isinstance(routed, say.Routed)

    assert routed.decision.fault is not None
    assert routed.decision.fault.why == "budget"
    assert routed.decision.pick.reason == "no_prefix"


def test_an_order_that_the_operator_names_goes_on() -> None:
    orders = {"x-gateway-inference-objective": "premium", "x-llm-d-slo-ttft-ms": "200"}
    session = open_session(one_pool(), pass_headers={"x-gateway-inference-objective"})
    [routed] = session.on(say.RequestHeaders(orders, end_of_stream=True))
    assert isinstance(routed, say.Routed)

    assert routed.remove_headers == ["x-llm-d-slo-ttft-ms"]


def ticketed() -> tuple[Session, Tickets, Pool]:
    outside = fixed_outside()
    pool = Pool("llama", PrefixCache(outside))
    pool.replace([Endpoint("a", "10.0.0.1:80"), Endpoint("b", "10.0.0.2:80")])
    tickets = Tickets(outside.clock, 0)
    return open_session(Picker([Route(pool)]), tickets=tickets), tickets, pool


CHAT = {":method": "POST", ":path": "/v1/completions"}


def test_a_pick_is_found_by_the_number_in_its_response_until_its_log_has_come() -> None:
    session, tickets, pool = ticketed()
    session.on(say.RequestHeaders(CHAT, config=say.StreamConfig(say.BodyMode.BUFFERED)))
    [routed] = session.on(say.RequestBody(b'{"prompt": "Why?"}'))
    assert isinstance(routed, say.Routed)
    [served] = session.on(say.ResponseHeaders("10.0.0.2:80", status=200))
    assert isinstance(served, say.Served)
    assert served.ticket == routed.ticket != 0
    assert pool.book.total == 1
    assert session.leave() is None, "its end was told"
    session.close()
    session.close()

    assert tickets.pop(routed.ticket) is routed.decision.pick
    assert len(tickets) == pool.book.total == 0


def test_a_request_whose_proxy_says_no_more_keeps_its_number_for_a_while() -> None:
    session, tickets, _ = ticketed()
    session.on(say.RequestHeaders(CHAT))
    [routed, *_] = session.on(say.RequestBody(b'{"prompt": "Why?"}'))
    assert isinstance(routed, say.Routed)
    left = session.leave()
    session.close()

    assert left is not None
    assert tickets.pop(routed.ticket) is left.pick is not None


@table(
    "body",
    [
        {"messages": [{"role": "user", "content": "hello"}]},
        {"prompt": "hello"},
        {"input": "hello"},
        {"system": "be kind", "messages": [{"role": "user", "content": "hello"}]},
    ],
)
def test_a_request_without_a_path_has_its_prefix_all_the_same(body: dict[str, object]) -> None:
    session = open_session(one_pool())
    session.on(say.RequestHeaders({}))
    routed = session.on(say.RequestBody(orjson.dumps(body)))[0]
    assert isinstance(routed, say.Routed)

    assert routed.decision.pick.reason == "home"


def test_a_sheddable_request_is_refused_and_its_objective_goes_no_further() -> None:
    picker = ranked_pool()
    orders = {"x-gateway-inference-objective": "batch", "x-llm-d-inference-fairness-id": "a"}
    asked = say.RequestHeaders(
        {":method": "POST", ":path": "/v1/messages"} | orders, end_of_stream=True
    )
    sessions = [open_session(picker) for _ in range(4)]
    *routed, refused = [reply for session in sessions for reply in session.on(asked)]

    assert all(
        isinstance(reply, say.Routed) and {*reply.remove_headers} == {*orders} for reply in routed
    )
    assert isinstance(refused, say.Answer)
    fields = {"retry-after": "1", "x-llm-d-request-dropped-reason": "rejected-saturated"}
    assert (429, "sheddable", fields) == (refused.status, refused.outcome, refused.headers)
    assert orjson.loads(refused.body)["error"]["type"] == "rate_limit_error"

    for session in sessions:
        session.close()

    assert len(picker.routes["llama"].pool.admission) == 0


def test_the_models_of_all_pools_are_listed_without_globs() -> None:
    [answer] = open_session(two_pools()).on(headers(method="GET", path="/v1/models", end=True))
    assert isinstance(answer, say.Answer)
    listed = orjson.loads(answer.body)

    assert ["llama", "sql-lora"] == [model["id"] for model in listed["data"]]


MODES = st.none() | st.sampled_from(say.BodyMode)
NAMES = st.sampled_from(
    [":method", ":path", "content-type", "upgrade", "x-session", "x-extproc-pool"]
)
VALUES = ["POST", "GET", "/v1/chat/completions", "/v1/models", "", "multipart/form-data", "é"]
ORDERS = {
    OBJECTIVE[0]: st.sampled_from(["batch", "premium", "é"]),
    FAIRNESS_ID[1]: st.text(max_size=3),
}
BODIES = st.sampled_from([b"", BODY, BODY[:9], b"x" * 150_000, b"[" * 999])
LATE_CONFIGS = st.sampled_from([None, say.StreamConfig(say.BodyMode.BUFFERED), say.NO_CONFIG])
STATUSES = st.sampled_from([0, 200, 500])
PLAIN_EVENTS = st.one_of(
    st.builds(
        say.RequestHeaders,
        st.dictionaries(NAMES, st.sampled_from(VALUES)) | st.fixed_dictionaries(ORDERS),
        st.booleans(),
        st.none() | st.lists(st.sampled_from([*ADDRESSES, "10.0.0.1", "", "x"]), max_size=3),
        st.none() | st.builds(say.StreamConfig, MODES, MODES, st.booleans()),
    ),
    st.builds(say.RequestBody, BODIES, st.booleans(), st.none(), LATE_CONFIGS),
    st.builds(say.BodySkipped),
    st.builds(say.RequestTrailers),
    st.builds(
        say.ResponseHeaders, st.none() | st.sampled_from([*ADDRESSES, "x"]), st.booleans(), STATUSES
    ),
    st.builds(say.ResponseBody, st.binary(max_size=4), st.booleans()),
    st.builds(say.ResponseTrailers),
    st.builds(say.RetryQueued, st.booleans()),
    st.just(say.GiveWay()),
)
EVENTS = PLAIN_EVENTS | st.builds(say.Observed, PLAIN_EVENTS)


def ranked_pool() -> Picker:
    """One where a request may have a priority and a client, and that refuses some."""
    picker = one_pool(limit=1)
    picker.routes["llama"].pool.admission = Admission({"batch": -1, "premium": 1}, has_shares=True)
    return picker


def holding_pool() -> Picker:
    """An empty one, and who comes is held; it is tried again when `RetryQueued` comes."""
    picker = one_pool(())
    pool = picker.routes["llama"].pool
    pool.hold(Queue(QueueLimits(), Budget(1 << 20), clock=lambda: 0.0, later=lambda *_: None))
    return picker


def opening_pool() -> Picker:
    """One that is full of nothing, queues who comes, and is open at the retry."""
    picker = holding_pool()
    pool = picker.routes["llama"].pool
    pool.book.on_less = None

    def later(_: float, action: Callable[[], None]) -> None:
        pool.replace([Endpoint("a", ADDRESSES[0])])

    pool.hold(Queue(QueueLimits(), Budget(1 << 20), clock=lambda: 0.0, later=later))
    return picker


BUILDERS: list[Callable[[], Picker]] = [
    one_pool,
    two_pools,
    ranked_pool,
    holding_pool,
    opening_pool,
]


def ends_response(event: say.Event) -> bool:
    return isinstance(event, say.ResponseTrailers) or (
        isinstance(event, say.ResponseHeaders | say.ResponseBody) and event.end_of_stream
    )


def hear_nothing_read(session: Session, event: say.Event) -> list[say.Reply]:
    return [reply for reply in session.on(event) if not isinstance(reply, say.BodyToRead)]


# A buffered body that is being read is held, room or not.
@table(
    ("hear", "reads_apart", "least_bytes"),
    [(hear, False, 0), (hear, True, 0), (hear_nothing_read, True, 400_000)],
)
@given(
    events=st.lists(EVENTS, max_size=12),
    build=st.sampled_from(BUILDERS),
    limit_bytes=st.integers(0, 400_000),
)
def test_any_order_of_events_is_answered_once_and_released_once(
    events: list[say.Event],
    build: Callable[[], Picker],
    limit_bytes: int,
    *,
    hear: Callable[[Session, say.Event], list[say.Reply]],
    reads_apart: bool,
    least_bytes: int,
) -> None:
    """Also where bodies are read apart, or never."""
    with every_body_is_long() if reads_apart else nullcontext():
        run_session(events, build(), max(limit_bytes, least_bytes), hear, reads_apart=reads_apart)


@table("has_begun", [False, True])
def test_a_refusal_that_reading_brings_is_the_answer_and_ignored_where_nobody_asked(
    has_begun: bool,
) -> None:
    session = open_session(one_pool(), reads_apart=True)
    if has_begun:
        session.on(headers())
    assert session.on(say.BodyRead(RequestError("nobody asked"))) == []
    if not has_begun:
        session.on(headers())

    with every_body_is_long():
        [reading] = session.on(say.RequestBody(BODY))
        [answer] = session.on(say.BodyRead(RequestError("no")))

    assert isinstance(reading, say.BodyToRead)
    assert isinstance(answer, say.Answer)
    assert answer.status == 400


def run_session(
    events: list[say.Event],
    picker: Picker,
    limit_bytes: int,
    hear: Callable[[Session, say.Event], list[say.Reply]],
    *,
    reads_apart: bool,
) -> None:
    budget = Budget(limit_bytes)
    session = open_session(picker, budget=budget, reads_apart=reads_apart)
    replies: list[say.Reply] = []
    counted = 0
    for event in events:
        new = hear(session, event)
        replies += new
        if any(isinstance(reply, say.Routed) for reply in new):
            counted = 1
        if ends_response(event) or any(isinstance(reply, say.Answer) for reply in new):
            counted = 0

        assert picks_in_flight(picker) == counted
        assert 0 <= budget.used <= limit_bytes
    decisions = [reply for reply in replies if isinstance(reply, say.Routed | say.Answer)]
    routed = [reply for reply in decisions if isinstance(reply, say.Routed)]

    assert sum(isinstance(reply, say.Answer) for reply in replies) <= 1
    assert len(routed) <= 1
    if any(isinstance(reply, say.Answer) for reply in replies):
        assert isinstance(replies[-1], say.Answer)

    session.close()
    session.close()

    assert session.on(say.RequestBody(BODY)) == []
    assert picks_in_flight(picker) == 0
    assert [len(route.pool.admission) for route in picker.routes.values()] == [0] * len(
        picker.routes
    )
    assert not any(len(route.pool.queue or ()) for route in picker.routes.values())
    assert budget.used == 0


@given(
    st.lists(st.binary(max_size=90_000), max_size=3),
    st.sampled_from(say.BodyMode),
    st.integers(0, 200_000),
)
def test_a_body_given_back_is_the_body_that_came(
    chunks: list[bytes], mode: say.BodyMode, limit_bytes: int
) -> None:
    session = open_session(one_pool(), budget=Budget(limit_bytes))
    replies = list(session.on(headers(mode)))
    sent = [*((chunk, False) for chunk in chunks), (b"", True)]
    if sum(map(len, chunks)) > MAX_BODY_BYTES:
        return
    for data, is_last in sent:
        replies += session.on(say.RequestBody(data, is_last))
    pieces = [reply for reply in replies if isinstance(reply, say.Piece)]

    if mode is say.BodyMode.FULL_DUPLEX_STREAMED:
        assert b"".join(chunks) == b"".join(piece.data for piece in pieces)
        assert [False] * (len(pieces) - 1) + [True] == [piece.end_of_stream for piece in pieces]
        assert all(len(piece.data) <= 62_000 for piece in pieces)
    else:
        assert pieces == []
        assert all(isinstance(reply, say.Buffer | say.Continue | say.Routed) for reply in replies)


def test_a_prefill_endpoint_is_done_when_the_answer_begins() -> None:
    fleet = StagedFleet("a", "p")
    fleet.stream("a", 20)
    session, loads = open_session(fleet.picker), []
    for event in (
        headers(),
        say.RequestBody(ask(words("Why?", 4_000)).body or b""),
        say.ResponseHeaders(status=200),
    ):
        session.on(event)
        loads.append((fleet.helpers.book.total, fleet.pool.book.ours()["a"]))
    session.close()

    assert loads == [(0, 0), (1, 1), (0, 1)]
    assert (fleet.helpers.book.total, fleet.pool.book.ours()["a"]) == (0, 0)
