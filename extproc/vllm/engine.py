"""vLLM V1's scheduler and prefix cache as a pure model: the clock is an argument, nothing is random.

Continuous batching, chunked prefill in the same step as decodes, first come first served, preemption by
recompute. The rules are those of vLLM 0.32; the time of a step is the profile's formula.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

from extproc.errors import RequestError
from extproc.vllm.blocks import BlockCache, hash_blocks
from extproc.vllm.cache_events import AllBlocksCleared, BlockStored, EventSink
from extproc.vllm.profiles import Profile
from extproc.vllm.request import Request
from extproc.vllm.step import Admission, Counters, StepResult


class PromptTooLong(RequestError):
    """The model's context has no room for the prompt and one token of output (400, as vLLM answers)."""


@dataclass(slots=True)
class _Plan:
    """What one step has scheduled so far; `budget` tokens are left."""

    budget: int
    prefill_tokens: int = 0
    preempted: list[str] = field(default_factory=list)
    admitted: list[Admission] = field(default_factory=list)


class Engine:
    """One simulated vLLM: `add` requests, then `step` while it is not idle.

    The caller owns time: it calls `step(now)`, waits until the result's `ends_at`, delivers what was
    emitted, and steps again. `profile` may be replaced between steps by one that differs in its costs
    only (an endpoint that slows down). `sink` hears of every change of the prefix cache.

    A step costs O(requests that change in it), beside listing what it emitted: a request that decodes is
    touched once per block. Where everything only decodes, `decode` runs many steps at once.
    """

    def __init__(self, profile: Profile, *, sink: EventSink | None = None) -> None:
        self.profile = profile
        self._sink = sink
        self._cache = BlockCache(profile.blocks, sink)
        self._waiting: OrderedDict[str, Request] = OrderedDict()
        self._running: dict[str, Request] = {}  # in order of admission
        self._prefilling: dict[str, Request] = {}
        self._decoding: dict[str, Request] = {}
        # Who needs the next block in which step, modulo the block size.
        self._due: tuple[dict[str, Request], ...] = tuple({} for _ in range(profile.block_size))
        self._ends: list[tuple[int, int, Request]] = []
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
    def counters(self) -> Counters:
        return Counters(
            running=len(self._running),
            waiting=len(self._waiting),
            kv_usage=1 - self._cache.free / self._cache.size,
            prefix_queries_total=self._queries,
            prefix_hits_total=self._hits,
            preemptions_total=self._preemptions,
            prompt_tokens_total=self._prompt_tokens,
            generation_tokens_total=self._generated,
        )

    def add(
        self,
        request_id: str,
        prompt: Sequence[int],
        max_tokens: int,
        *,
        extra_key: str = "",
        output: Sequence[int] | None = None,
        now: float,
    ) -> None:
        """Queues a request of token ids.

        `output` is what it will generate, at most `max_tokens` of it; blocks of an unknown output are
        never found again. `extra_key` (adapter and cache salt) separates what must not be shared.
        Raises as `add_hashed` does.
        """
        known = list(prompt)
        if output is not None:
            max_tokens = min(max_tokens, len(output))
            known += output[:max_tokens]
        self.add_hashed(
            request_id,
            len(prompt),
            hash_blocks(known, self.profile.block_size, extra_key),
            max_tokens,
            now=now,
            token_ids=known if self._sink else (),
            extra_key=extra_key,
        )

    def add_hashed(
        self,
        request_id: str,
        prompt_tokens: int,
        hashes: Sequence[int],
        max_tokens: int,
        *,
        now: float,
        token_ids: Sequence[int] = (),
        extra_key: str = "",
    ) -> None:
        """Queues a request whose full blocks, of prompt and output, have these chained hashes.

        A block beyond `hashes` is never found again. The output ends at `max_tokens` or where the model's
        context does. Raises `PromptTooLong`, and `ValueError` for an id that is here already or for less
        than one token of prompt or output.
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
        self._waiting[request_id] = Request(
            request_id, prompt_tokens, min(max_tokens, room), hashes, token_ids, extra_key, now
        )

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

    def step(self, now: float) -> StepResult:
        """Runs one step that starts at `now`; raises `ValueError` if the engine is idle."""
        if self.is_idle:
            raise ValueError("an idle engine has no next step")
        plan = _Plan(self.profile.max_num_batched_tokens)
        self._schedule_decodes(plan)
        self._continue_prefills(plan)
        if not plan.preempted:
            self._admit(plan, now)
        context_tokens = self._context_tokens + sum(map(self._computed, self._prefilling.values()))
        duration_s = self.profile.step_s(context_tokens, plan.prefill_tokens)
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

        In those nobody is admitted, preempted or done, so that `decode` may run them at once.
        """
        if not self._decoding or self._prefilling or (self._waiting and not self._is_blocked):
            return 0
        # In so many steps nobody needs more than this share of the free blocks.
        room = self._cache.free // len(self._decoding) * self.profile.block_size
        return min(self._ends[0][0] - self._steps - 1, room)

    def decode_s(self, steps: int) -> float:
        """Returns how long the next `steps` quiet steps take, in seconds. O(1)."""
        growth = len(self._decoding) * (steps + 1) / 2
        return steps * self.profile.step_s(self._context_tokens + growth, 0)

    def decode(self, steps: int) -> None:
        """Runs `steps` steps, at most `quiet_steps()`; each request that decodes gets a token in each."""
        for _ in range(steps):
            self._steps += 1
            for request in self._due[self._steps % self.profile.block_size].values():
                self._grow(request, request.lead + self._steps)
        self._context_tokens += steps * len(self._decoding)
        self._generated += steps * len(self._decoding)

    @property
    def decoding(self) -> int:
        """How many requests get a token in each quiet step."""
        return len(self._decoding)

    def _computed(self, request: Request) -> int:
        """Tokens of a running request in the KV cache, counting the step at hand."""
        return request.lead + self._steps if request.id in self._decoding else request.computed

    def _schedule_decodes(self, plan: _Plan) -> None:
        self._steps += 1
        self._context_tokens += len(self._decoding)
        due = [*self._due[self._steps % self.profile.block_size].values()]
        if len(due) > self._cache.free:
            due.sort(key=lambda request: request.number)
        for request in due:
            if request.id in self._decoding and self._make_room(request, 1, plan):
                self._grow(request, request.lead + self._steps)
        plan.budget -= len(self._decoding)

    def _continue_prefills(self, plan: _Plan) -> None:
        for request in [*self._prefilling.values()]:
            chunk = min(request.tokens - request.computed, plan.budget)
            blocks = self._blocks(request.computed + chunk) - request.blocks
            if request.id in self._prefilling and self._make_room(request, blocks, plan):
                self._prefill(request, chunk, plan)

    def _make_room(self, request: Request, blocks: int, plan: _Plan) -> bool:
        """Preempts the last admitted until so many blocks are free; False if `request` was the last."""
        while self._cache.free < blocks:
            victim = next(reversed(self._running.values()))
            self._preempt(victim, plan)
            if victim is request:
                return False
        return True

    def _preempt(self, request: Request, plan: _Plan) -> None:
        if request.id in self._decoding:
            # Its token of this step is not computed.
            request.generated = request.max_tokens - (request.last_step - self._steps + 1)
            self._leave(request, self._computed(request) - 1)
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
            hashes = request.hashes[: (request.tokens - 1) // self.profile.block_size]
            hits, idle = self._cache.match(hashes)
            # The whole prompt must fit, even if only a chunk of it starts.
            needed = self._blocks(request.tokens) - hits + idle
            if needed > self._cache.free or len(self._running) == self.profile.max_num_seqs:
                self._is_blocked = True
                return
            self._cache.share(hashes[:hits])
            request.shared, request.computed = hits, hits * self.profile.block_size
            self._start(request, plan, now)
            self._prefill(request, min(request.tokens - request.computed, plan.budget), plan)

    def _start(self, request: Request, plan: _Plan, now: float) -> None:
        is_first = not request.number
        if is_first:
            self._queries += request.prompt_tokens
            self._hits += request.computed
        self._admissions += 1
        request.number = self._admissions
        del self._waiting[request.id]
        self._running[request.id] = self._prefilling[request.id] = request
        plan.admitted.append(Admission(request.id, request.computed, now - request.arrived_at, is_first))

    def _prefill(self, request: Request, chunk: int, plan: _Plan) -> None:
        request.computed += chunk
        self._grow(request, request.computed)
        plan.budget -= chunk
        plan.prefill_tokens += chunk

    def _complete_prefills(self) -> tuple[str, ...]:
        """Turns every request whose prompt is computed into one that decodes, its next token emitted."""
        done = [request for request in self._prefilling.values() if request.computed == request.tokens]
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

    def _leave(self, request: Request, computed: int) -> None:
        """Takes a running request out of the schedule; what it `computed` stays in the cache."""
        self._seal(request, computed)
        self._cache.release(request.hashes[: request.shared], request.private)
        request.shared = request.private = 0
        del self._running[request.id]
        if request.id in self._decoding:
            self._context_tokens -= self._computed(request)
            del self._decoding[request.id]
            del self._due[self._due_slot(request)][request.id]
        else:
            del self._prefilling[request.id]
        request.last_step = -1
        self._is_blocked = False

    def _grow(self, request: Request, computed: int) -> None:
        """Makes a request hold the blocks of its first `computed` tokens."""
        blocks = self._blocks(computed) - request.blocks
        self._cache.take(blocks)
        request.private += blocks
        self._seal(request, computed)

    def _seal(self, request: Request, computed: int) -> None:
        """Registers the blocks that are full; vLLM does so when it schedules their last token."""
        full = min(computed // self.profile.block_size, len(request.hashes))
        fresh = request.hashes[request.shared : full]
        if not fresh:
            return
        for block in fresh:
            self._cache.seal(block)
        request.private -= len(fresh)
        request.shared = full
        if self._sink:
            self._sink(self._stored(request, fresh))

    def _stored(self, request: Request, fresh: Sequence[int]) -> BlockStored:
        size, first = self.profile.block_size, request.shared - len(fresh)
        return BlockStored(
            block_hashes=fresh,
            parent_hash=request.hashes[first - 1] if first else None,
            token_ids=request.token_ids[first * size : request.shared * size],
            block_size=size,
            extra_key=request.extra_key,
        )

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self.profile.block_size)

    def _due_slot(self, request: Request) -> int:
        """The step, modulo the block size, in which the first token of a block is computed."""
        return (1 - request.lead) % self.profile.block_size
