"""The models and LoRA adapters that endpoints serve, learnt from their `/v1/models`.

A source around another one: it passes that one's list on at once, and again when endpoints have
answered.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from types import MappingProxyType
from typing import Final

import msgspec
from aiohttp import ClientError, ClientSession, ClientTimeout

from extproc.errors import ExtprocError
from extproc.router.cluster.backoff import Backoff
from extproc.router.cluster.debounce import DebouncedSink, EndpointView
from extproc.router.cluster.kube_api import Unreadable, decode_json
from extproc.router.cluster.reason import describe_error
from extproc.router.cluster.restarting import Restarting
from extproc.router.cluster.source import Sink, Source
from extproc.router.routing.endpoint import Endpoint, ModelCard

log = logging.getLogger(__name__)

_KEY_WANTED: Final = (401, 403)


@dataclass(frozen=True, slots=True)
class ServedModels:
    """What one endpoint serves."""

    cards: frozenset[ModelCard] = frozenset()

    @property
    def models(self) -> frozenset[str]:
        return frozenset(card.id for card in self.cards if card.parent is None)

    @property
    def adapters(self) -> frozenset[str]:
        """A model with a parent is a LoRA adapter (vLLM 0.32)."""
        return frozenset(card.id for card in self.cards if card.parent is not None)


class ModelsUnknown(ExtprocError):
    """An endpoint did not say what it serves."""


class _Cards(msgspec.Struct):
    data: list[ModelCard]


FetchModels = Callable[[str], Awaitable[ServedModels]]
Learn = Callable[[ServedModels], None]
_Key = tuple[str, str]


@dataclass(frozen=True, slots=True)
class ModelsPace:
    """How often `/v1/models` is fetched; durations in seconds.

    `refresh_s` is slow because adapters come and go with people's deployments; a new endpoint's
    models are fetched at once. What is learnt within `settle_s` is passed on together.
    """

    refresh_s: float = 300.0
    timeout_s: float = 5.0
    parallel: int = 16
    settle_s: float = 0.1


class ModelsSource:
    """Passes on the endpoints of `source`, with the models and adapters that each says it serves.

    Its models are fetched when an endpoint appears, then every `refresh_s` give or take a fifth.
    One that does not answer keeps its last models, and is tried again after a back-off of up to
    `refresh_s`. `headers` go with every question: the engines' key.
    """

    def __init__(
        self,
        source: Source,
        headers: Mapping[str, str] = MappingProxyType({}),
        *,
        pace: ModelsPace = ModelsPace(),
        rng: Random,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        # Begun again by itself: all of this at once would forget what endpoints have said.
        self._source = Restarting(source, rng=rng)
        self._headers = headers
        self._pace = pace
        self._rng = rng
        self._sleep = sleep

    async def run(self, sink: Sink) -> None:
        timeout = ClientTimeout(total=self._pace.timeout_s)
        async with (
            ClientSession(timeout=timeout, headers=self._headers) as session,
            asyncio.TaskGroup() as tasks,
        ):
            fetch = partial(fetch_models, session, asyncio.Semaphore(self._pace.parallel))
            learner = _Learner(
                sink, self._pace.settle_s, lambda *key: tasks.create_task(self._follow(fetch, *key))
            )
            try:
                await self._source.run(learner)
            finally:
                learner.close()

    async def _follow(self, fetch: FetchModels, address: str, learn: Learn) -> None:
        backoff = Backoff(self._rng, base_s=1.0, cap_s=self._pace.refresh_s)
        fault = None
        while True:
            try:
                learn(await fetch(address))
            except Exception as error:  # noqa: BLE001  # one endpoint's answer must not end all the others'
                delay_s = backoff.next_s()
                if describe_error(error) != fault:
                    log.warning("%s does not list its models: %s", address, describe_error(error))
                fault = describe_error(error)
            else:
                delay_s = self._pace.refresh_s * self._rng.uniform(0.8, 1.2)
                backoff.reset()
                fault = None
            await self._sleep(delay_s)


class _Learner(EndpointView):
    """The sink of the inner source: its endpoints, and the models that each has listed."""

    def __init__(
        self, sink: Sink, settle_s: float, follow: Callable[[str, Learn], asyncio.Task[None]]
    ) -> None:
        # What else the inner source says goes on as it is.
        self.confirm, self.restarted, self.lacks = sink.confirm, sink.restarted, sink.lacks
        self._follow = follow
        self._debounced = DebouncedSink(sink, self, settle_s)
        self._endpoints: Sequence[Endpoint] = ()
        self._served: dict[_Key, ServedModels] = {}
        self._tasks: dict[_Key, asyncio.Task[None]] = {}

    def replace(self, endpoints: Sequence[Endpoint]) -> None:
        self._endpoints = endpoints
        keys = {_key(endpoint) for endpoint in endpoints}
        for key in self._tasks.keys() - keys:
            self._tasks.pop(key).cancel()
            self._served.pop(key, None)
        for key in keys - self._tasks.keys():
            self._tasks[key] = self._follow(key[1], partial(self._learn, key))
        self._debounced.publish()

    def close(self) -> None:
        self._debounced.close()
        for task in self._tasks.values():
            task.cancel()

    def _learn(self, key: _Key, served: ServedModels) -> None:
        if served != self._served.get(key):
            self._served[key] = served
            self._debounced.changed()

    def endpoints(self) -> list[Endpoint]:
        pairs = (
            (endpoint, self._served.get(_key(endpoint), ServedModels()))
            for endpoint in self._endpoints
        )
        return [
            replace(each, models=served.models, adapters=served.adapters, cards=served.cards)
            for each, served in pairs
        ]


async def fetch_models(
    session: ClientSession, slots: asyncio.Semaphore, address: str
) -> ServedModels:
    """Gets one endpoint's models. Raises `ModelsUnknown`."""
    try:
        async with (
            slots,
            session.get(f"http://{address}/v1/models", allow_redirects=False) as response,
        ):
            if response.status != 200:
                hint = " (engine_key)" if response.status in _KEY_WANTED else ""
                raise ModelsUnknown(f"it answers {response.status}{hint}")
            cards = decode_json(await response.read(), _Cards).data
    except (ClientError, OSError, TimeoutError, Unreadable) as error:
        raise ModelsUnknown(describe_error(error)) from error
    return ServedModels(frozenset(cards))


def _key(endpoint: Endpoint) -> _Key:
    # The models of a pod with a new address, or of an address with a new pod, are fetched anew.
    return endpoint.name, endpoint.address
