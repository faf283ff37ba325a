"""Peers' rules as baselines: each decides as its source says, and the fleet gives it what it reads."""

from collections.abc import Mapping
from dataclasses import replace
from random import Random

import pytest

from extproc.errors import SettingsError
from extproc.router.routing.endpoint import Endpoint
from extproc.router.routing.picker import Picker, Query, Route
from extproc.router.routing.pool import Pick, Pool, Snapshot
from extproc.router.routing.strategies.base import ClockAndRandom, Strategy
from extproc.router.routing.strategies.registry import STRATEGIES
from extproc.simulator.engine.profiles import find_profile
from extproc.simulator.fleet.arms import parse_arm
from extproc.simulator.fleet.cell import MatrixCell
from extproc.simulator.fleet.flight import Flight
from extproc.simulator.fleet.node import Gaps, Node
from extproc.simulator.fleet.timeline import VirtualTimeline
from extproc.simulator.peers.pickers import SentPrompt
from extproc.simulator.peers.registry import PEERS, build_peer
from extproc.simulator.peers.sglang import Tree
from extproc.simulator.peers.signals import Signal, SignalScraper, scrape_nothing
from tests.simulator.prompts import planned
from tests.tables import table

NAMES = ("a", "b", "c")
SMALL = MatrixCell(arm="gie", workload="C", load=0.3, endpoints=2, warmup_s=5, measured_s=30)


class Told:
    """Signals as they are set."""

    def __init__(self, **said: Signal) -> None:
        self.said: Mapping[str, Signal] = said

    def read(self, name: str) -> Signal:
        return self.said.get(name, Signal())


def peer(name: str, signals: Told | None = None, **options: object) -> Strategy:
    return build_peer(
        name, options, ClockAndRandom(Random(0), float), lambda _every_s: signals or Told()
    )


class PeerFleet:
    """A pool of three endpoints with a strategy, which gets bodies."""

    def __init__(self, strategy: Strategy) -> None:
        self.pool = Pool("fleet", strategy, fallbacks=2)
        self.set(*NAMES)
        self._picker = Picker([Route(self.pool)])

    def set(self, *names: str) -> None:
        endpoints = [Endpoint(name, f"10.0.0.{ord(name)}:8000") for name in names]
        self.pool.install(Snapshot.build(endpoints, self.pool.strategy))

    def pick(self, text: str) -> Pick:
        body = b'{"messages":[{"role":"user","content":"%b"}]}' % text.encode()
        return self._picker.pick(Query("POST", "/v1/chat/completions", {}, body)).pick

    def ask(self, text: str, *, stays: bool = False) -> str:
        """Where a request goes; it has ended then, or it stays."""
        pick = self.pick(text)
        if not stays:
            pick.release()
        return pick.endpoint.name


def essay(name: str, chars: int = 1000) -> str:
    return (name * chars)[:chars]


def test_peers_are_no_strategies_of_the_service() -> None:
    assert not PEERS.keys() & STRATEGIES.kinds.keys()


@table(
    "name",
    [name for name in PEERS if name not in {"llmd_exact", "llmd_sticky", "dynamo", "oracle"}],
)
def test_peer_keeps_a_prompt_where_it_was_until_that_is_gone_and_names_every_fallback_once(
    name: str,
) -> None:
    fleet = PeerFleet(peer(name))
    first = fleet.ask(essay("x"))
    again = fleet.pick(essay("x"))

    assert again.endpoint.name == first
    assert sorted([first, *(endpoint.name for endpoint in again.fallbacks)]) == [*NAMES]
    rest = [other for other in NAMES if other != first]
    fleet.set(*rest)
    assert fleet.ask(essay("x")) in rest


def test_option_that_a_peer_has_not_is_refused() -> None:
    for arm, fault in (("gie:foo=1", "foo"), ("gie:scrape_s=0", "no time to wait")):
        with pytest.raises(SettingsError, match=fault):
            parse_arm(arm)


def test_gie_weighs_a_match_by_three_and_the_rest_by_two() -> None:
    signals = Told()
    fleet = PeerFleet(peer("gie", signals))
    first = fleet.ask(essay("x"))
    others = {name: Signal() for name in NAMES if name != first}

    # A match of all blocks is worth 3; a full cache costs 2, the longest queue 2.
    signals.said = {**others, first: Signal(kv_usage=1.0)}
    assert fleet.ask(essay("x")) == first
    signals.said = {**others, first: Signal(waiting=9)}
    assert fleet.ask(essay("x")) == first
    signals.said = {**others, first: Signal(waiting=9, kv_usage=1.0)}
    assert fleet.ask(essay("x")) != first


