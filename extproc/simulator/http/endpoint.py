"""One simulated vLLM endpoint, without its HTTP: models, adapters, an engine, and its faults."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from logging import getLogger
from random import Random

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from xxhash import xxh3_64_hexdigest

from extproc.simulator.engine.engine import Engine
from extproc.simulator.engine.profiles import Profile
from extproc.simulator.http.answers import Answering, Author, Strand
from extproc.simulator.http.api_request import AnswerHead, ApiRequest
from extproc.simulator.http.driver import Clock, Driver, Job
from extproc.simulator.http.exposition import Distributions, EndpointCollector, EndpointReading
from extproc.simulator.http.faults import Faults
from extproc.simulator.http.publisher import Publisher
from extproc.simulator.http.refusals import UnknownName, VllmRefusal, refuse_length, refuse_value
from extproc.simulator.http.tokens import Tokenizer

log = getLogger("extproc.simulator")


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """What all endpoints of a process share.

    `models` are names of the one base model, the first one its own; `max_loras` of 0 means no LoRA
    adapters; `answer_tokens` is the mean natural length of answers, 0 for none. `forces_usage` and
    `shows_cached` are vLLM's `--enable-force-include-usage` and `--enable-prompt-tokens-details`.
    """

    profile: Profile
    tokenizer: Tokenizer
    models: tuple[str, ...] = ("simulated",)
    adapters: tuple[str, ...] = ()
    max_loras: int = 0
    answer_tokens: int = 0
    forces_usage: bool = False
    shows_cached: bool = True
    faults: Faults = field(default_factory=Faults)


class SimulatedEndpoint:
    """Takes requests and answers them at its engine's pace; `run` must be running.

    `faults` may be replaced at any time. `load` counts the requests to serving APIs that are here.
    `epoch_s()` is the time of day. Request ids and the draws of faults come from `name`, so
    endpoints differ and a run repeats.
    """

    def __init__(
        self,
        name: str,
        options: ServerOptions,
        clock: Clock,
        epoch_s: Callable[[], float],
        publisher: Publisher | None = None,
    ) -> None:
        self.name = name
        self.options = options
        self.faults = options.faults
        self.registry = CollectorRegistry()
        self.epoch_s = epoch_s
        self.random = Random(name)  # noqa: S311, faults need no secrets
        self._distributions = Distributions(self.registry, options.models[0], options.profile)
        engine = Engine(options.profile, sink=publisher.collect if publisher else None)
        self.driver = Driver(
            engine, clock, self._distributions, publisher.flush if publisher else None
        )
        self.publisher = publisher
        self._author = Author(options.tokenizer, options.answer_tokens)
        self.is_alive = True
        self.load = 0
        self._named = 0
        self._register()

    def __repr__(self) -> str:
        return f"<SimulatedEndpoint {self.name}: {self.driver.engine}>"

    async def run(self) -> None:
        """Works until cancelled. If the engine fails, `is_alive` is false from then on, and it is logged."""
        try:
            await self.driver.run()
        except Exception:
            log.exception("%s: the engine died", self.name)
        finally:
            self.is_alive = False

    def name_request(self, prefix: str) -> str:
        """Returns a new id, in the form of vLLM's."""
        self._named += 1
        return prefix + xxh3_64_hexdigest(f"{self.name}/{self._named}".encode())

    def find_model(self, name: str | None) -> str:
        """Returns the model or adapter that answers to a name; raises `UnknownName`."""
        if not name:
            return self.options.models[0]
        if name in self.options.adapters or name in self.options.models:
            return name
        raise UnknownName(name, [*self.options.models, *self.options.adapters])

    def complete(self, request: ApiRequest) -> ApiRequest:
        """Returns the request with what the endpoint's own options add to it."""
        return replace(request, wants_usage=True) if self.options.forces_usage else request

    def head(self, request: ApiRequest, prefix: str) -> AnswerHead:
        """Returns how an answer begins; raises `UnknownName`."""
        return AnswerHead(
            self.name_request(prefix), self.find_model(request.model), int(self.epoch_s())
        )

    def begin(self, request: ApiRequest, head: AnswerHead) -> Answering:
        """Queues a request's prompts; raises `VllmRefusal`, as vLLM does, before any of them is queued."""
        if not self.is_alive:
            raise VllmRefusal("The engine has died.", status=500, kind="InternalServerError")
        rooms = [self._find_room(request, prompt) for prompt in request.prompts]
        wake = asyncio.Event()
        strands = list(self._start(request, rooms, head, wake))
        return Answering(
            request, strands, wake, self.driver, shows_cached=self.options.shows_cached
        )

    async def receive(self, request: ApiRequest, head: AnswerHead) -> None:
        """Waits for a request's prompts, which another endpoint computed."""
        for prompt in request.prompts:
            salt = request.cache_salt
            job = Job("", prompt, (), adapter=self._adapter(head), cache_salt=salt)
            await self.driver.receive(job)

    def _adapter(self, head: AnswerHead) -> str:
        return head.model if head.model in self.options.adapters else ""

    def reset_prefix_cache(self) -> bool:
        """Forgets all cached blocks; returns whether it could: not while requests run."""
        is_reset = self.driver.engine.reset_prefix_cache()
        if self.publisher:
            self.publisher.flush()
        return is_reset

    def _find_room(self, request: ApiRequest, prompt: Sequence[int]) -> int:
        # In vLLM's order: the fields, the prompt, the room that the prompt leaves.
        tokens, limit = len(prompt), self.options.profile.max_model_len
        if request.max_tokens is not None and request.max_tokens > limit:
            name, value = request.max_tokens_name, request.max_tokens
            wish = "Please request fewer output tokens."
            message = f"{name}={value} cannot be greater than max_model_len={limit}. {wish}"
            raise refuse_value(message, name, value)
        if tokens > limit:
            raise refuse_length(limit, tokens, is_text=request.is_text)
        if not tokens:
            raise VllmRefusal("The decoder prompt cannot be empty")
        if (largest := max(prompt)) >= self.options.tokenizer.size:
            raise VllmRefusal(f"Token id {largest} is out of vocabulary")
        room = limit - tokens
        allowed = room if request.max_tokens is None else min(request.max_tokens, room)
        if allowed < 1:
            raise refuse_value(
                f"max_tokens must be at least 1, got {allowed}.", "max_tokens", allowed
            )
        if request.min_tokens > allowed:
            message = f"min_tokens must be less than or equal to max_tokens={allowed}, got {request.min_tokens}."
            raise VllmRefusal(message)
        return room

    def _start(
        self, request: ApiRequest, rooms: Sequence[int], head: AnswerHead, wake: asyncio.Event
    ) -> Iterator[Strand]:
        adapter = self._adapter(head)
        prompts = zip(request.prompts, rooms, strict=True)
        variants = [
            (prompt, room, variant) for prompt, room in prompts for variant in range(request.n)
        ]
        for number, (prompt, room, variant) in enumerate(variants):
            answer = self._author.write(request, prompt, room, variant)
            job = Job(
                f"{head.id}-{number}",
                prompt,
                answer.tokens,
                answer.reason,
                adapter,
                request.cache_salt,
                request.n,
                request.is_computed,
            )
            echo = self.options.tokenizer.decode(prompt) if request.echoes else ""
            yield Strand(answer, self.driver.submit(job, wake), echo)

    def _register(self) -> None:
        GCCollector(self.registry)
        PlatformCollector(self.registry)
        ProcessCollector(registry=self.registry)
        model, profile = self.options.models[0], self.options.profile
        self.registry.register(
            EndpointCollector(model, profile, self._read, self.epoch_s(), self.epoch_s)
        )

    def _read(self) -> EndpointReading:
        counters = self.driver.engine.counters
        return EndpointReading(
            running=self.driver.running,
            waiting=counters.waiting,
            kv_usage=counters.kv_usage,
            prefix_queries=counters.prefix_queries_total,
            prefix_hits=counters.prefix_hits_total,
            preemptions=counters.preemptions_total,
            prompt_tokens=counters.prompt_tokens_total,
            cached_tokens=self.driver.cached_tokens_total,
            generation_tokens=counters.generation_tokens_total,
            ended=self._distributions.ended,
            max_loras=self.options.max_loras,
            running_adapters=",".join(self.driver.adapters(is_running=True)),
            waiting_adapters=",".join(self.driver.adapters(is_running=False)),
        )
