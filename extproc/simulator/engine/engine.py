"""vLLM V1's scheduler and prefix cache as a pure model: the clock is an argument, nothing is random.

Continuous batching, chunked prefill in the same step as decodes, first come first served,
preemption by recompute. The rules are those of vLLM 0.32; the time of a step is the profile's
formula.
"""

from collections import OrderedDict
from collections.abc import Sequence, Sized
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Generic, TypeVar, cast, overload

from extproc.errors import RequestError
from extproc.simulator.engine.blocks import BlockCache, KvCache, hash_blocks
from extproc.simulator.engine.profiles import Profile
from extproc.simulator.engine.records import (
    Admitted,
    AllBlocksCleared,
    BlockStored,
    EngineCounters,
    EngineRequest,
    EventSink,
    StepResult,
)

Names = TypeVar("Names", bound=Sized)


class PromptTooLong(RequestError):
    """The model's context has no room for the prompt and one token of output (400, as vLLM answers)."""


@dataclass(slots=True)
class _Plan:
    """What one step has scheduled so far; `budget` tokens are left."""

    budget: int
    prefill_tokens: int = 0
    pairs: float = 0.0
    preempted: list[str] = field(default_factory=list)
    admitted: list[Admitted] = field(default_factory=list)


# One step of vLLM V1's scheduler (0.32), in its order. A step is one forward pass: it takes all that
# was scheduled for it, and then every request that decodes has one token more.
#
# 1. Decodes. Each running request that decodes gets one token of the budget
#    (`max_num_batched_tokens`), and a block where its next token begins one.
# 2. Chunked prefill. Requests whose prompt is not computed yet go on with it in the same step, in
#    order of admission, with what is left of the budget.
# 3. Admission, first come first served. The head of the queue starts if the blocks for its *whole*
#    prompt are free, though only a chunk of it may be computed now, and if there are fewer than
#    `max_num_seqs`. Nobody passes a head that has to wait. What the cache has of the prompt is
#    taken from it, less at least one token: without one to compute there is no next token.
#
# Preemption: where a block is due in 1 or 2 and none is free, whoever was admitted last loses all
# its blocks and goes to the *front* of the queue, to be computed again, its output included
# (recompute). In a step that preempts somebody nobody is admitted. A request may be its own victim.
#
# A full block gets its identity when its last token is *scheduled*, and not when it is computed:
# of two requests with one new prefix in one step the second shares it. A preempted or finished
# request leaves its blocks in the cache (`blocks.py`).
#
# The time of a step is the profile's formula: a base, something for each token in the KV cache,
# something for each token prefilled (docs/why/simulator.md says how well that fits). Nothing here
# knows a clock or chance, so that a run is the same every time.
#
# What it costs: a decode step must not touch each request, or a fleet of hundreds is too slow. Their
# context lengths are one sum; `_due` has who needs a block in which step, modulo the block size;
# `_ends` is a heap of who is done when. So a step costs what changes in it.
class Engine(Generic[Names]):
    """One simulated vLLM: `add` requests, then `step` while it is not idle.

    The caller owns time: it calls `step(now)`, waits until the result's `ends_at`, delivers what
    was emitted, and steps again. `profile` may be replaced between steps by one that differs in its
    costs only (an endpoint that slows down). `sink` gets every change of the prefix cache.

    With a `cache` of one's own, the blocks of an output get their names when the request leaves:
    right where no prompt holds an output that is still being generated, and a request that decodes
    is touched at its end only. Without, each block is named when it is full.

    A step costs O(requests that change in it), beside listing what it emitted. Where everything
    only decodes, `decode` runs many steps at once.
    """

    @overload
    def __init__(
        self: "Engine[Sequence[int]]", profile: Profile, *, sink: EventSink | None = None
    ) -> None: ...

    @overload
    def __init__(self, profile: Profile, *, cache: KvCache[Names]) -> None: ...

    def __init__(
        self,
        profile: Profile,
        *,
        sink: EventSink | None = None,
        cache: KvCache[Names] | None = None,
    ) -> None:
        self.profile = profile
        self._sink = sink
        self._names_late = cache is not None
        self._cache = cache or cast("KvCache[Names]", BlockCache(profile.blocks, sink))
        self._block_size = profile.block_size
        self._waiting: OrderedDict[str, EngineRequest[Names]] = OrderedDict()
        self._running: dict[str, EngineRequest[Names]] = {}  # in order of admission
        self._prefilling: dict[str, EngineRequest[Names]] = {}
        self._decoding: dict[str, EngineRequest[Names]] = {}
        # The requests that need a new block, by the step modulo the block size.
        self._due: tuple[dict[str, EngineRequest[Names]], ...] = tuple(
            {} for _ in range(profile.block_size)
        )
        self._ungrown: set[str] = (
            set()
        )  # requests that still wait for the block that is due in this step
        self._ends: list[tuple[int, int, EngineRequest[Names]]] = []
        self._steps = 0
        self._context_tokens = 0  # of all that decode, in the KV cache after the last step
        self._is_blocked = False  # the queue's head cannot start until something ends
        self._admissions = 0
        self._queries = self._hits = self._preemptions = self._prompt_tokens = self._generated = 0

    def __repr__(self) -> str:
        return f"<Engine {self.profile.name}: {len(self._running)} running, {len(self._waiting)} waiting>"

    @property
    def is_idle(self) -> bool:
        return not self._running and not self._waiting

    @property
    def counters(self) -> EngineCounters:
        return self.counters_after(0)

    def counters_after(self, steps: int) -> EngineCounters:
        """Returns the counters after so many quiet steps, though without the tokens of these."""
        free = self._cache.free - (self._due_within(steps) if steps else 0)
        return EngineCounters(
            running=len(self._running),
            waiting=len(self._waiting),
            kv_usage=1 - free / self._cache.size,
            prefix_queries_total=self._queries,
            prefix_hits_total=self._hits,
            preemptions_total=self._preemptions,
            prompt_tokens_total=self._prompt_tokens,
            generation_tokens_total=self._generated,
        )

    def add(
        self: "Engine[Sequence[int]]",
        request_id: str,
        prompt: Sequence[int],
        max_tokens: int,
        *,
        extra_key: str = "",
        output: Sequence[int] | None = None,
        now: float,
        is_computed: bool = False,
    ) -> None:
        """Queues a request of token ids.

        `output` is what it will generate, at most `max_tokens` of it; blocks of an unknown output
        are never found again. `extra_key` (adapter and cache salt) separates what must not be
        shared. Raises as `add_hashed` does.
        """
        tokens = list(prompt)
        if output is not None:
            max_tokens = min(max_tokens, len(output))
            tokens += output[:max_tokens]
        self.add_hashed(
            request_id,
            len(prompt),
            hash_blocks(tokens, self.profile.block_size, extra_key),
            max_tokens,
            now=now,
            token_ids=tokens if self._sink else (),
            extra_key=extra_key,
            is_computed=is_computed,
        )

    def add_hashed(
        self,
        request_id: str,
        prompt_tokens: int,
        names: Names,
        max_tokens: int,
        *,
        now: float,
        token_ids: Sequence[int] = (),
        extra_key: str = "",
        is_computed: bool = False,
    ) -> None:
        """Queues a request whose full blocks, of prompt and output, have these names: chained hashes, a path.

        A block beyond `names` is never found again. With `is_computed` another engine has computed the
        prompt, and its keys and values are here: one token is left to do. The output ends at `max_tokens` or where the
        model's context does. Raises `PromptTooLong`, and `ValueError` for an id that is here
        already or for less than one token of prompt or output.
        """
        room = self.profile.max_model_len - prompt_tokens
        if room < 1:
            raise PromptTooLong(
                f"This model's maximum context length is {self.profile.max_model_len} tokens. "
                f"However, your request has {prompt_tokens} input tokens. Please reduce its length."
            )
        if prompt_tokens < 1 or max_tokens < 1:
            raise ValueError(f"{request_id}: neither prompt nor output can be empty")
        if request_id in self._running or request_id in self._waiting:
            raise ValueError(f"{request_id} is here already")
        self._waiting[request_id] = EngineRequest(
            request_id, prompt_tokens, min(max_tokens, room), names, token_ids, extra_key, now
        )
        self._waiting[request_id].is_computed = is_computed

    def cached_tokens(self, names: Names, prompt_tokens: int) -> tuple[int, int]:
        """Returns how much of a prompt would be found in the cache now, and how much of that is in use."""
        hits, idle = self._cache.match(names, (prompt_tokens - 1) // self._block_size)
        return hits * self._block_size, (hits - idle) * self._block_size

    def abort(self, request_id: str) -> None:
        """Forgets a request; one that is unknown has ended before."""
        request = self._running.get(request_id)
        if request:
            self._leave(request, self._computed(request))
        else:
            self._waiting.pop(request_id, None)
            self._is_blocked = False

    def reset_prefix_cache(self) -> bool:
        """Forgets all cached blocks; returns whether it could: vLLM refuses while a request runs."""
        is_clear = self._cache.clear()
        if is_clear and self._sink:
            self._sink(AllBlocksCleared())
        return is_clear

    def forget(self) -> None:
        """Drops all cached blocks that no request uses."""
        self._cache.forget()
        self._is_blocked = False

    def step(self, now: float) -> StepResult:
        """Runs one step that starts at `now`; raises `ValueError` if the engine is idle."""
        if self.is_idle:
            raise ValueError("an idle engine has no next step")
        plan = _Plan(self.profile.max_num_batched_tokens)
        self._schedule_decodes(plan)
        if self._prefilling:
            self._continue_prefills(plan)
        if self._waiting and not plan.preempted:
            self._admit(plan, now)
        context_tokens = self._context_tokens + sum(map(self._computed, self._prefilling.values()))
        duration_s = self.profile.step_s(context_tokens, plan.prefill_tokens, plan.pairs)
        prefilled = self._complete_prefills()
        emitted = tuple(self._decoding)
        self._generated += len(emitted)
        return StepResult(
            duration_s=duration_s,
            ends_at=now + duration_s,
            emitted=emitted,
            prefilled=prefilled,
            finished=self._finish(),
            admitted=tuple(plan.admitted),
            preempted=tuple(plan.preempted),
            context_tokens=context_tokens,
            prefill_tokens=plan.prefill_tokens,
        )

    def quiet_steps(self) -> int:
        """Returns how many steps from now on are sure to do nothing but decode, if nothing is added.

        In those nobody is admitted or preempted, and nobody is done before the last of them, so
        that `decode` may run them at once.
        """
        if not self._decoding or self._prefilling or (self._waiting and not self._is_blocked):
            return 0
        # In so many steps no request needs more than this share of the free blocks.
        room = self._cache.free // len(self._decoding) * self._block_size
        return min(self._ends[0][0] - self._steps, room)

    def decode_s(self, steps: int) -> float:
        """Returns how long the next `steps` quiet steps take, in seconds. O(1)."""
        growth = len(self._decoding) * (steps + 1) / 2
        return steps * self.profile.step_s(self._context_tokens + growth, 0)

    def decode(self, steps: int) -> tuple[str, ...]:
        """Runs `steps` steps, at most `quiet_steps()`; each request that decodes gets a token in each.

        Returns who was done with the last one.
        """
        if self._names_late:
            self._cache.reserve(self._due_within(steps))
            self._steps += steps
        else:
            for _ in range(steps):
                self._steps += 1
                self._grow_due(self._due[self._steps % self._block_size])
        self._context_tokens += steps * len(self._decoding)
        self._generated += steps * len(self._decoding)
        return self._finish()

    @property
    def decoding(self) -> int:
        """How many requests get a token in each quiet step."""
        return len(self._decoding)

    def _computed(self, request: EngineRequest[Names]) -> int:
        """Tokens of a running request in the KV cache, counting the step at hand."""
        return request.lead + self._steps if request.id in self._decoding else request.computed

    def _due_within(self, steps: int) -> int:
        """How many blocks are due in the next `steps` steps."""
        rounds, rest = divmod(steps, self._block_size)
        slots = range(self._steps + 1, self._steps + 1 + rest)
        return rounds * len(self._decoding) + sum(
            len(self._due[slot % self._block_size]) for slot in slots
        )

    def _schedule_decodes(self, plan: _Plan) -> None:
        self._steps += 1
        self._context_tokens += len(self._decoding)
        due = self._due[self._steps % self._block_size]
        if len(due) > self._cache.free:
            self._grow_where_possible(due, plan)
        elif due:
            self._grow_due(due)
        plan.budget -= len(self._decoding)

    def _grow_due(self, due: dict[str, EngineRequest[Names]]) -> None:
        """Gives each the block that is due; there are enough."""
        if self._names_late:
            self._cache.reserve(len(due))
            return
        for request in due.values():
            self._cache.reserve(1)
            self._seal(request, request.lead + self._steps)

    def _grow_where_possible(self, due: dict[str, EngineRequest[Names]], plan: _Plan) -> None:
        """Gives each, in order of admission, the block that is due, at the cost of those who came last."""
        self._ungrown = set(due)
        for request in sorted(due.values(), key=lambda request: request.number):
            if request.id in self._decoding and self._make_room(request, 1, plan):
                self._cache.reserve(1)
                self._ungrown.discard(request.id)
                self._seal(request, request.lead + self._steps)
        self._ungrown.clear()

    def _continue_prefills(self, plan: _Plan) -> None:
        for request in [*self._prefilling.values()]:
            chunk = min(request.tokens - request.computed, plan.budget)
            blocks = self._blocks(request.computed + chunk) - self._blocks(request.computed)
            if request.id in self._prefilling and self._make_room(request, blocks, plan):
                self._prefill(request, chunk, plan)

    def _make_room(self, request: EngineRequest[Names], blocks: int, plan: _Plan) -> bool:
        """Preempts the last admitted until so many blocks are free; False if `request` was the last."""
        while self._cache.free < blocks:
            victim = next(reversed(self._running.values()))
            self._preempt(victim, plan)
            if victim is request:
                return False
        return True

    def _preempt(self, request: EngineRequest[Names], plan: _Plan) -> None:
        if request.id in self._decoding:
            # Its token of this step is not computed, though it may have the block for it.
            computed = self._computed(request)
            request.generated = request.max_tokens - (request.last_step - self._steps + 1)
            self._leave(request, computed - 1, computed - (request.id in self._ungrown))
        else:
            self._leave(request, request.computed)
        request.computed = 0
        self._waiting[request.id] = request
        self._waiting.move_to_end(request.id, last=False)
        self._preemptions += 1
        plan.preempted.append(request.id)

    def _admit(self, plan: _Plan, now: float) -> None:
        self._is_blocked = False
        while self._waiting and plan.budget:
            request = next(iter(self._waiting.values()))
            # At least one token is computed, whatever the cache has.
            most = (request.tokens - 1) // self._block_size
            hits, idle = self._cache.match(request.names, most)
            # The whole prompt must fit, even if only a chunk of it starts.
            needed = self._blocks(request.tokens) - hits + idle
            if needed > self._cache.free or len(self._running) == self.profile.max_num_seqs:
                self._is_blocked = True
                return
            self._cache.share(request.names, hits)
            request.shared, request.computed = hits, hits * self._block_size
            self._start(request, plan, now)
            if request.is_computed:
                self._load(request)
            self._prefill(request, min(request.tokens - request.computed, plan.budget), plan)

    def _start(self, request: EngineRequest[Names], plan: _Plan, now: float) -> None:
        is_first = not request.number
        if is_first:
            self._queries += request.prompt_tokens
            self._hits += request.computed
        self._admissions += 1
        request.number = self._admissions
        del self._waiting[request.id]
        self._running[request.id] = self._prefilling[request.id] = request
        plan.admitted.append(
            Admitted(request.id, request.computed, now - request.arrived_at, is_first)
        )

    def _load(self, request: EngineRequest[Names]) -> None:
        """Takes in what another engine computed; after a preemption it has to be computed here."""
        before, request.is_computed = request.computed, False
        request.computed = request.tokens - 1
        self._cache.reserve(self._blocks(request.computed) - self._blocks(before))
        self._seal(request, request.computed)

    def _prefill(self, request: EngineRequest[Names], chunk: int, plan: _Plan) -> None:
        before = request.computed
        request.computed += chunk
        self._cache.reserve(self._blocks(request.computed) - self._blocks(before))
        self._seal(request, request.computed)
        plan.budget -= chunk
        plan.prefill_tokens += chunk
        plan.pairs += chunk * (before + chunk / 2)

    def _complete_prefills(self) -> tuple[str, ...]:
        """Turns every request whose prompt is computed into one that decodes, its next token emitted."""
        done = [
            request for request in self._prefilling.values() if request.computed == request.tokens
        ]
        for request in done:
            if not request.generated:
                self._prompt_tokens += request.prompt_tokens
            del self._prefilling[request.id]
            self._decoding[request.id] = request
            self._context_tokens += request.computed
            request.lead = request.computed - self._steps
            request.last_step = self._steps + request.max_tokens - request.generated - 1
            self._due[self._due_slot(request)][request.id] = request
            heappush(self._ends, (request.last_step, request.number, request))
        return tuple(request.id for request in done)

    def _finish(self) -> tuple[str, ...]:
        finished = []
        while self._ends and self._ends[0][0] <= self._steps:
            step, _, request = heappop(self._ends)
            # An entry outlives the abortion or preemption of its request.
            if request.last_step == step:
                self._leave(request, self._computed(request))
                finished.append(request.id)
        return tuple(finished)

    def _leave(
        self, request: EngineRequest[Names], computed: int, held_tokens: int | None = None
    ) -> None:
        """Takes a running request out of the schedule; what it `computed` stays in the cache.

        It has blocks for `held_tokens` tokens, `None`: for those that are computed.
        """
        self._seal(request, computed)
        private = self._blocks(computed if held_tokens is None else held_tokens) - request.shared
        self._cache.release(request.names, request.shared, private)
        request.shared = 0
        del self._running[request.id]
        if request.id in self._decoding:
            self._context_tokens -= self._computed(request)
            del self._decoding[request.id]
            del self._due[self._due_slot(request)][request.id]
        else:
            del self._prefilling[request.id]
        request.last_step = -1
        self._is_blocked = False

    def _seal(self, request: EngineRequest[Names], computed: int) -> None:
        """Registers the blocks that are full; vLLM does so when it schedules their last token."""
        full, before = min(computed // self._block_size, len(request.names)), request.shared
        if full <= before:
            return
        self._cache.seal(request.names, before, full)
        request.shared = full
        if self._sink:
            self._sink(self._stored(request, cast("Sequence[int]", request.names), before))

    def _stored(
        self, request: EngineRequest[Names], hashes: Sequence[int], first: int
    ) -> BlockStored:
        size = self._block_size
        return BlockStored(
            block_hashes=hashes[first : request.shared],
            parent_hash=hashes[first - 1] if first else None,
            token_ids=request.token_ids[first * size : request.shared * size],
            block_size=size,
            extra_key=request.extra_key,
        )

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self._block_size)

    def _due_slot(self, request: EngineRequest[Names]) -> int:
        """The step, modulo the block size, in which the first token of a block is computed."""
        return (1 - request.lead) % self._block_size
