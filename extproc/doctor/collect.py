"""Looks at everything from outside, all at once, each source for a few seconds; what fails is noted."""

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from os import strerror
from time import time
from typing import TYPE_CHECKING, Any, Final

from aiohttp import ClientError, ClientSession, ClientTimeout
from msgspec import Struct

from extproc.doctor import evidence as seen
from extproc.doctor.admin_ports import (
    ClockOffset,
    EnvoySeen,
    PoolSeen,
    Tree,
    read_envoy,
    read_offset,
    read_partings,
    read_pools,
    read_version,
)
from extproc.errors import ExtprocError, SettingsError
from extproc.router.cluster.kube_api import KubeApi, ObjectMeta, Patience, Resource, T, WatchLost
from extproc.router.cluster.slices import EndpointSlice, read_slice
from extproc.router.settings.pool_settings import PoolSettings, ProbeSettings
from extproc.router.settings.reading import parse_settings
from extproc.router.settings.tree import Settings

if TYPE_CHECKING:
    from kubernetes.aio.client import ApiClient

TIMEOUT_S: Final = 3.0
# Of an engine's answer: its metrics are 50 kB, those of eight in one server 400 kB, and each line
# takes time to read. The ports that we are given say as much as the configuration is long.
_MOST_OF_ENGINE: Final = 2_097_152
_MOST_OF_GIVEN: Final = 67_108_864
# Most engines that are probed.
_MOST_ENGINES: Final = 64
# What reading foreign JSON may raise.
_FOREIGN: Final = (
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    RecursionError,
    ArithmeticError,
)
Headers = Mapping[str, str]
_Pages = Sequence[seen.MetricsPage]
_OF_ENVOY: Final = (
    "config_dump",
    "stats?format=json&filter=[.]ext_proc[.]",
    "clusters?format=json",
    "server_info",
)


@dataclass(frozen=True, slots=True)
class Reply:
    """An HTTP answer; of none the status is 0, and the text says why. `fault`: why it is of no use, if so."""

    status: int
    text: str
    clock: ClockOffset | None = None

    @property
    def fault(self) -> str:
        return "" if self.status == 200 else f"answers {self.status}" if self.status else self.text


async def look_around(
    url: str,
    envoy: str | None,
    namespace: str | None,
    given: Settings | None,
    window_s: float,
    *,
    read_key: Callable[[PoolSettings], Headers] = lambda _: {},
) -> seen.Evidence:
    """Asks the admin ports of the service (`url`) and of an Envoy, the engines, and Kubernetes.

    `given` are a file's settings; `None`: the service's own are fetched. Requests are counted for
    `window_s` seconds. `read_key` returns the header with a pool's key, for pools of `given` alone: no
    answer may name a secret of ours. Raises `ExtprocError` without settings to go by.
    """
    # What is packed would be unpacked in one piece, whatever its size, and no time limit fires.
    async with ClientSession(
        timeout=ClientTimeout(total=TIMEOUT_S),
        headers={"accept-encoding": "identity"},
        auto_decompress=False,
    ) as session:
        look = _Look(session, tuple(filter(None, (url, envoy))))
        config, pools, ready, lint = await look.all(url, ("config", "pools", "readyz", "lint"))
        in_force = None if config.fault else parse_settings(config.text, {}, f"{url}/config")
        settings = given or in_force
        if settings is None:
            hint = "give the running service's admin port with --url, or a configuration FILE"
            raise ExtprocError(f"{url}: {config.fault}: {hint}")
        try:
            running = [] if pools.fault else read_pools(pools.text)
            listed = list(_list_engines(settings, running))
        except _FOREIGN:
            raise ExtprocError(f"{url}/pools: not what a service of this version says") from None
        look.read_keys(listed, given, read_key)
        (first, last), engines, gateway, cluster = await asyncio.gather(
            look.count(
                [url, *(f"http://{engine.address}" for engine in listed[:_MOST_ENGINES])], window_s
            ),
            asyncio.gather(*(look.engine(engine, settings) for engine in listed[:_MOST_ENGINES])),
            look.envoy(envoy, settings),
            look.cluster(settings, namespace),
        )
    scraped = [page for page in last[1:] if page.samples]
    if config.fault:
        words = f"the running service, {url}: {config.fault}; --url is its admin port"
        look.unseen.insert(0, words)
    else:
        version = last[0].info("extproc_info").get("version", "?")
        look.looked.insert(0, f"the service {url} ({version})")
    told = look.looked if scraped else look.unseen
    told.append(f"metrics of {len(scraped)} of {len(listed)} engines")
    mute = [engine.address for engine in engines if engine.models is None]
    look.unseen += [f"models of {len(mute)} engines, {mute[0]} for one"] if mute else []
    pairs = zip(engines, first[1:], last[1:], strict=True)
    return seen.Evidence(
        settings,
        running,
        first[0],
        last[0],
        [] if ready.status in {0, 200} else ready.text.splitlines(),
        is_other=given is not None and in_force is not None and in_force.pools != given.pools,
        engines=[replace(engine, first=before, last=after) for engine, before, after in pairs],
        envoy=gateway,
        cluster=cluster,
        clock=config.clock,
        looked=look.looked,
        unseen=look.unseen,
        silence=None if config.status else (url, config.fault),
        lint=[] if lint.fault else read_partings(lint.text),
    )


