"""Gateways that share their picks: each with a pool of its own, and all with one picture."""

import random
from collections import Counter, deque
from collections.abc import Iterable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.router.routing.endpoint import Endpoint
from extproc.router.routing.pool import Pick
from extproc.router.routing.prompt.chain import Chain, chain_of
from extproc.router.routing.strategies.balanced import LeastLoad
from extproc.router.routing.strategies.base import PeerCounts, RequestResult
from extproc.router.routing.strategies.prefix_cache.homes import GatewayCount
from extproc.router.routing.strategies.prefix_cache.index import Taken
from extproc.router.routing.strategies.prefix_cache.strategy import COLD, SESSION
from extproc.router.share.letters import (
    LETTER_BLOCKS,
    LETTER_NEWS,
    MAX_ENDPOINTS,
    Echo,
    Ended,
    Heartbeat,
    Letter,
    News,
    Picked,
    Withdrawn,
    name_of,
)
from extproc.router.share.peers import (
    MAX_PEERS,
    MAX_PICK_BLOCKS,
    MAX_PICKS,
    MAX_STRANGERS,
    PeerPicks,
)
from extproc.router.share.pool_share import Share
from tests.reach import reach, size_of
from tests.router.routing.fleet import Fleet, Shut, ask, words
from tests.tables import table


class FleetGateway(Fleet):
    """A fleet's gateway with its share; letters it wrote wait in `sent`."""

    def __init__(self, place: int, names: str, **options: object) -> None:
        super().__init__(names, seed=place, **options)
        self.share = Share(self.pool, 1_000 + place)

    @property
    def neighbours(self) -> PeerCounts:
        return self.share.peers.counts

    @property
    def counted(self) -> int:
        """Requests in flight, its own and its peers'."""
        return sum(counts(self).values())

    def letters(self) -> list[Letter]:
        return self.share.letters(self.clock.now_s)

    def heartbeat(self) -> Letter:
        return self.share.heartbeat(self.clock.now_s)

    def receive(self, letters: Iterable[Letter]) -> None:
        for letter in letters:
            self.share.receive(letter, self.clock.now_s)


class SharingGateways:
    """Gateways on one clock, and a bus that brings everything at once, unless the test says otherwise."""

    def __init__(self, count: int, names: str = "abcd", **options: object) -> None:
        self.gateways = [FleetGateway(place, names, **options) for place in range(count)]

    def wait(self, seconds: float) -> None:
        for gateway in self.gateways:
            gateway.clock.now_s += seconds

    def post(self) -> None:
        """Everybody's news go to all the others."""
        for sender in self.gateways:
            letters = sender.letters()
            for gateway in self.gateways:
                if gateway is not sender:
                    gateway.receive(letters)

    def beat(self, rounds: int = 1, late_s: float = 0.0) -> None:
        """So many heartbeats of everybody, a second each."""
        for _ in range(rounds):
            self.wait(1.0 - late_s)
            letters = [(one, one.heartbeat()) for one in self.gateways]
            self.wait(late_s)
            for sender, letter in letters:
                for gateway in self.gateways:
                    if gateway is not sender:
                        gateway.receive([letter])


def sharing_gateways(count: int, **options: object) -> SharingGateways:
    """Gateways that know how late each other's letters are: not at all."""
    found = SharingGateways(count, **options)  # type: ignore[arg-type]
    found.beat(3)
    return found


def sharing_pair(**options: object) -> tuple[SharingGateways, FleetGateway, FleetGateway]:
    both = sharing_gateways(2, **options)
    one, other = both.gateways
    return both, one, other


def counts(gateway: FleetGateway) -> dict[str, int]:
    return gateway.pool.book.counts()


def test_a_conversation_goes_on_where_a_peer_began_it() -> None:
    both, one, other = sharing_pair()
    for number in range(20):
        texts = [words(f"{number} Why?", 500)]
        first = one.visit(*texts, after_s=0)
        both.post()
        both.wait(1)
        offers = other.explain(*texts, "Because.", "How?")
        following = other.visit(*texts, "Because.", "How?", after_s=0)

        assert first.endpoint.name == following.endpoint.name
        assert following.reason is SESSION
        assert len(offers) <= 4, "no homes are asked"