def test_gie_counts_matches_behind_a_gap_up_to_where_nobody_has_any() -> None:
    sent, short = SentPrompt(10), SentPrompt(2)
    for blocks, name in (([1, 2, 3], "a"), ([2], "b"), ([4, 5], "b")):
        sent.add(blocks, name)
    short.add([1, 2, 3], "a")

    assert sent.matches([1, 2, 3, 9, 4]) == {"a": 3, "b": 1}
    assert sent.matches([9, 1]) == {}
    # It forgets the head of a long prompt first.
    assert short.matches([1, 2, 3]) == {}
    assert short.matches([2, 3]) == {"a": 2}


def test_sglang_leaves_a_match_only_where_loads_are_far_apart_or_it_is_short() -> None:
    loaded, idle = (
        PeerFleet(peer("sglang_cache_aware", balance_abs=2)),
        PeerFleet(peer("sglang_cache_aware")),
    )
    homes = [loaded.ask(essay("x"), stays=True) for _ in range(3)]
    first = idle.ask(essay("x", 100))

    assert homes == [homes[0]] * 3
    assert loaded.ask(essay("x")) != homes[0]
    assert idle.ask(essay("x", 100) + essay("z", 50)) == first
    assert idle.ask(essay("x", 100) + essay("y", 500)) != first


def test_sglang_gives_what_is_new_to_the_smallest_tree() -> None:
    fleet = PeerFleet(peer("sglang_cache_aware"))
    sizes = {
        fleet.ask(essay(name, size)): size for name, size in (("x", 900), ("y", 500), ("z", 700))
    }

    assert (sorted(sizes), sizes[fleet.ask(essay("w"))]) == ([*NAMES], 500)


def test_tree_knows_the_longest_common_stretch_and_who_was_sent_it() -> None:
    tree = Tree()
    tree.add("abcdef", "a")
    tree.add("abcxyz", "b")

    assert (tree.match("abcdxx"), tree.match("abcx")) == ((4, frozenset("a")), (4, frozenset("b")))
    assert (tree.match("abc"), tree.match("q")) == ((3, frozenset("ab")), (0, frozenset()))
    assert tree.sizes == {"a": 6, "b": 6}


def test_llmd_exact_and_dynamo_go_by_what_is_there() -> None:
    # 2 + 2 for a; 3 * .9 + 2 * .5 + 2 for b; 1.2 + 2 for c. For dynamo 100 + 300, 10 + 50 + 345, 60
    # + 341.
    a, b = (
        Signal(prompt=100, active=300),
        Signal(prompt=100, cached=90, kv_usage=0.5, pending=50, active=345),
    )
    told = Told(a=a, b=b, c=Signal(prompt=100, cached=40, waiting=1, active=341))
    arms = (peer("llmd_exact", told), peer("dynamo", told), peer("dynamo", told, overlap=2.0))
    picks = [PeerFleet(arm).pick("x") for arm in arms]

    assert [pick.endpoint.name + pick.fallbacks[0].name for pick in picks] == ["ba", "ac", "cb"]


@table(
    ("options", "pending", "picked"),
    [
        ({}, 0, "a"),
        ({}, 93_000, "a"),  # under 18 s
        ({}, 95_000, "c"),
        ({"penalty_s": 1.0}, 4_000, "a"),
        ({"penalty_s": 1.0}, 6_000, "c"),
        ({"affinity": 0.95}, 0, "c"),  # nobody has so much: the least to do
        ({"affinity": 0.3}, 0, "b"),
    ],
)
def test_llmd_sticks_to_a_cache_until_it_is_saturated(
    options: dict[str, float], pending: int, picked: str
) -> None:
    told = Told(
        a=Signal(prompt=1_000, cached=900, pending=pending + 600),
        b=Signal(prompt=1_000, cached=400, pending=20),
        c=Signal(prompt=1_000, cached=100, pending=-500),
    )
    pick = PeerFleet(peer("llmd_sticky", told, exact=True, **options)).pick("x")

    assert pick.endpoint.name == picked


def test_aibrix_leaves_a_match_that_is_a_deviation_above_the_mean_or_far_above_the_least() -> None:
    fleet = PeerFleet(peer("aibrix"))
    asked = [fleet.ask(essay("x"), stays=True) for _ in range(3)]

    # Loads of 1, 0, 0: the mean is .33, the deviation .47, and 1 is above. Of 1, 1, 0 it is 1.14
    # that is not.
    assert len({*asked[:2]}) == 2
    assert asked[2] in asked[:2]
    # Of 2, 0, 0 the highest is above 1 * (.67 + 1), and 2 above the least.
    wide = PeerFleet(peer("aibrix", deviations=9, factor=1, gap=2))
    first, second, third = (wide.ask(essay("x"), stays=True) for _ in range(3))
    assert first == second != third


