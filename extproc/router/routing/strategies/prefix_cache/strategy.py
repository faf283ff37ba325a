"""The cheapest endpoint, by how much of a prompt each one holds and what the wait there costs; see `rule`.

Several gateways that do not share their picks use homes: each conversation, and each system prompt,
has a home on a ring, the same for all gateways; see `homes`.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Final, Literal

from msgspec import Struct
from pydantic import BaseModel, ConfigDict, Field

from extproc.router.routing.endpoint import Endpoint
from extproc.router.routing.prompt.chain import Blocks, Chain
from extproc.router.routing.prompt.known_chats import KnownChats
from extproc.router.routing.prompt.parse import Prompt
from extproc.router.routing.prompt.prefix import routing_key
from extproc.router.routing.ring import Ring
from extproc.router.routing.strategies.balanced import NO_PREFIX, LeastLoad
from extproc.router.routing.strategies.base import (
    Candidates,
    Choice,
    ClockAndRandom,
    CostRow,
    PeerCounts,
    Placement,
    Reading,
    Reason,
    RequestResult,
    SharesPicks,
    Strategy,
    StrategySettings,
    Withdrawal,
)
from extproc.router.routing.strategies.prefix_cache.engine import (
    BYTES_PER_TOKEN,
    DEFAULT_ENGINE,
    ENGINES,
    EngineCosts,
    EngineModel,
    find_engine,
)
from extproc.router.routing.strategies.prefix_cache.homes import GatewayCount
from extproc.router.routing.strategies.prefix_cache.index import Holding, PrefixIndex, Taken
from extproc.router.routing.strategies.prefix_cache.rule import (
    THE_RULE,
    Backlogs,
    CostModel,
    Rule,
    Shedding,
)
from extproc.router.routing.strategies.prefix_hash import HOME, SPILL

_FAILED: Final = 500

_POSITIONS: Final = 64

SESSION: Final = Reason(
    "session", "earlier turns of the conversation went there (`prefix_cache`)", "green"
)
PREFIX: Final = Reason(
    "prefix", "no compared endpoint holds more of the prompt (`prefix_cache`)", "blue"
)
COLD: Final = Reason(
    "cold",
    "no compared endpoint holds any of the prompt. This is the cheapest (`prefix_cache`)",
    "yellow",
)
_BY_PROMPT: Final = (SESSION, PREFIX, COLD, HOME, SPILL)
# Of a pool with `prefill` endpoints, in place of the others.
REMOTE_PREFILL: Final = Reason(
    "remote_prefill", "a prefill endpoint computes the prompt for it sooner (`prefill`)", "cyan"
)
LOCAL_PREFILL: Final = Reason(
    "local_prefill",
    "it computes the prompt itself, about as soon as a prefill endpoint (`prefill`)",
    "grey",
)


class _Start(Struct, frozen=True):
    """A request's start: what it took of the index, and bytes it should lack.

    `to_do` is what it lacks by our own index; `missing` leaves out what a home is presumed to have.
    `prefill_ms` is what the backlog counts of it.
    """

    taken: Taken
    missing: float
    to_do: int = 0
    prefill_ms: float = 0.0


_NOTHING_TAKEN: Final = _Start(Taken(0, 0), 0)


class EngineSettings(BaseModel):
    """An engine that no name stands for. `extproc calibrate URL` measures one and prints this section."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True
    )

    prefill_ms_per_token: float = Field(gt=0, le=1_000)
    """Milliseconds for a token of a prompt."""
    step_ms: float = Field(gt=0, le=10_000)
    """Milliseconds between two tokens of an answer in an almost empty engine."""
    kv_tokens: int = Field(ge=1_024, le=100_000_000)
    """Tokens in the KV cache."""
    context_us_per_token: float = Field(default=0.0, ge=0, le=1_000)
    """Microseconds that a step takes longer for each token of its requests. Only what `shadow` foretells needs it."""