def test_what_a_peer_sent_has_to_be_prefilled_first() -> None:
    both, one, other = sharing_pair()
    name = one.pick(words("Why?", 5_000)).endpoint.name
    both.post()
    backlogs = [gateway.explain("Who?").get(name, {}).get("backlog_ms") for gateway in (one, other)]

    assert len({*backlogs} - {None}) <= 1
    assert other.pick("Who?").endpoint.name != name


def test_nothing_of_a_peer_is_pinned_and_its_end_makes_it_young_again() -> None:
    both, one, other = sharing_pair(names="a", kv_tokens=1_024)
    pick = one.pick(words("Why?", 500))
    both.post()
    holding = other.strategy.index.holding("a")
    assert holding is not None
    assert (len(holding.pinned), len(holding)) == (0, 2)

    other.visit(words("Who?", 300), after_s=0)
    pick.release()
    both.post()
    other.visit(words("How?", 300), after_s=0)

    # Of three there is room for two: the second one went.
    asked = (words("Why?", 500), words("Who?", 300))
    assert [bool(other.explain(text)["a"]["match_tokens"]) for text in asked] == [True, False]


@table("is_early", [False, True], ids=["told at once", "told at the end"])
def test_what_a_failed_request_would_have_left_is_taken_back_everywhere(is_early: bool) -> None:
    both, one, other = sharing_pair(names="ab")
    texts = words("Why?", 500)
    pick = one.pick(texts)
    both.post()
    assert other.explain(texts)[pick.endpoint.name]["match_tokens"] != 0

    if is_early:
        pick.learn(RequestResult(503))
    pick.release()
    if not is_early:
        both.post()
        pick.learn(RequestResult(503))
    both.post()

    for gateway in both.gateways:
        assert {offer["match_tokens"] for offer in gateway.explain(texts).values()} == {0}
        assert len(gateway.strategy.index) == 0


def test_a_request_that_moved_is_known_where_it_went() -> None:
    both, one, other = sharing_pair(names="ab")
    texts = words("Why?", 500)
    pick = one.pick(texts)
    elsewhere = pick.fallbacks[0]
    both.post()
    one.pool.move(pick, elsewhere.address)
    both.post()
    offers = other.explain(texts)
    assert offers[elsewhere.name]["match_tokens"] != 0
    assert offers[pick.endpoint.name]["match_tokens"] == 0
    assert counts(other) == counts(one)


def test_a_peer_that_falls_silent_is_counted_no_more() -> None:
    both, one, other = sharing_pair()
    one.pick("Why?")
    both.post()
    both.wait(2.9)
    other.heartbeat()
    assert other.counted == 1

    both.wait(0.2)
    other.heartbeat()
    assert other.counted == 0
    assert other.neighbours == PeerCounts(0, 0, 1)

    both.beat(3)

    assert other.counted == 1
    assert other.neighbours == PeerCounts(1, 1, 0)


@table("silent_s", [0, 10])
def test_a_peer_that_sends_a_goodbye_is_not_lost(silent_s: int) -> None:
    both, one, other = sharing_pair()
    one.pick("Why?")
    both.post()
    both.wait(silent_s)
    other.letters()

    other.receive([one.share.farewell(one.clock.now_s)])

    assert other.counted == 0
    assert other.neighbours == PeerCounts(0, 0, 0)
    assert other.strategy.gateways.is_alone


@table(("away_s", "known"), [(0.5, 2), (4.0, 1)])
def test_a_gateway_that_is_started_again_takes_its_own_place_missed_or_not(
    away_s: float, known: int
) -> None:
    both, _, other = sharing_pair()
    other.clock.now_s += away_s
    other.heartbeat()
    both.gateways[0] = again = FleetGateway(5, "abcd")
    again.clock.now_s = other.clock.now_s
    both.beat(2)
    assert other.neighbours.active == known

    both.beat(4)

    assert other.neighbours == again.neighbours == PeerCounts(1, 1, 0)