def test_fleet_knows_what_every_cache_has_and_has_to_do() -> None:
    timeline, said, session = VirtualTimeline(), list[Signal](), planned(1, (640, 32), (1000, 32))
    node = Node("n", find_profile("l4-llama8b-fp8"), timeline, lambda _flight: None, gaps=Gaps())
    second = Flight(1, session, 1, due_at=0)
    timeline.at(0.0, node.add, Flight(0, session, 0, due_at=0))
    for at_s in (0.01, 60.0):
        timeline.at(at_s, lambda: said.append(node.signal_for(second)))
    timeline.run()
    for number, tokens in ((2, 500), (3, 300)):
        node.add(Flight(number, planned(number, (tokens, 5)), 0, due_at=60))
    said.append(node.signal_for(second))
    # First all 640 are in use, and none is done; then 41 blocks fit; then one of two started, in 32
    # blocks.
    assert (said[0].prompt, said[0].cached, said[0].pending, said[0].active) == (
        1000,
        640,
        640,
        1000,
    )
    assert (said[1].cached, said[1].pending, said[1].active, said[1].running) == (656, 0, 1000, 0)
    assert (said[2].pending, said[2].active, said[2].waiting) == (800, 1000 + 512 + 300, 1)


def test_kubeai_leaves_a_home_at_the_second_request() -> None:
    fleet = PeerFleet(peer("kubeai"))
    homes = [fleet.ask(essay("x"), stays=True) for _ in range(2)]

    assert homes[0] != homes[1]


def test_scraper_reads_each_endpoint_at_moments_of_its_own_and_is_old_in_between() -> None:
    times: list[tuple[str, float]] = []
    now = 10.0

    def read_at(name: str, at_s: float) -> Signal:
        times.append((name, at_s))
        return Signal(waiting=len(times))

    assert scrape_nothing(1.0).read("a") == Signal()
    scraper = SignalScraper(1.0, Random(1), lambda: now, read_at)
    first = scraper.read("a"), scraper.read("a"), scraper.read("b")
    now = 13.5
    later = scraper.read("a")

    assert first[0] == first[1] == Signal(waiting=1)
    assert later.waiting == 3
    assert [name for name, _ in times] == ["a", "b", "a"]
    assert all(
        0 <= then - at_s <= 1.1 for (_, at_s), then in zip(times, (10, 10, 13.5), strict=True)
    )


def test_metrics_say_how_things_stood_at_the_end_of_the_last_step() -> None:
    """Two requests for an endpoint that runs one at a time; the second comes amid the first's prefill."""
    timeline, said = VirtualTimeline(), dict[float, Signal]()
    profile = replace(find_profile("l4-llama8b-fp8"), max_num_seqs=1)
    node = Node("n", profile, timeline, lambda _flight: None, gaps=Gaps())
    node.keep_signals(100.0)
    first, second = (Flight(n, planned(n, (640, 320)), 0, due_at=0) for n in (1, 2))
    prefill_s, moments = profile.step_s(640, 640), (0.02, 0.17, 0.25, 5.0, 9.0)

    def look(at_s: float) -> None:
        said[at_s] = node.signal_at(at_s)

    timeline.at(0.0, node.add, first)
    timeline.at(0.01, node.add, second)
    for moment in moments:
        timeline.at(moment, look, moment)
    timeline.run()

    assert 0.02 < prefill_s < 0.17 < prefill_s + profile.step_s(641, 0) < 0.25
    # Nobody had told of the first one in its first step, nor of the second one in the step that it
    # came in.
    assert said[0.02] == Signal()
    assert (said[0.17].running, said[0.17].waiting) == (1, 0)
    assert (said[0.25].running, said[0.25].waiting) == (1, 1)
    # Amid a long stretch in which nothing happens but decoding.
    assert said[0.25].kv_usage < said[5.0].kv_usage < said[9.0].kv_usage
    assert said[9.0].kv_usage == pytest.approx((640 + 9 / 0.0395) / 84_000, rel=0.03)
    assert node.signal_at(timeline.now).kv_usage == 0


def test_fleet_tells_gie_of_queues_and_of_older_ones_it_knows_less() -> None:
    busy = replace(SMALL, workload="U", load=0.95, measured_s=60)
    fresh, old = (replace(busy, arm=f"gie:scrape_s={age}").run() for age in (0.05, 10))

    assert fresh.failed == old.failed == 0
    assert fresh.ttft.mean_ms < old.ttft.mean_ms


def test_oracle_goes_where_the_text_is_whoever_sent_it_there() -> None:
    signals, text = Told(), essay("x", 8_000)
    fleet, turn = PeerFleet(peer("oracle", signals)), planned(1, (100, 10), (200, 10)).turns[1]
    for place in "bca":
        signals.said = {place: Signal(text=1.0)}
        assert {fleet.ask(text) for _ in range(3)} == {place}
    signals.said = {"b": Signal(text=0.5), "c": Signal(text=0.4)}

    assert fleet.ask(text) == "b"
    assert [turn.text_share(tokens) for tokens in (0, 110, 500)] == [
        0,
        pytest.approx(0.55, abs=0.1),
        1,
    ]