class _Look:
    """Looks at one source after another; notes what it has `looked` at, and what was `unseen` and why."""

    def __init__(self, session: ClientSession, given: tuple[str, ...]) -> None:
        self._session = session
        self._given = given
        self.looked: list[str] = []
        self.unseen: list[str] = []
        # By addresses of engines.
        self._keys: dict[str, Headers] = {}

    def read_keys(
        self,
        engines: Sequence[seen.EngineSeen],
        given: Settings | None,
        read_key: Callable[[PoolSettings], Headers],
    ) -> None:
        for pool in _stages(given) if given else ():
            try:
                key = read_key(pool)
            except SettingsError as error:
                self.unseen.append(str(error))
            else:
                self._keys |= {each.address: key for each in engines if each.pool == pool.name}

    async def get(self, url: str) -> Reply:
        before_s, key = time(), self._keys.get(url.split("/")[2])
        most_bytes = _MOST_OF_GIVEN if url.startswith(self._given) else _MOST_OF_ENGINE
        try:
            async with self._session.get(url, allow_redirects=False, headers=key) as answer:
                page = bytearray()
                async for piece in answer.content.iter_any():
                    page += piece
                    if len(page) > most_bytes:
                        return Reply(0, f"answers with more than {most_bytes / 1e6:.0f} MB")
                return Reply(
                    answer.status,
                    page.decode(errors="replace"),
                    read_offset(answer.headers.get("date", ""), before_s, time()),
                )
        except TimeoutError:
            return Reply(0, f"no answer in {TIMEOUT_S:.0f} s")
        except (ClientError, OSError, ValueError, LookupError) as error:
            number = getattr(error, "errno", None) or 0
            return Reply(0, strerror(number) if number > 0 else str(error))

    async def all(self, base: str, names: Sequence[str]) -> list[Reply]:
        return await asyncio.gather(*(self.get(f"{base}/{name}") for name in names))

    async def page(self, base: str) -> seen.MetricsPage:
        reply = await self.get(f"{base}/metrics")
        # In a thread, so that the time limits of the others fire.
        return await asyncio.to_thread(seen.MetricsPage.parse, "" if reply.fault else reply.text)

    async def count(self, bases: Sequence[str], window_s: float) -> tuple[_Pages, _Pages]:
        """The metrics of the service and of the engines, at the begin and at the end of the window."""
        first = last = await asyncio.gather(*map(self.page, bases))
        if first[0].samples and any(page.samples for page in first[1:]):
            await asyncio.sleep(window_s)
            last = await asyncio.gather(*map(self.page, bases))
        return first, last

    async def engine(self, engine: seen.EngineSeen, settings: Settings) -> seen.EngineSeen:
        pool = next((each for each in _stages(settings) if each.name == engine.pool), None)
        probe = pool.probe if pool else None
        path = probe.path[1:] if isinstance(probe, ProbeSettings) else "health"
        health, models = await self.all(f"http://{engine.address}", (path, "v1/models"))
        try:
            served = {
                str(each["id"]): each.get("parent") for each in json.loads(models.text)["data"]
            }
        except _FOREIGN:
            served = None
        has_no_key_here = pool and pool.engine_key and not self._keys.get(engine.address)
        is_refused = models.status in {401, 403} and not has_no_key_here
        return replace(
            engine,
            health=str(health.status or health.text),
            models=served,
            clock=health.clock,
            refusal=models.status if is_refused else 0,
        )

    async def envoy(self, url: str | None, settings: Settings) -> EnvoySeen:
        if url is None:
            self.unseen.append("Envoy: not given; --envoy is its admin port")
            return EnvoySeen()
        replies = await self.all(url, _OF_ENVOY)
        try:
            dump, stats, clusters, info = (reply.text for reply in replies)
            found = read_envoy(dump, stats, clusters, settings.server.listen.rpartition(":")[2])
        except _FOREIGN:
            fault = replies[0].fault or "that is not its admin port"
            self.unseen.append(f"Envoy {url}: {fault}")
            return EnvoySeen(silence=(url, fault))
        self.looked.append(f"Envoy {url}")
        return replace(found, clock=replies[0].clock, version=read_version(info))

    async def cluster(self, settings: Settings, namespace: str | None) -> seen.ClusterSeen:
        inside = (
            pool.endpoints.kubernetes or pool.endpoints.inference_pool for pool in settings.pools
        )
        sources, found = [each for each in inside if each is not None], seen.ClusterSeen()
        if not sources and namespace is None:
            self.unseen.append(
                "Kubernetes: no pool is from there; --namespace says where the service runs"
            )
            return found
        try:
            from extproc.router.cluster.kubeclient import KubeClients  # noqa: PLC0415

            clients = KubeClients(
                next((each.kubeconfig for each in sources if each.kubeconfig), None)
            )
            theirs = next(
                (each.namespace for each in sources if each.namespace), clients.own_namespace()
            )
            async with asyncio.timeout(2 * TIMEOUT_S), await clients.open() as client:
                found = await _Kube(client, self.unseen).see(settings, namespace or theirs, theirs)
            self.looked.append(f"Kubernetes, namespace {namespace or theirs}")
        except ModuleNotFoundError:
            self.unseen.append("Kubernetes: in the checkout, pip install '.[kubernetes]'")
        except (TimeoutError, WatchLost, *_FOREIGN) as error:
            self.unseen.append(f"Kubernetes: {str(error) or 'no answer in time'}")
        return found


