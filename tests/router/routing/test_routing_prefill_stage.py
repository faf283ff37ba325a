"""Who computes a prompt: the endpoint that answers it, or one that only prefills."""

from dataclasses import replace

import msgspec
import orjson
from hypothesis import given
from hypothesis import strategies as st

from extproc.router.routing.endpoint import Endpoint
from extproc.router.routing.picker import Picker, Query, Route
from extproc.router.routing.prefill_stage import Transfer
from extproc.router.routing.strategies.base import RequestResult
from extproc.router.routing.strategies.prefix_cache.strategy import (
    COLD,
    LOCAL_PREFILL,
    REMOTE_PREFILL,
    SESSION,
    PrefixCache,
)
from tests.router.routing.fleet import Shut, ask, words
from tests.router.routing.staged import QUICK, StagedFleet
from tests.tables import table

LONG = words("Why?", 4_000)  # 760 ms on an L4


@table(
    "streams, queue_ms, gbit_per_s, expected",
    [
        (0, 0, 1_000, LOCAL_PREFILL),  # it would hold up nobody
        (10, 0, 1_000, REMOTE_PREFILL),
        (10, 4_000, 1_000, LOCAL_PREFILL),
        (5, 0, 2, LOCAL_PREFILL),
        (40, 0, 3, REMOTE_PREFILL),
    ],
)
def test_a_prompt_is_computed_where_it_is_done_sooner(
    streams: int, queue_ms: float, gbit_per_s: float, expected: str
) -> None:
    fleet = StagedFleet(transfer=Transfer(overhead_ms=10, gbit_per_s=gbit_per_s))
    for name in "ab":
        fleet.stream(name, streams)
    for name in "pq":
        fleet.queue_up(name, queue_ms)
    pick = fleet.pick(LONG)

    assert pick.reason == expected
    assert (pick.prefill is not None) == (expected == REMOTE_PREFILL)


def test_near_the_edge_a_prompt_stays_and_a_little_beyond_it_leaves() -> None:
    """What it saves grows with the streams one by one: it changes its mind once, and not at a tie."""
    reasons = []
    for streams in range(12):
        fleet = StagedFleet("a", "p", Transfer(overhead_ms=300))
        fleet.stream("a", streams)
        reasons.append(fleet.pick(LONG).reason)

    assert reasons == sorted(reasons)
    assert reasons.index(REMOTE_PREFILL) == 2


def test_answers_that_are_awaited_at_a_prefill_endpoint_keep_nobody_from_it() -> None:
    """Of one that is not streamed nobody says when its prompt is done: it counts until all of it is there."""
    fleet = StagedFleet(prefill="p")
    for name in "ab":
        fleet.stream(name, 10)
    fleet.helpers.book.set_peer_count("p", 1_000)

    assert fleet.pick(LONG).reason == REMOTE_PREFILL


def test_without_a_ready_prefill_endpoint_all_is_as_if_there_were_none() -> None:
    fleet = StagedFleet()
    for name in "ab":
        fleet.stream(name, 20)
    fleet.helpers.gate = Shut(frozenset("pq"))

    assert (fleet.pick(LONG).reason, fleet.pick(LONG).prefill) == (COLD, None)
    fleet.helpers.gate = None
    assert fleet.pick(words("Another", 4_000)).reason == REMOTE_PREFILL


def test_an_endpoint_that_may_do_both_sends_nothing_to_itself() -> None:
    fleet = StagedFleet("a", "a")
    fleet.stream("a", 20)

    assert fleet.pick(LONG).reason == LOCAL_PREFILL


def test_both_endpoints_hold_what_one_computed_and_only_one_has_the_work() -> None:
    fleet = StagedFleet("a", "p")
    fleet.stream("a", 20)
    pick = fleet.pick(LONG)
    assert pick.prefill is not None
    assert isinstance(fleet.helpers.strategy, PrefixCache)
    backlogs = fleet.strategy.backlogs.ms("a", 0.0), fleet.helpers.strategy.backlogs.ms("p", 0.0)
    loads = fleet.pool.book.ours()["a"], fleet.helpers.book.total
    pick.prefill.release()
    pick.release()
    held = len(fleet.strategy.index), len(fleet.helpers.strategy.index)

    assert (backlogs[0], loads) == (0.0, (1, 1))
    assert 700 < backlogs[1] < 800
    assert held[0] == held[1] > 0
    pick.learn(RequestResult(502))
    assert (len(fleet.strategy.index), len(fleet.helpers.strategy.index)) == (0, 0)


def test_the_next_turn_stays_where_the_prompt_came_to() -> None:
    fleet = StagedFleet()
    for name in "ab":
        fleet.stream(name, 20)
    first = fleet.visit(LONG)
    second = fleet.pick(LONG, "Because.", "And?")

    assert (first.reason, second.reason) == (REMOTE_PREFILL, SESSION)
    assert (second.endpoint, second.prefill) == (first.endpoint, None)


def test_a_beginning_that_many_share_sends_nobody_from_who_holds_it_to_a_busier_one() -> None:
    """A copy is cheap where endpoints are compared; so is what a prefill elsewhere saves of it."""
    fleet, system = StagedFleet(prefill="p"), words("You are", 6_000)
    for number in range(30):
        holder = fleet.visit(f"Question {number}?", system=system, after_s=0.5).endpoint
    [other] = {"a", "b"} - {holder.name}
    fleet.stream(other, 20)
    pick = fleet.pick("Mine?", system=system)

    assert (pick.endpoint, pick.prefill) == (holder, None)


