"""The picker: from a request to a pool, a key and an endpoint."""

from typing import Any

import orjson
import pytest
from msgspec.structs import replace

import extproc.router.routing.pool as pools
from extproc.errors import NoEndpoint, PromptError, PromptTooComplex, RequestError, UnknownModel
from extproc.router.routing.endpoint import Endpoint, ModelCard
from extproc.router.routing.picker import Decision, Picker, Query, Route
from extproc.router.routing.pool import MAX_SPELLINGS, MAX_SUBSET, Pool, Snapshot
from extproc.router.routing.strategies.balanced import NO_PREFIX, LeastLoad
from extproc.router.routing.strategies.base import Strategy
from extproc.router.routing.strategies.prefix_hash import PrefixHash
from extproc.router.stream.answers import list_models
from tests.hostile import HOSTILE, fill
from tests.router.outside import fixed_outside
from tests.router.routing.fleet import Fleet, words
from tests.router.routing.fleet import ask as conversation
from tests.tables import table

CHAT = "/v1/chat/completions"
FIRST_USER = "first_user_message"
OUTSIDE = fixed_outside()


def pool_named(
    name: str, *endpoints: Endpoint, limit: int | None = None, strategy: Strategy | None = None
) -> Pool:
    built = Pool(name, strategy or PrefixHash(OUTSIDE), max_in_flight=limit)
    built.replace(endpoints or [Endpoint(f"{name}-0", "10.0.0.1:80")])
    return built


def query_of(
    body: object = None, *, path: str = CHAT, method: str = "POST", **fields: object
) -> Query:
    raw = None if body is None else orjson.dumps(body)
    return Query(method, path, {"content-type": "application/json"}, raw, **fields)  # type: ignore[arg-type]


def chat_query(model: str | None, text: str = "hello", **fields: str) -> Query:
    named = {} if model is None else {"model": model}
    return query_of({**named, "messages": [{"role": "user", "content": text}], **fields})


def picked_pool(picker: Picker, request: Query) -> str:
    return picker.pick(request).pick.pool.name


def eight(loaded: tuple[str, int], models: frozenset[str] = frozenset()) -> list[Endpoint]:
    """Endpoints `e1` to `e8`, of which the first so many have loaded an adapter."""
    adapter, count = loaded
    return [
        Endpoint(
            f"e{i}",
            f"10.0.0.{i}:80",
            models=models,
            adapters=frozenset({adapter} if i <= count else ()),
        )
        for i in range(1, 9)
    ]


@pytest.fixture
def several() -> Picker:
    learnt = Endpoint("l", "10.0.0.9:80", models=frozenset({"phi"}), adapters=frozenset({"tiny"}))
    llama = Route(pool_named("llama"), ("llama-8b",), frozenset({"sql"}))
    return Picker(
        [
            llama,
            Route(pool_named("qwen"), ("qwen-*", "*-coder")),
            Route(pool_named("learnt", learnt), ("phi-x",)),
        ]
    )


@table(
    ("model", "name"),
    [("llama-8b", "llama"), ("sql", "llama"), ("qwen-7b", "qwen"), ("deepseek-coder", "qwen")]
    + [(model, "learnt") for model in ("phi", "tiny", "phi-x")],
)
def test_a_model_leads_to_its_pool(several: Picker, model: str, name: str) -> None:
    assert picked_pool(several, chat_query(model)) == name


@table("model", ["llama-8B", "qwen", "phi-y", "", "[a-z]", "a" * 10_000])
def test_an_unknown_model_is_refused_by_name(several: Picker, model: str) -> None:
    with pytest.raises(UnknownModel) as caught:
        several.pick(chat_query(model))

    assert model[:200] in caught.value.message
    assert len(caught.value.message) < 300
    assert (caught.value.status, caught.value.param) == (404, "model")


def test_a_catch_all_takes_what_no_other_pool_does(several: Picker) -> None:
    picker = Picker([*several.routes.values(), Route(pool_named("rest"))])

    assert picked_pool(picker, chat_query("gpt-9")) == "rest"
    assert picked_pool(picker, chat_query(None)) == "rest"
    assert picked_pool(picker, chat_query("sql")) == "llama"