def _stages(settings: Settings) -> Iterator[PoolSettings]:
    """The pools as the service runs them: prefill endpoints are one of their own."""
    for pool in settings.pools:
        yield from filter(None, (pool, pool.stage()))


def _list_engines(settings: Settings, running: Sequence[PoolSeen]) -> Iterator[seen.EngineSeen]:
    """The endpoints that the service has; without an answer, those that the settings list."""
    for pool in running:
        for each in pool.endpoints:
            yield seen.EngineSeen(pool.name, each.name, each.address, each.state)
    for listed in () if running else _stages(settings):
        yield from (seen.EngineSeen(listed.name, at, at) for at in listed.endpoints.static or ())


class KubeThing(Struct):
    """An object of any kind; what is below is read where it is needed."""

    metadata: ObjectMeta
    spec: dict[str, Any] = {}


class _Kube:
    """Lists what is in a namespace; a kind that may not be listed is left out, and noted."""

    def __init__(self, client: "ApiClient", unseen: list[str]) -> None:
        self._client, self._unseen = client, unseen

    async def see(self, settings: Settings, ours: str, theirs: str) -> seen.ClusterSeen:
        """`ours` is the namespace of the service, `theirs` that of the engines."""
        own, served, policies = await asyncio.gather(
            self._list("discovery.k8s.io/v1/endpointslices", EndpointSlice, ours),
            self._list("discovery.k8s.io/v1/endpointslices", EndpointSlice, theirs),
            self._list("networking.k8s.io/v1/networkpolicies", KubeThing, ours),
        )
        port = settings.server.listen.rpartition(":")[2]
        found = [
            read_slice(each, (int(port),)) for each in own or () if each.ports and port.isdigit()
        ]
        replicas = sorted(
            {each.name for reading in found for each in reading.endpoints if each.is_ready}
        )
        is_guarded = None
        if replicas and policies is not None:
            pods = await self._list("v1/pods", KubeThing, ours, replicas[0].rpartition("/")[2])
            labels = [pod.metadata.labels or {} for pod in pods or ()]
            is_guarded = (
                any(_limits(policy.spec, labels[0]) for policy in policies) if labels else None
            )
        return seen.ClusterSeen(len(replicas), is_guarded, list(_unready(settings, served or ())))

    async def _list(
        self, path: str, kind: type[T], namespace: str, name: str = ""
    ) -> list[T] | None:
        api, _, plural = path.rpartition("/")
        resource = Resource(
            api, namespace, plural, kind, field_selector=name and f"metadata.name={name}"
        )
        try:
            return (await KubeApi(self._client, resource, Patience(TIMEOUT_S)).list())[1]
        except WatchLost as error:
            self._unseen.append(f"Kubernetes, {plural} in {namespace}: {error}")
            return None


def _limits(policy: Tree, labels: Tree) -> bool:
    """Whether a NetworkPolicy says who may reach the Pods of these labels."""
    selected: Tree = policy["podSelector"].get("matchLabels", {})
    return (
        "Ingress" in policy.get("policyTypes", ["Ingress"]) and selected.items() <= labels.items()
    )


def _unready(settings: Settings, slices: Sequence[EndpointSlice]) -> Iterator[tuple[str, int, int]]:
    for source in filter(None, (pool.endpoints.kubernetes for pool in settings.pools)):
        named = {"kubernetes.io/service-name": source.service}.items()
        own = [
            read_slice(each, source.ports)
            for each in slices
            if named <= (each.metadata.labels or {}).items()
        ]
        ready, unready = (
            sum(len(each.endpoints) for each in own),
            sum(len(each.unready) for each in own),
        )
        if unready:
            yield source.service, ready, ready + unready
