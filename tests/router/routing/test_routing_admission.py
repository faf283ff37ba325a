"""Who is let into a full pool, by priority and by client; and conversations that go on."""

import random
from collections.abc import Sequence
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.errors import Cold, Overloaded, OverShare, Sheddable
from extproc.router.routing.admission import Admission, PoolLoad, RequestClass, ttl_s
from extproc.router.routing.endpoint import Endpoint
from extproc.router.routing.picker import Picker, Query, Route
from extproc.router.routing.pool import Pick, Pool
from extproc.router.routing.strategies.balanced import LeastLoad
from extproc.router.routing.strategies.prefix_cache.rule import Shedding
from tests.reach import size_of
from tests.router.outside import fixed_outside
from tests.router.routing.fleet import Fleet, words
from tests.tables import table

OUTSIDE = fixed_outside()
PRIORITIES = {"batch": -10, "later": -1, "usual": 0, "premium": 100}
OBJECTIVE, CLIENT = "x-gateway-inference-objective", "x-gateway-inference-fairness-id"


def limited_pool(limit: int, endpoints: int = 1, *, shares: bool = False) -> Pool:
    built = Pool("llama", LeastLoad(OUTSIDE), max_in_flight=limit)
    built.replace(
        [Endpoint(f"e{number}", f"10.0.0.{number + 1}:80") for number in range(endpoints)]
    )
    built.admission = Admission(PRIORITIES, has_shares=shares)
    return built


def send_query(
    pool: Pool, objective: str = "", client: str = "", subset: Sequence[str] | None = None
) -> Pick:
    headers = {OBJECTIVE: objective, CLIENT: client}
    ask = Query(
        "GET",
        "/v1/models",
        {name: value for name, value in headers.items() if value},
        subset=subset,
    )
    return Picker([Route(pool)]).pick(ask).pick


def is_let_in(pool: Pool, objective: str = "", client: str = "") -> bool:
    try:
        send_query(pool, objective, client).release()
    except Overloaded:
        return False
    return True


@table(
    ("in_flight", "let_in"),
    [
        ([], {"batch", "later", "usual", "premium"}),
        (["batch"] * 3, {"batch", "later", "usual", "premium"}),
        (["batch"] * 4, {"usual", "premium"}),
        (["usual"] * 4, {"premium"}),
        (["usual"] * 3 + ["batch"], {"usual", "premium"}),  # one place is lent to batch
        (["batch"] + ["usual"] * 4, set()),  # usual alone fill it, the headroom too
        (["premium"] * 4, set()),
        (["batch"] * 4 + ["usual"], set()),  # at the ceiling
    ],
)
def test_a_full_pool_refuses_negative_priorities_first(
    in_flight: list[str], let_in: set[str]
) -> None:
    pool = limited_pool(4)
    for objective in in_flight:
        send_query(pool, objective)

    assert {name for name in PRIORITIES if is_let_in(pool, name)} == let_in


@table("objective", ["", "no-such", "BATCH", "batch ", "usual"])
def test_an_unknown_objective_is_priority_0(objective: str) -> None:
    pool = limited_pool(1)
    send_query(pool, "batch")
    assert is_let_in(pool, objective)
    send_query(pool, objective)
    assert not is_let_in(pool, objective)


def test_the_newer_name_of_a_header_goes_first() -> None:
    headers = {"x-llm-d-inference-objective": "batch", OBJECTIVE: "premium"}

    assert Admission(PRIORITIES).standing(headers) == RequestClass(-10)


@table(
    ("ttl", "seconds"),
    [
        *[
            ("1500ms", 1.5),
            ("2s", 2),
            ("1m30s", 90),
            ("1.5h", 5_400),
            (".5s", 0.5),
            ("2.s", 2),
            ("7µs", 7e-6),
        ],
        *[
            (wrong, None)
            for wrong in ("", "2", "s", ".s", "-1s", "0s", "2 s", "2sx", "x2s", "1e3s", "٢s")
        ],
        ("9" * 1_000 + "s", None),
    ],
)
def test_how_long_a_request_may_wait_is_a_duration_as_go_writes_it(
    ttl: str, seconds: float | None
) -> None:
    assert ttl_s({"x-llm-d-inference-ttl": ttl}) == (
        None if seconds is None else pytest.approx(seconds)
    )


@table(
    ("in_flight", "refused", "kind", "let_in"),
    [
        (["greedy"] * 8 + ["modest"], "greedy", OverShare, ["modest", ""]),
        (["alone"] * 8, "alone", Overloaded, ["another"]),
        ([""] * 8, "", Overloaded, ["one"]),
    ],
)
def test_a_client_over_its_share_of_a_full_pool_is_refused_first(
    in_flight: list[str], refused: str, kind: type[Overloaded], let_in: list[str]
) -> None:
    """One alone has the whole pool, and all who give no name are one."""
    pool = limited_pool(8, shares=True)
    for client in in_flight:
        send_query(pool, client=client)

    with pytest.raises(kind):
        send_query(pool, client=refused)
    assert all(is_let_in(pool, client=client) for client in let_in)