@table("revision, expected", [("1", ["a", "p", "c"]), ("2", ["b", "p"]), ("", None)])
def test_only_endpoints_of_one_revision_compute_for_each_other_and_take_their_retries(
    revision: str, expected: list[str] | None
) -> None:
    fleet = StagedFleet()
    fleet.pool.replace(
        [Endpoint(name, f"{name}:1", revision=of) for name, of in zip("abc", "121", strict=True)]
    )
    fleet.helpers.replace(
        [Endpoint("p", "p:1", revision=revision), Endpoint("q", "q:1", revision="3")]
    )
    for name, streams in {"a": 20, "b": 21, "c": 60}.items():
        fleet.stream(name, streams)
    pick = fleet.pick(LONG)
    helper = pick.prefill and [
        pick.endpoint.name,
        pick.prefill.endpoint.name,
        *(each.name for each in pick.fallbacks),
    ]

    assert helper == expected


@given(
    tokens=st.integers(1, 20_000),
    streams=st.integers(0, 50),
    queued_ms=st.floats(0, 5_000),
    gbit_per_s=st.floats(1, 1_000),
)
def test_a_prompt_whose_endpoint_holds_it_is_never_sent_away(
    tokens: int, streams: int, queued_ms: float, gbit_per_s: float
) -> None:
    fleet = StagedFleet("a", "p", Transfer(QUICK.overhead_ms, gbit_per_s=gbit_per_s))
    fleet.visit(words("Why?", tokens), after_s=100)
    fleet.stream("a", streams)
    fleet.strategy.backlogs.add("a", queued_ms, fleet.clock())

    assert fleet.pick(words("Why?", tokens)).prefill is None


def test_an_endpoint_in_both_lists_is_known_by_its_address_and_never_named_for_itself() -> None:
    """Its prompt, or that of a retry at it, would go from its sidecar to itself."""
    fleet = StagedFleet("ab", "p")
    fleet.helpers.fallbacks = 1
    twin = Endpoint("other", fleet.pool.snapshot.ready["a"].address)
    fleet.helpers.replace([twin, *fleet.helpers.snapshot.ready.values()])
    fleet.stream("a", 20)
    fleet.stream("b", 21)
    fleet.queue_up("other", 50)
    pick = fleet.pick(LONG)
    assert pick.prefill is not None

    assert (pick.endpoint.name, pick.prefill.destination) == ("a", "10.1.0.112:80")
    fleet.queue_up("p", 5_000)
    pick = fleet.pick(words("Another", 4_000))
    assert pick.prefill is not None
    assert (pick.prefill.endpoint, [each.name for each in pick.fallbacks]) == (twin, [])
    assert pick.endpoint.name == "b"


@table(
    "adapters, closed, expected",
    [
        ("a-q-", "", "q"),
        ("a---", "", None),  # nobody there has it
        ("--q-", "", "q"),  # `adapters` of the pool says that all have it; learnt of one
        ("----", "", "p"),
        ("a-q-", "q", None),
    ],
)
def test_a_prompt_for_an_adapter_leaves_only_for_an_endpoint_that_has_it_and_is_not_cooling(
    adapters: str, closed: str, expected: str | None
) -> None:
    fleet = StagedFleet("a", "pq")
    for pool in (fleet.pool, fleet.helpers):
        pool.replace(
            replace(each, adapters=frozenset({"sql"} if each.name in adapters else ()))
            for each in pool.snapshot.ready.values()
        )
    fleet.helpers.gate = Shut(frozenset(closed))
    fleet.picker = Picker([Route(fleet.pool, adapters=("sql",))])
    fleet.stream("a", 20)
    fleet.queue_up("q", 10)
    pick = fleet.picker.pick(ask(LONG, model="sql")).pick

    assert (pick.prefill and pick.prefill.endpoint.name) == expected


IDS = [*range(40_000)]


@table(
    "path, fields, is_sent",
    [
        ("/v1/completions", {"prompt": LONG}, True),
        ("/v1/completions", {"prompt": [LONG], "n": 1}, True),
        ("/v1/completions", {"prompt": [LONG, LONG]}, False),
        ("/v1/completions", {"prompt": IDS}, True),
        ("/v1/completions", {"prompt": [IDS]}, True),
        ("/v1/completions", {"prompt": [IDS, [1]]}, False),
        ("/v1/completions", {"prompt": LONG, "n": 2}, False),
        ("/inference/v1/generate", {"token_ids": IDS}, True),
        ("/v1/responses", {"input": LONG}, True),
        ("/v1/messages?beta=true", {"messages": [{"role": "user", "content": LONG}]}, True),
        ("/v1/messages/count_tokens", {"messages": [{"role": "user", "content": LONG}]}, False),
        ("/v1/chat/completions/batch", {"messages": [[{"role": "user", "content": LONG}]]}, False),
        ("/v1/embeddings", {"input": LONG}, False),
        ("/v1/rerank", {"query": LONG, "documents": [LONG]}, False),
        ("/v1/completions", {"prompt": ""}, False),
        ("", {"prompt": LONG}, False),
    ],
)
def test_only_one_answer_to_one_prompt_is_split_as_the_sidecar_does_it(
    path: str, fields: dict[str, object], is_sent: bool
) -> None:
    fleet = StagedFleet("a", "p")
    fleet.stream("a", 20)
    query = Query("POST", path, {}, orjson.dumps(fields))
    decision = fleet.picker.pick(query)

    assert (decision.pick.prefill is not None, decision.fault) == (is_sent, None)
    assert fleet.picker.pick(msgspec.structs.replace(query, method="PUT")).pick.prefill is None