@table(("beats", "lost"), [(1, 2), (2, 2), (3, 2), (5, 1)])
def test_who_came_in_shortly_before_a_peer_is_lost_is_in_its_place_only_if_it_lives_on(
    beats: int, lost: int
) -> None:
    both, one, other = sharing_pair()
    both.gateways.append(third := FleetGateway(5, "abcd"))
    third.clock.now_s = other.clock.now_s
    both.beat()
    both.gateways.remove(one)
    both.beat(beats)
    known = other.neighbours.active + other.neighbours.lost
    both.gateways.remove(third)
    both.beat(8)

    assert known == (2 if lost == 2 else 1)
    assert other.neighbours == PeerCounts(0, 0, lost)


@table(("late_s", "prompt"), [(0.01, 1), (0.1, 0), (0.9, 0)])
def test_of_a_slow_peer_blocks_are_known_and_counts_are_not(late_s: float, prompt: int) -> None:
    one, other = (both := SharingGateways(2)).gateways
    # A pool with much to do: what is a tenth of a second old is long past.
    for _ in range(10):
        for number in range(100):
            one.pick(f"{number}?").release()
        letters = one.letters()
        both.wait(late_s)
        other.receive(letters)
        both.beat(1, late_s)
    texts = [words("Why?", 500)]
    first = one.pick(*texts)
    letters = one.letters()
    both.wait(late_s)
    other.receive(letters)

    assert other.neighbours == PeerCounts(1, prompt, 0)
    assert other.counted == prompt
    both.wait(0.2)  # the first prompt is read by now
    assert other.pick(*texts, "Because.", "How?").endpoint.name == first.endpoint.name
    assert other.share.peers.delays() == {1_000: pytest.approx(late_s, abs=0.002)}
    assert other.strategy.gateways.times == 2 - prompt


def test_an_end_that_a_slow_peer_tells_of_takes_nothing_from_a_backlog_that_it_did_not_add_to() -> (
    None
):
    both, one, other = sharing_pair()
    both.post()
    both.beat(10, 0.9)
    theirs = one.pick(words("Why?", 20_000))
    other.receive(one.letters())
    name = theirs.endpoint.name
    other.strategy.backlogs.add(name, 500, other.clock())
    theirs.release()
    other.receive(one.letters())

    assert other.counted == 0
    assert other.strategy.backlogs.ms(name, other.clock()) == pytest.approx(500)


def test_a_peer_that_becomes_slow_is_taken_out_of_the_counts_and_put_back() -> None:
    both, one, other = sharing_pair()
    one.pick("Why?")
    both.post()
    both.beat(10, 0.9)
    assert other.counted == 0

    both.beat(30)

    assert other.counted == 1


def test_endpoints_that_only_a_peer_knows_are_counted_when_they_come() -> None:
    both, one, other = sharing_pair(names="ab")
    other.follow("bc")
    one.follow("a")
    pick = one.pick("Why?")
    both.post()
    assert counts(other) == {"b": 0, "c": 0}

    other.follow("abc")
    both.beat()
    assert counts(other) == {"a": 1, "b": 0, "c": 0}

    other.follow("bc")
    both.beat()
    assert counts(other) == {"b": 0, "c": 0}

    pick.release()
    both.post()
    other.follow("abc")
    both.beat()

    assert counts(other) == {"a": 0, "b": 0, "c": 0}


def test_a_letter_of_ours_of_another_pool_or_of_too_many_peers_is_left_alone() -> None:
    _, one, other = sharing_pair()
    before = other.share.peers.echoes(0.0)
    other.receive([other.heartbeat(), Letter(5, name_of("another pool"), 1)])
    assert other.share.peers.echoes(0.0) == before

    other.receive(answer_letter(other, 5_000 + number) for number in range(MAX_PEERS + 5))

    assert other.neighbours.active == MAX_PEERS
    assert one.neighbours.active == 1


def answer_letter(gateway: FleetGateway, peer: int, *news: News, ago_s: float = 0.0) -> Letter:
    """A letter of a peer that got one which this gateway sent so long ago."""
    now_us = int(gateway.clock.now_s * 1e6)
    echo = Echo(gateway.heartbeat().peer, now_us - int(ago_s * 1e6), 0)
    return Letter(peer, name_of("llama"), now_us, [*news], [echo])


