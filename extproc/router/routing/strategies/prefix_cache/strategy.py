"""The cheapest endpoint: what of a prompt each one holds, and what the wait there costs; see `weighing`.

Several gateways do not know each other's picks. Then conversations, and what the operator puts before them,
have homes on a ring, the same for all of them; see `homes`.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import islice
from typing import Final

from msgspec import Struct
from msgspec.structs import asdict

from extproc.router.routing.endpoint import Endpoint
from extproc.router.routing.prompt.chain import Blocks, Chain, chain_of
from extproc.router.routing.prompt.parse import Prompt
from extproc.router.routing.prompt.prefix import routing_key
from extproc.router.routing.ring import Ring
from extproc.router.routing.strategies.balanced import LeastLoad
from extproc.router.routing.strategies.base import (
    Bid,
    Candidates,
    Choice,
    Ending,
    Foreseen,
    Lost,
    Neighbours,
    Offer,
    Outside,
    Placement,
    Reading,
    Reason,
    Strategy,
)
from extproc.router.routing.strategies.prefix_cache.backlog import Backlogs
from extproc.router.routing.strategies.prefix_cache.belief import BYTES_PER_TOKEN, Belief
from extproc.router.routing.strategies.prefix_cache.cliff import Cliff
from extproc.router.routing.strategies.prefix_cache.engines import DEFAULT_ENGINE, ENGINES
from extproc.router.routing.strategies.prefix_cache.holding import Holding, Link, Taken
from extproc.router.routing.strategies.prefix_cache.homes import Company
from extproc.router.routing.strategies.prefix_cache.prefix_index import PrefixIndex
from extproc.router.routing.strategies.prefix_cache.weighing import Weighing
from extproc.router.routing.vitals import Vitals

_FAILED: Final = 500

_POSITIONS: Final = 64


class Start(Struct, frozen=True):
    """What a request began with: what it took of the index, bytes it seems to lack, what waited there.

    `to_do` is what it lacks as far as was seen; `missing` leaves out what a home is presumed to have.
    """

    taken: Taken
    missing: float
    backlog_ms: float
    to_do: int = 0


_NOTHING_TAKEN: Final = Start(Taken(0, 0), 0, 0)


class PrefixCache(Strategy):
    """The endpoint where a prompt costs least, by an index of what each one holds.

    `engine` names the constants, see `ENGINES`; `kv_tokens` is the size of an endpoint's KV cache, if
    other than the engine's. With several `gateways`, each with an index of its own, prompts have homes;
    how many there are is told or found out. `shed_cold` refuses new conversations where those that go on
    outgrow the caches; for one gateway, or several that share their picks.
    """

    name = "prefix_cache"
    headers: Collection[str] = ()

    def __init__(
        self,
        outside: Outside,
        *,
        engine: str = DEFAULT_ENGINE,
        learn: bool = False,
        kv_tokens: int | None = None,
        gateways: int | None = None,
        shed_cold: bool = False,
    ) -> None:
        if engine not in ENGINES:
            raise ValueError(f"{engine!r} is no engine: choose from {', '.join(ENGINES)}")
        costs = ENGINES[engine]
        kv_tokens = kv_tokens or costs.kv_tokens
        self._clock, self._rng = outside.clock, outside.rng
        self._without_prompt = LeastLoad(outside, Reason.NO_PREFIX)
        self._backlogs = Backlogs()
        # What another gateway answered looks like what was evicted: who sheds has to see all of it.
        self.company = Company(gateways or (1 if shed_cold else None))
        self._cliff = Cliff() if shed_cold else None
        self.belief = Belief(costs, kv_tokens, self.company, outside.rng if learn else None)
        self.index = PrefixIndex(int(kv_tokens * BYTES_PER_TOKEN))
        self._weighing = Weighing(outside, self.index, self._backlogs, self.belief, self.company)

    def needs_body(self, headers: Mapping[str, str]) -> bool:  # noqa: ARG002  # no header says as much
        return True

    def read(self, prompt: Prompt | None, headers: Mapping[str, str], adapter: str) -> Reading:  # noqa: ARG002  # likewise
        # What is beyond a whole cache is in none.
        text = prompt.head(self.index.capacity) if prompt else ""
        if prompt is None or not text:
            return self._without_prompt
        seed = routing_key("", model=prompt.model or "", adapter=adapter, cache_salt=prompt.cache_salt)
        return _Cached(self, chain_of(text, seed))

    def place(self, ready: Mapping[str, Endpoint], before: Placement) -> Placement:
        return Ring.grown(before, ready, _POSITIONS)

    def follow(self, ready: Mapping[str, Endpoint]) -> None:
        self.index.follow({name: endpoint.address for name, endpoint in ready.items()})
        self._backlogs.follow(ready)
        self.belief.follow(ready)

    def lose(self, endpoint: str) -> None:
        self.index.lose(endpoint)

    def meet(self, neighbours: Neighbours) -> None:
        self.company.meet(neighbours, self._clock())

    def hear_pick(self, endpoint: str, blocks: Blocks, missing: int | None) -> None:
        holding, now = self.index.holding(endpoint), self._clock()
        if holding is not None:
            self.index.hear(holding, blocks, now, is_new=True)
            if missing:
                self._backlogs.add(endpoint, missing * self.belief.ms_per_byte, now)

    def hear_end(self, endpoint: str, blocks: Blocks) -> None:
        holding = self.index.holding(endpoint)
        if holding is not None:
            self.index.hear(holding, blocks, self._clock(), is_new=False)

    def hear_withdrawn(self, endpoint: str, chain: Chain, had: int) -> None:
        holding = self.index.holding(endpoint)
        if holding is not None:
            self.index.withdraw(holding, chain, Taken(had, len(chain)))

    def newest(self, endpoint: str, most: int) -> Sequence[int]:
        holding = self.index.holding(endpoint)
        return () if holding is None else holding.newest(most)

    def links(self, endpoint: str, blocks: Sequence[int]) -> Sequence[Link]:
        return self.index.links(endpoint, blocks)

    def copy(self, endpoint: str, links: Sequence[Link]) -> None:
        self.index.copy(endpoint, links, self._clock())

    def sense(self, endpoint: str, vitals: Vitals | None, in_flight: Callable[[], Mapping[str, int]]) -> None:
        self.belief.sense(endpoint, vitals, in_flight, self.index)

    def learnt(self) -> Mapping[str, object]:
        return self.belief.learnt(self.index)

    def foreseen(self) -> Mapping[Reason, Foreseen]:
        return self.belief.foreseen

    def foreseen_by_endpoint(self) -> Mapping[str, tuple[float, float]]:
        return self.belief.foreseen_by_endpoint()

    def take(self, holding: Holding, chain: Chain, presumed: int) -> Start:
        """Writes a request down; its endpoint may have `presumed` bytes of it from other gateways."""
        now = self._clock()
        known = self.index.known(chain.hashes)
        found = chain.reach(known)
        self.company.hear(chain, found, now - self.index.since(chain.hashes[known - 1]) if known else 0.0)
        if self._cliff is not None and chain.answered:
            self._cliff.hear(chain.answered, found)
        taken = self.index.take(holding, chain, now)
        reach = chain.reach(taken.had)
        to_do = chain.size - reach
        start = Start(taken, min(to_do, chain.size - presumed), self._backlogs.ms(holding.name, now), to_do)
        self._backlogs.add(holding.name, to_do * self.belief.ms_per_byte, now)
        return start

    def sheds(self, chain: Chain) -> bool:
        """Whether a prompt is a new conversation's that had better not begin now."""
        if self._cliff is None or chain.answered or not self._cliff.refused:
            return False
        if not self.company.is_alone or self.company.misses or not self.index.is_full(self._clock()):
            return False
        is_cold = 2 * chain.reach(self.index.known(chain.hashes)) < chain.size
        return is_cold and self._rng.random() < self._cliff.refused

    def offers(self, chain: Chain, candidates: Candidates) -> list[Offer]:
        """What the endpoints worth asking would cost, the cheapest first; never empty."""
        return self._weighing.offers(chain, candidates)

    def fill(self, names: list[str], candidates: Candidates, count: int) -> list[str]:
        """Adds the least loaded of the others, up to `count` together."""
        others = (name for name in candidates.least_loaded(self._rng) if name not in names)
        return [*names, *islice(others, count - len(names))]

    def explain(self, chain: Chain, candidates: Candidates) -> dict[str, object]:
        """What each endpoint worth asking would cost. In tokens, as far as text tells them."""
        tokens = self.belief.tokens
        return {
            "prompt_tokens": tokens(chain.size),
            "stretches": [
                {"tokens": tokens(stretch.stop - stretch.start), "weight": round(stretch.weight, 3)}
                for stretch in self._weighing.stretches(chain)
            ],
            "candidates": [asdict(bid) for bid in self.tell(chain, self.offers(chain, candidates))],
        }

    def tell(self, chain: Chain, offers: Sequence[Offer]) -> Sequence[Bid]:
        return [self._bid(offer, chain) for offer in offers]

    def _bid(self, offer: Offer, chain: Chain) -> Bid:
        tokens = self.belief.tokens
        return Bid(
            offer.name,
            tokens(offer.reach),
            tokens(chain.size - offer.reach),
            round(offer.backlog_ms, 1),
            offer.in_flight,
            round(offer.cost_ms, 1),
        )