@table(
    ("model", "owner"),
    [
        ("llama-8b", "llama"),
        ("sql", "llama"),
        ("qwen-7b", "qwen"),
        ("phi", "learnt"),
        ("new", "thief"),
    ],
    ids=["a configured model", "a configured adapter", "a glob", "a learnt model", "nobody's"],
)
def test_a_loaded_adapter_takes_no_other_pools_traffic(
    several: Picker, model: str, owner: str
) -> None:
    """The pool that learnt the name stands first, where every tie is its."""
    loaded = Endpoint("t", "10.0.0.8:80", adapters=frozenset({model}))
    thief = Route(pool_named("thief", loaded), ("other",))
    picker = Picker([thief, *several.routes.values()])

    assert picked_pool(picker, chat_query(model)) == owner


@table("models", [("llama-8b",), ()], ids=["configured", "learnt"])
def test_an_adapter_named_like_its_model_draws_nothing(models: tuple[str, ...]) -> None:
    endpoints = eight(("llama-8b", 1), models=frozenset({"llama-8b"}))
    picker = Picker([Route(pool_named("llama", *endpoints), models)])
    decisions = [picker.pick(chat_query("llama-8b", f"text {number}")) for number in range(40)]

    assert len({decision.pick.endpoint.name for decision in decisions}) > 4
    assert {decision.adapter for decision in decisions} == {""}


def test_several_pools_need_a_model(several: Picker) -> None:
    with pytest.raises(PromptError) as caught:
        several.pick(chat_query(None))

    assert caught.value.status == 400
    with pytest.raises(PromptError):
        several.pick(Query("POST", CHAT, {}, b"not json"))


def test_a_sole_pool_needs_no_model() -> None:
    picker = Picker([Route(pool_named("llama"), ("llama-8b",))])
    unreadable = picker.pick(Query("POST", CHAT, {}, b"not json"))

    assert unreadable.pick.reason is NO_PREFIX
    assert unreadable.fault is not None
    assert picked_pool(picker, query_of(method="GET", path="/v1/models")) == "llama"
    with pytest.raises(UnknownModel):
        picker.pick(chat_query("gpt-9"))


@table("kind", ["small objects", "members of a message", "white space everywhere"])
def test_a_body_that_takes_too_much_is_routed_by_its_model(several: Picker, kind: str) -> None:
    body = (
        HOSTILE[kind](4_000_000)._replace(path=CHAT).data.replace(b'"model":"m"', b'"model":"phi"')
    )
    decision = several.pick(Query("POST", CHAT, {}, body))

    assert decision.pick.pool.name == picked_pool(several, chat_query("phi"))
    assert isinstance(decision.fault, PromptTooComplex)


def test_a_body_that_takes_too_much_and_hides_its_model_is_refused_by_several_pools(
    several: Picker,
) -> None:
    tools = fill(b'{"a":[{"b":0}]},', 4_000_000)
    body = b'{"messages":[%b0],"model":"phi","tools":[%b0]}' % (tools, tools)
    with pytest.raises(PromptTooComplex):
        several.pick(Query("POST", CHAT, {}, body))
    sole = Picker([Route(pool_named("llama"))])
    assert isinstance(sole.pick(Query("POST", CHAT, {}, body)).fault, PromptTooComplex)


def test_the_operators_pool_wins(several: Picker) -> None:
    assert (
        several.pick(Query("POST", CHAT, {}, chat_query("sql").body, pool="qwen")).pick.pool.name
        == "qwen"
    )
    with pytest.raises(NoEndpoint, match="no pool 'nope'"):
        several.pick(Query("POST", CHAT, {}, None, pool="nope"))


def test_all_names_are_listed_but_globs(several: Picker) -> None:
    assert [card.id for card in several.model_cards()] == [
        "llama-8b",
        "phi",
        "phi-x",
        "sql",
        "tiny",
    ]
    assert several.plan(query_of(method="GET", path="/v1/models")).lists_models
    assert not several.plan(query_of(method="GET", path="/v1/models", pool="qwen")).lists_models
    assert not several.plan(query_of(method="GET", path="/v1/models/sql")).lists_models


@table(("adapter", "globs", "count"), [("sql", (), 2), ("llama-sql", ("llama-*",), 1)])
def test_an_adapter_goes_only_where_it_is_loaded(
    adapter: str, globs: tuple[str, ...], count: int
) -> None:
    picker = Picker([Route(pool_named("llama", *eight((adapter, count))), globs)])
    decisions = [picker.pick(chat_query(adapter, f"text {number}")) for number in range(40)]

    assert {decision.pick.endpoint.name for decision in decisions} == {
        f"e{i + 1}" for i in range(count)
    }
    assert {decision.adapter for decision in decisions} == {adapter}