def test_of_who_has_not_answered_us_nothing_is_believed() -> None:
    """No block, no count, not even that it is there; an answer to a letter of long ago is none."""
    gateway = FleetGateway(0, "abcd")
    pick = Picked(1, name_of("a"), 5, (1, 2, 3))
    stand = Heartbeat(1, {name_of("a"): 1})
    gateway.clock.now_s = 100.0
    gateway.receive([Letter(7, name_of("llama"), 1, [pick, stand], [Echo(8, 1, 0)])])
    gateway.receive([answer_letter(gateway, 7, pick, stand, ago_s=10.1)])
    assert gateway.neighbours == PeerCounts()
    assert gateway.counted == gateway.strategy.index.matched((1, 2, 3)) == 0

    gateway.receive([answer_letter(gateway, 7, pick, stand, ago_s=0.01)])

    assert gateway.neighbours == PeerCounts(1, 1, 0)
    assert (gateway.counted, gateway.strategy.index.matched((1, 2, 3))) == (1, 3)


def test_blocks_that_a_mad_peer_made_up_do_no_harm() -> None:
    """The end of one chain behind the beginning of another."""
    gateway = FleetGateway(0, "a")
    gateway.clock.now_s = 100.0
    for number, hashes in enumerate([(1, 2), (3, 2), (3, 4), (5, 5)], 1):
        gateway.receive([answer_letter(gateway, 7, Picked(number, name_of("a"), 0, hashes))])

    assert gateway.neighbours.active == 1
    assert gateway.strategy.index.matched((1, 2)) == 2


def test_strangers_take_nobodys_place() -> None:
    """However many names somebody has recorded, a current peer stays, and a new one comes in."""
    both, one, other = sharing_pair()
    other.receive(Letter(5_000 + number, name_of("llama"), 1) for number in range(3 * MAX_PEERS))
    both.beat()
    assert other.neighbours == PeerCounts(1, 1, 0)
    assert len(other.share.peers.echoes(0.0)) == 1 + MAX_STRANGERS

    other.clock.now_s += 4.0
    other.heartbeat()

    assert other.share.peers.echoes(0.0) == []
    assert one.neighbours.active == 1


def test_a_letter_of_an_old_conversation_counts_for_nobody() -> None:
    """Somebody recorded letters and plays them again, to a gateway that has been started since."""
    both, one, _ = sharing_pair()
    recorded: list[Letter] = []
    for _ in range(5):
        one.pick("Why?")
        recorded += one.letters()
        recorded.append(one.heartbeat())
        both.wait(1)
    fresh = FleetGateway(9, "abcd")
    for letter in recorded:
        fresh.clock.now_s += 0.5
        fresh.heartbeat()
        fresh.receive([letter])

    assert fresh.neighbours == PeerCounts()
    assert fresh.counted == 0