class PrefixCacheSettings(StrategySettings):
    """The endpoint where a prompt costs least, by what each one holds of it and how long it waits there."""

    reads_signals = True

    name: Literal["prefix_cache"] = "prefix_cache"
    engine: Literal[tuple(ENGINES)] | EngineSettings = DEFAULT_ENGINE  # type: ignore[valid-type]
    """Engine and GPU, from which we estimate costs. `signals` correct those of a slower engine than yours. Or own
    figures, which `extproc calibrate` measures."""
    kv_tokens: int | None = Field(default=None, ge=1_024, le=100_000_000)
    """Tokens in an endpoint's KV cache, which vLLM prints at its start. Omitted: that of `engine`. `signals`
    correct it. Too small loses hits; too large is worst for agents with long contexts."""
    gateways: int | None = Field(default=None, ge=1, le=1_000)
    """How many replicas of this service serve the pool and do not share picks; with an autoscaler the least
    number. With more than one, each conversation has a home endpoint. Omitted: estimated."""
    shed_cold: bool = False
    """If the open conversations outgrow the caches, answer as many new ones as necessary with 429. Else none
    finds its prefix cached. For one gateway, or several that share their picks (`share`)."""

    @property
    def costs(self) -> EngineCosts:
        """The constants of `engine`."""
        return find_engine(self.options()["engine"])