def test_salt_model_and_adapter_make_different_keys() -> None:
    endpoint = Endpoint("e", "10.0.0.1:80", adapters=frozenset({"sql"}))
    picker = Picker([Route(pool_named("llama", endpoint))])
    asked = [
        chat_query("llama"),
        chat_query("qwen"),
        chat_query("sql"),
        chat_query("llama", cache_salt="x"),
        chat_query("llama", "other"),
    ]
    keys = [picker.pick(request).key for request in asked]

    assert len(set(keys)) == 5
    assert None not in keys


def test_a_request_without_a_prompt_needs_no_body(several: Picker) -> None:
    assert not several.plan(query_of(method="GET", path="/v1/models")).needs_body
    assert not several.plan(query_of(method="POST", path="/health")).needs_body


def test_the_body_is_needed_only_where_it_may_change_the_decision(several: Picker) -> None:
    blind, by_header = LeastLoad(OUTSIDE), PrefixHash(OUTSIDE, key=["header:x-session", FIRST_USER])
    learnt = Endpoint("e", "10.0.0.1:80", adapters=frozenset({"sql"}))
    plain = Query("POST", CHAT, {})
    with_session = Query("POST", CHAT, {"x-session": "1"})
    to_b = Query("POST", CHAT, {}, pool="b")

    assert several.plan(plain).needs_body
    assert Fleet().picker.plan(plain).needs_body
    assert (
        Picker([Route(pool_named("a", strategy=blind), ("model",)), Route(pool_named("b"))])
        .plan(plain)
        .needs_body
    )
    assert (
        not Picker([Route(pool_named("a")), Route(pool_named("b", strategy=blind))])
        .plan(to_b)
        .needs_body
    )
    assert Picker([Route(pool_named("a"))]).plan(plain).needs_body
    assert not Picker([Route(pool_named("a", strategy=blind))]).plan(plain).needs_body
    assert Picker([Route(pool_named("a", strategy=blind), ("model",))]).plan(plain).needs_body
    assert (
        Picker([Route(pool_named("a", strategy=blind), adapters=frozenset({"sql"}))])
        .plan(plain)
        .needs_body
    )
    assert Picker([Route(pool_named("a", learnt, strategy=blind))]).plan(plain).needs_body
    assert Picker([Route(pool_named("a", strategy=by_header))]).plan(plain).needs_body
    assert not Picker([Route(pool_named("a", strategy=by_header))]).plan(with_session).needs_body


def test_headers_that_any_strategy_reads_are_wanted() -> None:
    by_header = PrefixHash(OUTSIDE, key=["header:X-Session", "header:x-user", FIRST_USER])
    routes = [
        Route(pool_named("a", strategy=by_header)),
        Route(pool_named("b", strategy=LeastLoad(OUTSIDE)), ("m",)),
    ]

    assert Picker(routes).key_headers == {"x-session", "x-user"}
    assert Picker(routes[1:]).key_headers == frozenset()


def test_a_pick_names_its_fallbacks_in_order() -> None:
    endpoints = [Endpoint(f"e{i}", f"10.0.0.{i}:80") for i in range(1, 6)]
    built = pool_named("llama", *endpoints)
    picker = Picker([Route(built)])
    alone = picker.pick(chat_query("a")).pick
    built.fallbacks = 2
    decision = picker.pick(chat_query("a"))
    pick = decision.pick
    assert decision.key is not None
    walk = list(built.snapshot.placement.walk(decision.key))

    assert pick.destination == ",".join(built.snapshot.ready[name].address for name in walk[:3])
    assert alone.destination == pick.endpoint.address


def test_draining_endpoints_get_no_picks_and_keep_their_requests() -> None:
    ready = [Endpoint(f"e{i}", f"10.0.0.{i}:80") for i in (1, 2)]
    least_load = LeastLoad(OUTSIDE)
    built = pool_named("llama", *ready, strategy=least_load)
    picks = [built.pick(least_load) for _ in range(4)]
    draining = Endpoint("e1", "10.0.0.1:80", is_ready=False)
    built.replace([draining, ready[1]])
    assert built.snapshot.draining == (draining,)
    assert {built.pick(least_load).endpoint.name for _ in range(4)} == {"e2"}
    assert (built.book.in_flight("e1"), built.book.total) == (2, 6)

    for pick in picks:
        pick.release()

    assert (built.book.in_flight("e1"), built.book.total) == (0, 4)