def test_clients_count_for_nothing_unless_the_operator_says_so() -> None:
    pool = limited_pool(4)
    for number in range(4):
        send_query(pool, client=f"{number}")

    assert not is_let_in(pool, client="new")
    assert not len(pool.admission)


def test_made_up_clients_fill_the_headroom_at_most_and_leave_nothing_behind() -> None:
    pool, open_ = limited_pool(8, shares=True), list[Pick]()
    before = size_of(pool.admission)
    for number in range(10_000):
        try:
            open_.append(send_query(pool, client=f"{number}" * 100))
        except Overloaded:
            if number % 3 == 0:
                open_.pop(0).release()
    assert len(open_) <= 10
    assert len(pool.admission) == len(open_)
    # One priority, one endpoint, and each client that has a request.
    assert size_of(pool.admission) == before + 1 + 1 + len(open_)
    for pick in open_:
        pick.release()
    assert size_of(pool.admission) == before


def test_a_share_is_of_what_higher_priorities_leave() -> None:
    pool = limited_pool(8, shares=True)
    for _ in range(6):
        send_query(pool, "premium", "vip")
    send_query(pool, client="a")
    send_query(pool, client="b")

    assert [is_let_in(pool, client=client) for client in "abc"] == [False, False, False]
    assert is_let_in(pool, "premium", "other")


def test_a_share_of_the_pool_is_no_way_into_endpoints_full_of_higher_priorities() -> None:
    pool = limited_pool(2, endpoints=3, shares=True)
    for _ in range(2):
        send_query(pool, "premium", "a", subset=["10.0.0.1"])
    send_query(pool, "usual", "b", subset=["10.0.0.2"])

    for objective, client in [("premium", "a"), ("usual", "new")]:
        with pytest.raises(Overloaded):
            send_query(pool, objective, client, subset=["10.0.0.1"])


def test_full_is_what_the_endpoints_are_that_may_take_the_request() -> None:
    pool = limited_pool(2, endpoints=2)
    for _ in range(2):
        send_query(pool, "batch", subset=["10.0.0.1"])

    with pytest.raises(Sheddable):
        send_query(pool, "batch", subset=["10.0.0.1"])
    assert send_query(pool, "batch", subset=["10.0.0.2"]).endpoint.name == "e1"
    assert send_query(pool, "usual", subset=["10.0.0.1"]).endpoint.name == "e0"


def test_a_request_ends_with_the_priority_that_it_began_with_wherever_it_is_answered() -> None:
    pool = limited_pool(1, endpoints=2)
    moved = pool.move(send_query(pool, "batch", subset=["10.0.0.1"]), "10.0.0.2:80")

    assert is_let_in(pool, "batch")
    pool.admission.priorities = {"batch": 7}
    pool.max_in_flight = None
    moved.release()
    assert not len(pool.admission)


def test_what_was_not_taken_is_not_released() -> None:
    admission = Admission(PRIORITIES)
    admission.acquire(RequestClass(-1), "e0")

    with pytest.raises(KeyError):
        admission.release(RequestClass(-1), "e1")
    with pytest.raises(KeyError):
        admission.release(RequestClass(3), "e0")


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["batch", "later", "", "premium"]),
        st.sampled_from(["", "a", "b", "c"]),
        st.sampled_from([None, ("10.0.0.1",), ("10.0.0.2", "10.0.0.3")]),
        st.integers(0, 3),
    ),
    max_size=80,
)


def attempt(pool: Pool, objective: str, client: str, subset: Sequence[str] | None) -> Pick | None:
    """Nobody is refused while there is room, nor let in beyond the ceiling."""
    candidates = pool.candidates(subset=subset)
    crowd = PoolLoad("", pool.max_in_flight or 0, candidates.names, candidates.total, 3, 0)
    try:
        pick = send_query(pool, objective, client, subset)
    except Overloaded:
        assert crowd.total >= crowd.limit
        return None
    assert crowd.total < crowd.ceiling
    return pick


def check_order(pool: Pool, client: str, subset: Sequence[str] | None) -> None:
    """What is refused to a priority is refused to all below it, for every client."""
    let_in, clients = {}, ("", client, "new")
    for name, who in product(PRIORITIES, clients):
        pick = attempt(pool, name, who, subset)
        let_in[name, who] = pick is not None
        if pick is not None:
            pick.release()
    for low, high in [
        ("batch", "usual"),
        ("later", "usual"),
        ("usual", "premium"),
        ("batch", "premium"),
    ]:
        anyone = any(let_in[low, who] for who in clients)
        assert not anyone or all(let_in[high, who] for who in clients), (low, high, let_in)