class PrefixCache(Strategy):
    """The endpoint where a prompt costs least, by an index of what each one holds.

    `engine` names the constants, see `ENGINES`, or has them; `kv_tokens` is the size of an endpoint's KV cache,
    if other than the engine's. With several `gateways`, each with an index of its own, prompts have
    homes; their number is configured or estimated. `shed_cold` refuses new conversations where
    those that go on outgrow the caches; for one gateway, or several that share their picks. `rule`
    has the constants of the cost.
    """

    name = "prefix_cache"
    settings = PrefixCacheSettings
    reasons = (*_BY_PROMPT, NO_PREFIX, REMOTE_PREFILL, LOCAL_PREFILL)
    signals: EngineModel
    sharing: SharesPicks

    def __init__(
        self,
        outside: ClockAndRandom,
        *,
        engine: str | Mapping[str, float] = DEFAULT_ENGINE,
        kv_tokens: int | None = None,
        gateways: int | None = None,
        shed_cold: bool = False,
        rule: Rule = THE_RULE,
    ) -> None:
        profile = find_engine(engine)
        kv_tokens = kv_tokens or profile.kv_tokens
        self._clock, self._rng = outside.clock, outside.rng
        self._without_prompt = LeastLoad(outside, NO_PREFIX)
        self._chats = KnownChats()
        self._shedding = Shedding() if shed_cold else None
        self.backlogs = Backlogs(rule)
        # Another gateway's turns look evicted: shedding needs a view of all of them.
        self.gateways = GatewayCount(gateways or (1 if shed_cold else None))
        self.index = PrefixIndex(int(kv_tokens * BYTES_PER_TOKEN))
        self.signals = EngineModel(
            profile,
            kv_tokens,
            self.index,
            self.gateways,
            reasons=_BY_PROMPT,
        )
        self.costs = CostModel(
            outside, self.index, self.backlogs, self.signals, self.gateways, rule=rule
        )
        self.sharing = _PeerPicks(self, outside.clock)

    def needs_body(self, _headers: Mapping[str, str], /) -> bool:
        return True

    def read(self, prompt: Prompt | None, _headers: Mapping[str, str], adapter: str, /) -> Reading:
        if prompt is None:
            return self._without_prompt
        seed = routing_key(
            "", model=prompt.model or "", adapter=adapter, cache_salt=prompt.cache_salt
        )
        # The part of a prompt beyond a whole cache is in none.
        chain = self._chats.read(prompt, seed, self.index.capacity)
        return self.read_chain(chain) if chain.size else self._without_prompt

    def read_chain(self, chain: Chain) -> Reading:
        """As `read`, of a prompt that was cut before, perhaps by another strategy of this kind."""
        return _CacheReading(self, chain)

    def place(self, ready: Mapping[str, Endpoint], before: Placement, /) -> Placement:
        return Ring.grown(before, ready, _POSITIONS)

    def follow(self, ready: Mapping[str, Endpoint], /) -> None:
        self.index.follow({name: endpoint.address for name, endpoint in ready.items()})
        self.backlogs.follow(ready)
        self.signals.follow(ready)

    def insert(
        self, holding: Holding, chain: Chain, presumed: int, *, is_computed: bool = False
    ) -> _Start:
        """Notes a request; its endpoint may have `presumed` bytes of it from other gateways.

        With `is_computed` another endpoint does the prefill, and the blocks are all that comes.
        """
        now = self._clock()
        matched = self.index.matched(chain.hashes)
        found = chain.cached_bytes(matched)
        self.gateways.note_turn(chain, found)
        if self._shedding is not None and chain.answered_bytes:
            self._shedding.note_turn(chain.answered_bytes, found)
        taken = self.index.insert(holding, chain, now, matched)
        to_do = chain.size - chain.cached_bytes(taken.had)
        missing = min(to_do, chain.size - presumed)
        if is_computed:
            return _Start(taken, missing)
        prefill_ms = to_do * self.signals.prefill_ms(holding.name)
        self.backlogs.add(holding.name, prefill_ms, now)
        return _Start(taken, missing, to_do, prefill_ms)

    def release(self, holding: Holding, chain: Chain, start: _Start) -> None:
        now = self._clock()
        self.index.release(holding, chain, start.taken, now)
        if start.prefill_ms:
            self.backlogs.end(holding.name, start.prefill_ms, now)

    def compare(self, chain: Chain, candidates: Candidates, count: int) -> list[CostRow]:
        """What the endpoints worth comparing would cost, the cheapest first; see `CostModel.rows`."""
        return self.costs.rows(chain, candidates, count)

    def is_shed(self, chain: Chain) -> bool:
        """Whether a prompt is a new conversation's that should not begin now."""
        if self._shedding is None or chain.answered_bytes or not self._shedding.refused:
            return False
        is_blind = not self.gateways.is_alone or self.gateways.misses
        if is_blind or not self.index.is_full(self._clock()):
            return False
        is_cold = 2 * chain.cached_bytes(self.index.matched(chain.hashes)) < chain.size
        return is_cold and self._rng.random() < self._shedding.refused

    def fill(self, names: list[str], candidates: Candidates, count: int) -> list[str]:
        """Adds the least loaded of the others, up to `count` together."""
        others = (name for name in candidates.least_loaded(self._rng) if name not in names)
        return [*names, *islice(others, count - len(names))]

    def explain(
        self, chain: Chain, candidates: Candidates, decided: Sequence[CostRow]
    ) -> dict[str, object]:
        """What each endpoint of the decision would cost, in tokens; one more if that was one alone."""
        tokens, rows = self.signals.tokens, [*decided]
        if len(rows) < 2:
            known = {row.endpoint for row in rows}
            rows += [row for row in self.compare(chain, candidates, 2) if row.endpoint not in known]
        return {
            "prompt_tokens": tokens(chain.size),
            "stretches": [
                {
                    "tokens": tokens(stretch.stop - stretch.start),
                    "weight": round(stretch.weight, 3),
                }
                for stretch in self.costs.stretches(chain)
            ],
            "candidates": [row.explain() for row in rows],
        }


class _PeerPicks(SharesPicks):
    """What other gateways' picks change: the index, the backlogs, the count of gateways."""

    def __init__(self, strategy: PrefixCache, clock: Callable[[], float]) -> None:
        self._index, self._backlogs = strategy.index, strategy.backlogs
        self._engine, self._gateways = strategy.signals, strategy.gateways
        self._clock = clock

    def set_peers(self, peers: PeerCounts, /) -> None:
        self._gateways.set_peers(peers, self._clock())

    def apply_peer_pick(self, endpoint: str, blocks: Blocks, missing: int | None, /) -> None:
        holding, now = self._index.holding(endpoint), self._clock()
        if holding is not None:
            self._index.apply_peer_pick(holding, blocks, now)
            if missing is not None:
                size = blocks.bytes_between(0, len(blocks.hashes))
                self._engine.predict_peer_pick(endpoint, size, missing)
            if missing:
                self._backlogs.add(endpoint, missing * self._engine.prefill_ms(endpoint), now)

    def apply_peer_end(self, endpoint: str, blocks: Blocks, missing: int, /) -> None:
        holding, now = self._index.holding(endpoint), self._clock()
        if holding is not None:
            self._index.apply_peer_pick(holding, blocks, now)
            if missing:
                self._backlogs.end(endpoint, missing * self._engine.prefill_ms(endpoint), now)

    def apply_peer_withdrawal(self, endpoint: str, chain: Chain, had: int, /) -> None:
        holding = self._index.holding(endpoint)
        if holding is not None:
            self._index.withdraw(holding, chain, Taken(had, len(chain)))