def test_of_a_peer_so_many_open_prompts_are_kept_and_no_more() -> None:
    *_, other = sharing_pair()
    sent_us = int(other.clock.now_s * 1e6)
    picks = [Picked(number + 10, 5, 0, (number,)) for number in range(MAX_PICKS + 10)]
    here = [
        Picked(number + 10, name_of("a"), 0, (number,), {7: 3}) for number in range(MAX_PICKS + 10)
    ]
    for news in (*picks, *here[: len(here) // 2]):
        other.receive([Letter(1_000, name_of("llama"), sent_us, [news])])
    other.receive([answer_letter(other, 5_000)])
    for news in here:
        other.receive([Letter(5_000, name_of("llama"), sent_us, [news])])
    kept = [len(found) for found in reach(other.share.peers) if isinstance(found, PeerPicks)]

    assert sorted(kept) == [0, MAX_PICKS]


def test_of_long_prompts_fewer_are_kept() -> None:
    kept = PeerPicks()
    long = [Picked(number, 7, 0, tuple(range(4_096))) for number in range(100)]
    for pick in (*long, *long[-3:]):
        kept.put(pick)
    at_most = MAX_PICK_BLOCKS // 4_096
    assert len(kept) == at_most
    assert kept.pop(99 - at_most) is None
    assert [kept.pop(number) for number in range(100 - at_most, 100)] == long[-at_most:]
    for number in range(MAX_PICKS + 5):
        kept.put(Picked(number, 7, 0, (number,)))
    assert len(kept) == MAX_PICKS


def test_a_strategy_hears_of_its_own_endpoints_alone() -> None:
    fleet = Fleet("ab")
    chain = chain_of(fleet.read(words("Why?", 100)), 1)
    fleet.strategy.sharing.apply_peer_pick("c", chain, 100)
    fleet.strategy.sharing.apply_peer_end("c", chain, 0)
    fleet.strategy.sharing.apply_peer_withdrawal("c", chain, 0)
    fleet.strategy.sharing.apply_peer_pick("a", chain, None)

    assert fleet.strategy.index.matched(chain.hashes) == len(chain)
    assert [fleet.explain("Who?")[name]["backlog_ms"] for name in "ab"] == [0, 0]


def test_what_another_gateways_request_brought_no_longer_waits_when_it_ends() -> None:
    fleet = Fleet("ab")
    chain = chain_of(fleet.read(words("Why?", 20_000)), 1)
    sharing = fleet.strategy.sharing
    sharing.apply_peer_pick("a", chain, chain.size)
    waits = fleet.strategy.backlogs.ms("a", fleet.clock())
    sharing.apply_peer_end("a", chain, chain.size)

    assert waits > 1_000
    assert fleet.explain("Who?")["a"]["backlog_ms"] == 0


def test_strategies_that_see_no_prompt_share_counts_all_the_same() -> None:
    both, one, other = sharing_pair()
    for gateway in both.gateways:
        gateway.pool.strategy = LeastLoad(gateway.outside)
        gateway.follow("abcd")
    picks = [one.pick("Why?") for _ in range(5)]
    both.post()
    assert counts(other) == counts(one)
    assert other.counted == 5

    picks[0].release()
    both.post()

    assert counts(other) == counts(one)


def test_what_was_taken_before_anybody_listened_ends_unheard() -> None:
    fleet = Fleet()
    pick = fleet.pick("Why?")
    share = Share(fleet.pool, 1)
    pick.release()

    assert share.letters(0.0) == []


def test_letters_are_bounded_and_lose_nothing() -> None:
    gateway = FleetGateway(0, "a", kv_tokens=1_000_000)
    gateway.visit(words("Why?", 100_000), after_s=0)
    for number in range(2 * LETTER_NEWS):
        gateway.visit(f"{number}?", after_s=0)
    for _ in range(20):
        gateway.visit(words("Why?", 100_000), after_s=0)
    letters = gateway.share.letters(0.0)
    news = [one for letter in letters for one in letter.news if not isinstance(one, Heartbeat)]
    numbers = [one.number for one in news]  # type: ignore[union-attr]
    assert numbers == [*range(1, 2 * (2 * LETTER_NEWS + 21) + 1)]
    assert max(len(letter.news) for letter in letters) <= LETTER_NEWS
    blocks = [
        sum(len(one.hashes) for one in letter.news if isinstance(one, Picked)) for letter in letters
    ]
    assert sum(blocks) > LETTER_BLOCKS >= max(blocks)


def test_of_too_many_endpoints_the_busiest_are_sent_and_names_are_not_kept_for_ever() -> None:
    fleet = Fleet("a")
    share, reading = Share(fleet.pool, 1), LeastLoad(fleet.outside)

    def pick(number: int) -> Pick:
        return Pick(fleet.pool, "", COLD, Endpoint(f"e{number}", "10.0.0.1:80"), (), reading)

    before = size_of(share)
    picks = [pick(number) for number in (*range(MAX_ENDPOINTS * 4 + 1), MAX_ENDPOINTS * 4)]
    for one in picks:
        share.picked(one)
    [heartbeat] = share.heartbeat(0.0).news
    assert isinstance(heartbeat, Heartbeat)
    busiest = heartbeat.open
    for one in picks:
        share.ended(one)

    assert len(busiest) == MAX_ENDPOINTS
    assert busiest[name_of(f"e{MAX_ENDPOINTS * 4}")] == 2
    assert share.letters(0.0)
    assert size_of(share) < before + 50


class BadBus:
    """Loses a share of the letters, and brings the others in any order, some of them twice."""

    def __init__(self, both: SharingGateways, loss: float, rng: random.Random) -> None:
        self._both, self._loss, self._rng = both, loss, rng
        self._under_way: list[tuple[FleetGateway, Letter]] = []

    def carry(self) -> None:
        rng, under_way = self._rng, self._under_way
        for sender in self._both.gateways:
            letters = sender.letters()
            if rng.random() < 0.2:
                letters.append(sender.heartbeat())
            others = [other for other in self._both.gateways if other is not sender]
            under_way += [
                (to, one) for one in letters for to in others if rng.random() >= self._loss
            ]
        rng.shuffle(under_way)
        for to, letter in under_way[: rng.randrange(8)]:
            to.receive([letter])
            if rng.random() < 0.8:
                under_way.remove((to, letter))


@given(st.integers(0, 2**32), st.sampled_from([0.0, 0.1, 0.5]), st.integers(2, 4))
def test_whatever_is_lost_late_or_sent_twice_all_have_the_truth_two_heartbeats_later(
    seed: int, loss: float, gateways: int
) -> None:
    rng = random.Random(seed)
    both = sharing_gateways(gateways)
    bus = BadBus(both, loss, rng)
    picks: list[Pick] = []
    for _ in range(60):
        if picks and rng.random() < 0.45:
            picks.pop(rng.randrange(len(picks))).release()
        else:
            picks.append(rng.choice(both.gateways).pick(f"{rng.randrange(20)} Why?"))
        both.wait(0.01)
        bus.carry()
        assert all(not _too_few(gateway) for gateway in both.gateways)
    both.beat(2)

    truth = Counter(pick.endpoint.name for pick in picks)
    expected = {name: truth[name] for name in "abcd"}
    # Late letters may have made a peer look late: then it is not counted, for a while.
    assert all(
        counts(gateway) == expected
        for gateway in both.gateways
        if gateway.neighbours.prompt == gateways - 1
    )

    both.beat(40)
    assert [counts(gateway) for gateway in both.gateways] == [expected] * gateways


MAD_HASHES = st.lists(st.integers(1, 8), min_size=1, max_size=6).map(tuple)
MAD_ODD = st.dictionaries(st.integers(0, 5), st.integers(1, 2_000), max_size=2)
MAD_NUMBERS = st.integers(1, 30)
MAD_NEWS = st.one_of(
    st.builds(Picked, MAD_NUMBERS, st.just(name_of("a")), st.just(0), MAD_HASHES, MAD_ODD),
    st.builds(Ended, MAD_NUMBERS, st.just(name_of("a")), MAD_NUMBERS),
    st.builds(Withdrawn, st.just(name_of("a")), st.integers(0, 6), MAD_HASHES),
    st.builds(Heartbeat, MAD_NUMBERS, st.dictionaries(st.just(name_of("a")), st.integers(1, 9))),
)


@given(st.lists(MAD_NEWS | st.sampled_from([(1, 2, 3, 4), (1, 2, 5), (6, 7, 8), ()]), max_size=40))
def test_whatever_a_mad_peer_sends_our_own_requests_go_on_and_the_index_holds(
    story: list[News | tuple[int, ...]],
) -> None:
    """Between its news we pick (a chain), and end the oldest of ours (an empty one)."""
    gateway = FleetGateway(0, "a", kv_tokens=400)
    gateway.clock.now_s = 100.0
    gateway.receive([answer_letter(gateway, 7)])
    index, ours = gateway.strategy.index, deque[tuple[Chain, Taken]]()
    holding = index.holding("a")
    assert holding is not None
    for one in story:
        if not isinstance(one, tuple):
            gateway.receive([answer_letter(gateway, 7, one)])
        elif one:
            ends = [200 * place for place in range(1, len(one) + 1)]
            chain = Chain(one, ends, ends, ends[-1], one[0], 0)
            ours.append((chain, index.insert(holding, chain, 100.0)))
            assert all(block in holding.pinned for block in one)
            assert [*index.holders(one, index.matched(one))]
        elif ours:
            index.release(holding, *ours.popleft(), 100.0)
    for chain, taken in ours:
        index.release(holding, chain, taken, 100.0)
    assert (holding.pinned, holding.pinned_bytes) == ({}, 0)
    assert len(holding.idle) == len(index)
    index.resize("a", 0)
    assert (len(holding.idle), holding.idle_bytes, len(index)) == (0, 0, 0)


def _too_few(gateway: FleetGateway) -> list[str]:
    """Endpoints of which less is counted than our own requests there."""
    ours = gateway.pool.book.ours()
    return [name for name, count in counts(gateway).items() if count < ours[name] or ours[name] < 0]


@given(st.integers(0, 2**32))
def test_the_same_picks_make_the_same_picture_everywhere(seed: int) -> None:
    """Who picked, and who got its letter, have the same counts, and the same blocks at each endpoint."""
    rng = random.Random(seed)
    all_ = sharing_gateways(4)
    chats: list[list[str]] = [[words(f"{number} Why?", rng.randrange(400))] for number in range(6)]
    picks: list[Pick] = []
    for _ in range(40):
        chat = rng.choice(chats)
        picks.append(rng.choice(all_.gateways).pick(*chat))
        all_.post()
        all_.wait(0.05)
        chat += [f"Because {len(chat)}.", f"And {len(chat)}?"]
        if len(picks) > 6:
            picks.pop(0).release()
            all_.post()

    pictures = [fleet_picture(gateway, chats) for gateway in all_.gateways]
    assert all(one == pictures[0] for one in pictures)


def fleet_picture(gateway: FleetGateway, chats: Sequence[Sequence[str]]) -> object:
    """Counts, and how far each endpoint holds each chat."""
    index = gateway.strategy.index
    depths = []
    for chat in chats:
        reading = gateway.picker.propose(ask(*chat)).pick.reading
        chain, _ = reading.content()
        assert chain is not None
        known = index.matched(chain.hashes)
        # A holding without a block is false.
        holdings = [index.holding(name) for name in "abcd"]
        depths.append(
            [holding.depth(chain.hashes, known) for holding in holdings if holding is not None]
        )
    return counts(gateway), depths


@table(
    ("configured", "known", "prompt", "count", "times"),
    [(8, 0, 0, 8, 8), (8, 7, 7, 1, 1), (8, 7, 0, 1, 8), (8, 3, 3, 2, 2), (2, 7, 7, 1, 1)],
)
def test_of_configured_gateways_those_that_share_count_as_one(
    configured: int, known: int, prompt: int, count: float, times: float
) -> None:
    company = GatewayCount(configured)
    company.set_peers(PeerCounts(known, prompt, 0), 0.0)

    assert (company.count, company.times) == (count, times)


def test_a_conversation_stays_where_it_was_when_peers_fall_silent() -> None:
    both, one, other = sharing_pair(names="abcdefgh")
    chats = [[words(f"{number} Why?", 500), "Because.", "How?"] for number in range(20)]
    placed = []
    for texts in chats:
        placed.append(one.visit(*texts, after_s=0).endpoint.name)
        both.post()
        both.wait(1)
    both.wait(4)
    other.heartbeat()
    other.follow("abcdefgh")
    # Turns of a gateway that sends no letters.
    longer = [[*texts, "So. " * 200, "Oh?", "Yes. " * 200, "And?"] for texts in chats]
    found = [other.visit(*texts, after_s=1).endpoint.name for texts in longer]
    assert found == placed
    assert (
        sum(predicted.cached for predicted in other.strategy.signals.predicted().values())
        > 20 * 700
    )

    other.pool.gate = Shut(frozenset(placed[0]))
    assert other.pick(*longer[0], "Well.", "So?").endpoint.name != placed[0]