class _Cached(Reading):
    """One request's chain, and where it was written down."""

    __slots__ = (
        "_chain",
        "_first",
        "_holding",
        "_is_open",
        "_late",
        "_lost",
        "_start",
        "_strategy",
        "_why",
        "key",
        "offers",
    )

    key: int
    learns = True

    def __init__(self, strategy: PrefixCache, chain: Chain) -> None:
        self._strategy = strategy
        self._chain = chain
        self._holding: Holding | None = None
        self._start = _NOTHING_TAKEN
        self._why = Reason.COLD
        self._is_open = False
        self._first: Offer | None = None
        self._late: tuple[str, Ending] | None = None
        self.key = chain.home
        self.offers: Sequence[Offer] = ()
        self._lost: Lost | None = None

    def sheds(self) -> bool:
        return self._strategy.sheds(self._chain)

    def choose(self, candidates: Candidates, count: int) -> Choice:
        self.offers = offers = self._strategy.offers(self._chain, candidates)
        names = [offer.name for offer in offers[:count]]
        if len(names) < min(count, len(candidates)):
            names = self._strategy.fill(names, candidates, count)
        self._why, self._first = self._reason(offers), offers[0]
        return Choice(tuple(names), self._why)

    def explain(self, candidates: Candidates) -> dict[str, object]:
        return self._strategy.explain(self._chain, candidates)

    def tell(self, offers: Sequence[Offer]) -> Sequence[Bid]:
        return self._strategy.tell(self._chain, offers)

    def taken(self, endpoint: str) -> None:
        self.offers = ()
        self._withdraw()
        index = self._strategy.index
        self._is_open = True
        self._holding = index.holding(endpoint)
        if self._holding is not None:
            first = self._first
            presumed = first.reach if first is not None and first.name == endpoint else 0
            self._start = start = self._strategy.take(self._holding, self._chain, presumed)
            self._strategy.belief.foresee(endpoint, self._chain.size, start.missing, self._why)

    def sent(self) -> tuple[Chain | None, int]:
        return self._chain, self._start.to_do

    def pop_lost(self) -> Lost | None:
        lost, self._lost = self._lost, None
        return lost

    def ended(self, endpoint: str) -> None:  # noqa: ARG002  # where it was taken
        self._is_open = False
        if self._holding is not None:
            self._strategy.index.release(self._holding, self._chain, self._start.taken)
        if self._late is not None:
            late, self._late = self._late, None
            self.learn(*late)

    def learn(self, endpoint: str, ending: Ending) -> None:
        if self._is_open:
            # Blocks of an open request can be neither withdrawn nor moved.
            self._late = endpoint, ending
        elif self._holding is None:
            return
        elif ending.status is not None and ending.status >= _FAILED:
            self._withdraw()
        elif endpoint != self._holding.name:
            self.taken(endpoint)
            self.ended(endpoint)
        elif ending.first_token_s is not None:
            self._strategy.belief.learn(
                endpoint, self._start.missing, self._start.backlog_ms, ending.first_token_s
            )

    def _withdraw(self) -> None:
        """This one never read it, or did not keep it."""
        if self._holding is not None:
            self._strategy.index.withdraw(self._holding, self._chain, self._start.taken)
            self._lost = Lost(self._holding.name, self._chain, self._start.taken.had)
            self._holding = None

    def _reason(self, offers: Sequence[Offer]) -> Reason:
        first, chain = offers[0], self._chain
        best = max(offer.blocks for offer in offers)
        if first.blocks < best:
            return Reason.SPILL
        if chain.answered and first.reach >= chain.answered:
            return Reason.SESSION
        if best:
            return Reason.PREFIX
        return Reason.HOME if first.is_home else Reason.COLD