class _CacheReading(Reading):
    """One request's chain, and where it was written down."""

    __slots__ = (
        *("_chain", "_first", "_holding", "_is_computed", "_is_open", "_late", "_start"),
        *("_strategy", "_why", "_withdrawal", "costs", "key"),
    )

    key: int

    def __init__(self, strategy: PrefixCache, chain: Chain) -> None:
        self._strategy = strategy
        self._chain = chain
        self._holding: Holding | None = None
        self._start = _NOTHING_TAKEN
        self._why = COLD
        self._is_open = self._is_computed = False
        self._first: CostRow | None = None
        self._late: tuple[str, RequestResult] | None = None
        self.key = chain.home
        self.costs: Sequence[CostRow] = ()
        self._withdrawal: Withdrawal | None = None

    def is_shed(self) -> bool:
        return self._strategy.is_shed(self._chain)

    def choose(self, candidates: Candidates, count: int, /) -> Choice:
        self.costs = rows = self._strategy.compare(self._chain, candidates, count)
        self._why, self._first = self._reason(rows), rows[0]
        if count == 1:
            return Choice((rows[0].endpoint,), self._why)
        names = [row.endpoint for row in rows[:count]]
        if len(names) < min(count, len(candidates)):
            names = self._strategy.fill(names, candidates, count)
        return Choice(tuple(names), self._why)

    def explain(self, candidates: Candidates, /) -> dict[str, object]:
        return self._strategy.explain(self._chain, candidates, self.costs)

    def compute_ms(self, row: CostRow, /) -> tuple[float, float]:
        return self._strategy.costs.compute_ms(row)

    def expect_transfer(self, *, is_computed: bool) -> None:
        self._is_computed = is_computed

    def taken(self, endpoint: str, /) -> None:
        self.costs = ()
        if self._holding is not None:
            self._withdraw()
        index = self._strategy.index
        self._is_open = True
        self._holding = index.holding(endpoint)
        if self._holding is not None:
            first = self._first
            presumed = first.match_bytes if first is not None and first.endpoint == endpoint else 0
            self._start = start = self._strategy.insert(
                self._holding, self._chain, presumed, is_computed=self._is_computed
            )
            self._strategy.signals.predict(endpoint, self._chain.size, start.missing, self._why)

    def content(self) -> tuple[Chain | None, int]:
        return self._chain, self._start.to_do

    def pop_withdrawal(self) -> Withdrawal | None:
        withdrawal, self._withdrawal = self._withdrawal, None
        return withdrawal

    def ended(self, _endpoint: str, /) -> None:
        self._is_open = False
        if self._holding is not None:
            self._strategy.release(self._holding, self._chain, self._start)
        if self._late is not None:
            late, self._late = self._late, None
            self.learn(*late)

    def learn(self, endpoint: str, ending: RequestResult, /) -> None:
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

    def _withdraw(self) -> None:
        """The endpoint never read the prompt, or did not keep it."""
        if self._holding is not None:
            self._strategy.index.withdraw(self._holding, self._chain, self._start.taken)
            self._withdrawal = Withdrawal(self._holding.name, self._chain, self._start.taken.had)
            self._holding = None

    def _reason(self, rows: Sequence[CostRow]) -> Reason:
        first, chain = rows[0], self._chain
        best = first.blocks if len(rows) == 1 else max([row.blocks for row in rows])
        if first.blocks < best:
            return SPILL
        if chain.answered_bytes and first.match_bytes >= chain.answered_bytes:
            return SESSION
        if best:
            return PREFIX
        return HOME if first.is_home else COLD