@given(steps=STEPS, limit=st.integers(1, 6), shares=st.booleans())
def test_no_priority_is_let_in_while_a_higher_one_is_refused(
    steps: list[tuple[str, str, Sequence[str] | None, int]], limit: int, *, shares: bool
) -> None:
    """And all counts end at zero."""
    pool, open_ = limited_pool(limit, endpoints=3, shares=shares), list[Pick]()
    before = size_of(pool.admission)
    for objective, client, subset, ends in steps:
        check_order(pool, client, subset)
        pick = attempt(pool, objective, client, subset)
        if pick is not None:
            open_.append(pick)
        for _ in range(min(ends, len(open_)) if pick is None else 0):
            open_.pop(len(open_) // 2).release()
        assert pool.book.total == len(open_)
    random.Random(len(steps)).shuffle(open_)
    for pick in open_:
        pick.release()

    assert pool.book.total == 0
    assert size_of(pool.admission) == before


@given(clients=st.integers(2, 8), limit=st.integers(8, 40))
def test_clients_who_always_want_more_end_with_their_shares(clients: int, limit: int) -> None:
    """One has the whole pool at first, then all ask again and again; ends are drawn, the same each time."""
    rng, pool = random.Random(f"{clients} {limit}"), limited_pool(limit, shares=True)
    open_ = [("0", send_query(pool, client="0")) for _ in range(limit)]
    for _ in range(12 * limit):
        who = str(rng.randrange(clients))
        if is_let_in(pool, client=who):
            open_.append((who, send_query(pool, client=who)))
        else:
            open_.pop(rng.randrange(len(open_)))[1].release()
            _refill(pool, open_, rng, clients)
    held = [sum(who == str(number) for who, _ in open_) for number in range(clients)]

    assert limit <= len(open_) <= limit + max(1, limit // 4)
    assert max(held) <= limit // clients + max(1, limit // 4) + 1
    assert min(held) >= limit // clients - max(1, limit // 4) - 1


def _refill(pool: Pool, open_: list[tuple[str, Pick]], rng: random.Random, clients: int) -> None:
    """All requests try at once for the place that became free, in any order."""
    order = map(str, rng.sample(range(clients), clients))
    open_.extend(
        (who, send_query(pool, client=who)) for who in order if is_let_in(pool, client=who)
    )


# One conversation that is long as four of these fills an endpoint's cache.
TOKENS = 4_096


def cold_fleet() -> Fleet:
    return Fleet("ab", kv_tokens=TOKENS, shed_cold=True)


def overgrow(fleet: Fleet, conversations: int = 16, rounds: int = 12) -> None:
    """Conversations that take turns, more of them than the caches hold."""
    chats = [[words(f"Why {number}?", TOKENS // 4)] for number in range(conversations)]
    for _ in range(rounds):
        for texts in chats:
            try:
                fleet.visit(*texts, after_s=0.1)
            except Cold:
                continue
            texts += ["Because.", "And?"]


def refused(fleet: Fleet, count: int, *rest: str, system: str = "") -> int:
    """How many of so many chats that nobody has seen, which begin alike and go on with `rest`."""
    shed = 0
    for number in range(count):
        try:
            fleet.visit(words(f"Something new {number}", 100), *rest, system=system, after_s=0.0)
        except Cold:
            shed += 1
    return shed


@table(("found", "refused"), [(1.0, 0.0), (0.9, 0.0), (0.75, 0.5), (0.6, 1.0), (0.0, 1.0)])
def test_the_less_is_found_the_more_are_refused(found: float, refused: float) -> None:
    cliff = Shedding()
    cliff.found = found

    assert cliff.refused == pytest.approx(refused)


@given(st.lists(st.tuples(st.integers(1, 10**6), st.integers(0, 10**6))))
def test_a_share_is_a_share_whatever_is_measured(reported: list[tuple[int, int]]) -> None:
    cliff = Shedding()
    for answered, reach in reported:
        cliff.note_turn(answered, reach)

    assert 0 <= cliff.found <= 1
    assert 0 <= cliff.refused <= 1


def test_over_the_cliff_new_conversations_are_refused_until_those_that_go_on_find_theirs_again() -> (
    None
):
    over = cold_fleet()
    overgrow(over)
    assert refused(over, 50) >= 40
    assert refused(over, 20, "Answered", "And now?") == 0

    chat = ["One that goes on"]
    for _ in range(200):
        chat = [chat[0], "Because.", "And?"]
        over.visit(*chat, after_s=0.5)

    assert refused(over, 20) == 0


def test_conversations_of_which_most_is_cached_are_not_refused() -> None:
    """Instructions that others have brought along."""
    over = cold_fleet()
    system = words("Be kind.", 400)
    over.visit("The first", "who", "brings it", system=system, after_s=0.0)
    overgrow(over, rounds=8)
    over.visit("The first", "who", "brings it", "once", "more", system=system, after_s=0.0)

    assert refused(over, 10, system=system) == 0


def test_nobody_is_refused_unasked_nor_where_conversations_fit_nor_right_after_a_start() -> None:
    unasked, roomy, fresh = Fleet("ab", kv_tokens=TOKENS), cold_fleet(), cold_fleet()
    overgrow(unasked)
    overgrow(roomy, conversations=4)
    # It has seen none of the conversations that go on, and its caches are far from full.
    for number in range(200):
        fresh.visit(f"Old {number}", "Answer", "Next", after_s=1.0)

    assert (refused(unasked, 50), refused(roomy, 1), refused(fresh, 20)) == (0, 0, 0)