def test_tenants_share_no_prefix_and_a_tenant_does_with_itself() -> None:
    """A tenant who guesses another one's prompt learns nothing from where it goes, nor from the reason."""
    fleet = Fleet()
    picker = Picker([Route(fleet.pool, salt_header="x-tenant")])
    text = words("What is the secret?", 500)

    def sent(tenant: str, **fields: Any) -> Decision:
        asked = replace(
            conversation(text, **fields), headers={"x-tenant": tenant} if tenant else {}
        )
        decision = picker.pick(asked)
        decision.pick.release()
        fleet.clock.now_s += 10
        return decision

    first, probe, again, salted = sent("a"), sent("b"), sent("a"), sent("", cache_salt="1:a")
    assert sent("ab").key != sent("a", cache_salt="b").key

    assert "x-tenant" in picker.key_headers
    assert [each.pick.reason for each in (probe, salted)] == [first.pick.reason] * 2
    assert len({first.key, probe.key, salted.key}) == 3
    assert again.key == first.key
    assert again.pick.reason is not first.pick.reason
    assert (
        max(row.match_tokens for row in probe.costs)
        == 0
        < max(row.match_tokens for row in again.costs)
    )


SNAPSHOT = Snapshot.build(
    [
        Endpoint("a", "10.0.0.1:8000"),
        Endpoint("b", "10.0.0.1:8001"),
        Endpoint("c", "[fd00::3]:8000"),
    ],
    PrefixHash(fixed_outside(), positions=4),
)


@table(
    ("subset", "names"),
    [
        ([], set()),
        (["10.0.0.1:8000"], {"a"}),
        (["10.0.0.1"], {"a", "b"}),
        ([" 10.0.0.1:8001", "FD00:0::3"], {"b", "c"}),
        (["[fd00:0:0::3]:8000"], {"c"}),
        (["10.0.0.2:8000", "nonsense", "", "x" * 1_000_000], set()),
        (["nonsense"] * (MAX_SPELLINGS - 1) + ["FD00::3"], {"c"}),
        (["nonsense"] * MAX_SPELLINGS + ["FD00::3", "10.0.0.1:8000"], {"a"}),
        (["nonsense"] * (MAX_SUBSET - 1) + ["10.0.0.1:8000"], {"a"}),
        (["nonsense"] * MAX_SUBSET + ["10.0.0.1:8000"], set()),
    ],
)
def test_endpoints_of_a_subset_are_found(subset: list[str], names: set[str]) -> None:
    assert names == SNAPSHOT.locate(subset)


def test_endless_subset_is_read_as_far_as_its_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []

    def canonical(location: str) -> str:
        read.append(location)
        return location

    monkeypatch.setattr(pools, "canonical_location", canonical)

    SNAPSHOT.locate(f"10.1.{number >> 8}.{number & 255}:8000" for number in range(200_000))

    assert len(read) == MAX_SPELLINGS


def test_the_list_says_what_engines_say_of_their_models() -> None:
    """Two engines of a glob's pool; a client that fills the context must fit into both."""
    long, short = (
        Endpoint(
            f"e{size}", f"10.0.0.1:{size}", cards=frozenset({card}), models=frozenset({"Qwen/3"})
        )
        for size in (8_000, 4_000)
        for card in (ModelCard("Qwen/3", root="/models/q", max_model_len=size, created=7),)
    )
    globs = pool_named("qwen", long, short)
    picker = Picker([Route(pool_named("llama"), ["llama"]), Route(globs, ["Qwen/*"])])

    listed = orjson.loads(list_models(picker.model_cards()).body)["data"]
    same = {"object": "model", "owned_by": "extproc"}
    about = {"created": 7, "root": "/models/q", "max_model_len": 4_000}
    assert listed == [{"id": "Qwen/3"} | same | about, {"id": "llama", "created": 0} | same]


@table(
    "method, path, pool",
    [
        ("GET", "/v1/realtime?x=1&model=qwen%2Fq3", "qwen"),
        ("GET", "/v1/models/qwen/q3", "qwen"),
        ("OPTIONS", CHAT, "llama"),
        ("HEAD", "/v1/models", "llama"),
        ("GET", "/ping", "llama"),
    ],
)
def test_what_needs_no_body_finds_one_of_several_pools(method: str, path: str, pool: str) -> None:
    routes = [Route(pool_named("llama"), ["llama"]), Route(pool_named("qwen"), ["qwen/*"])]
    picker = Picker(routes)

    assert picked_pool(picker, query_of(method=method, path=path)) == pool
    for unnamed in (
        Query("GET", "/v1/realtime", {"upgrade": "websocket"}),
        query_of(method="GET", path="/v1/models/other"),
    ):
        with pytest.raises(RequestError):
            picker.pick(unnamed)
