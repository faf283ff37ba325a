"""From settings to the parts they describe: pools, routes, sources, credentials."""

import ssl
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random, SystemRandom

from extproc.errors import SettingsError
from extproc.router.budget import Budget
from extproc.router.cluster.dns import DnsSource
from extproc.router.cluster.file import FileSource
from extproc.router.cluster.inference_pool_source import InferencePoolSource, PoolName
from extproc.router.cluster.kubeclient import KubeClients
from extproc.router.cluster.kubernetes import KubernetesSource
from extproc.router.cluster.listwatch import KubeAccess
from extproc.router.cluster.models import ModelsSource
from extproc.router.cluster.objectives import ObjectivesSource
from extproc.router.cluster.restarting import Restarting
from extproc.router.cluster.source import Source
from extproc.router.cluster.static import StaticSource
from extproc.router.feedback.cooling import Rules
from extproc.router.feedback.probes import ProbePlan
from extproc.router.feedback.scraper import ScrapePlan
from extproc.router.routing.endpoint import Endpoint
from extproc.router.routing.picker import Route
from extproc.router.routing.pool import Gate, Pool
from extproc.router.routing.queue import Later, Limits, Queue
from extproc.router.routing.strategies.base import Outside
from extproc.router.routing.strategies.registry import STRATEGIES
from extproc.router.settings.endpoints import EndpointsSettings, InferencePoolSettings, KubernetesSettings
from extproc.router.settings.share import NatsSettings, ShareSettings
from extproc.router.settings.tree import PoolSettings, ProbeSettings
from extproc.router.share.courier import Carrier, Courier, Tally
from extproc.router.share.mesh import Mesh
from extproc.router.share.sealed import Seal


class Sources:
    """Builds what the settings name. `base` is the folder that relative paths start from."""

    def __init__(self, base: Path, rng: Random) -> None:
        self._base = base
        self._rng = rng

    def endpoints(self, settings: PoolSettings) -> Source:
        return build_source(settings, self._base, self._rng)

    def objectives(self, settings: InferencePoolSettings) -> ObjectivesSource:
        return build_objectives(settings, self._rng)


def build_pool(settings: PoolSettings, outside: Outside, gate: Gate | None = None) -> Pool:
    strategy = STRATEGIES.build(settings.strategy.name, settings.strategy.options(), outside)
    pool = Pool(settings.name, strategy, gate=gate)
    set_limits(pool, settings)
    return pool


def set_limits(pool: Pool, settings: PoolSettings) -> None:
    """What may change while requests are in flight; they keep the standing that they had."""
    pool.max_in_flight = settings.max_in_flight
    pool.fallbacks = settings.fallbacks
    pool.admission.has_shares = settings.fairness
    if pool.queue is not None:
        pool.queue.stir()


def build_queue(
    settings: PoolSettings, budget: Budget, clock: Callable[[], float], later: Later
) -> Queue | None:
    """`None`: the pool holds nobody."""
    hold = settings.hold
    if hold is None:
        return None
    limits = Limits(hold.wait_s, hold.requests, hold.settle_s)
    return Queue(limits, budget, clock=clock, later=later)


def build_rules(settings: PoolSettings) -> Rules:
    return Rules(failures=settings.cool_after)


def build_probe(settings: PoolSettings) -> ProbePlan | None:
    """`None`: the endpoints are not asked, since Kubernetes does it, or the operator does not want it."""
    probe = settings.probe
    if probe is None and not settings.endpoints.tells_health:
        probe = ProbeSettings()
    return ProbePlan(probe.path, probe.interval_s, probe.timeout_s) if probe else None


def build_scrape(settings: PoolSettings) -> ScrapePlan | None:
    """`None`: the endpoints' metrics are left alone."""
    return ScrapePlan(settings.signals.scrape_s) if settings.signals else None


def build_courier(
    settings: ShareSettings, base: Path, environment: Mapping[str, str], outside: Outside
) -> Courier:
    """Raises `SettingsError` for a secret that is not there, or too short."""
    tally = Tally()
    if settings.nats is not None:
        carrier: Carrier = _build_nats(settings.nats, settings.cluster, base, environment, tally)
    elif settings.mesh is not None:
        peers = Restarting(_endpoint_source(settings.mesh.peers, base, outside.rng), rng=outside.rng)
        carrier = Mesh(settings.mesh.listen, peers, tally, rng=outside.rng, clock=outside.clock)
    secret = settings.secret.read(base, environment)
    names = SystemRandom()
    try:
        return Courier(
            carrier,
            lambda me: Seal(settings.cluster, secret, me),
            tally,
            draw=lambda: names.getrandbits(64),
            clock=outside.clock,
        )
    except ValueError as error:
        raise SettingsError(f"share.secret: {error}") from None


def _build_nats(
    settings: NatsSettings, cluster: str, base: Path, environment: Mapping[str, str], tally: Tally
) -> Carrier:
    try:
        from extproc.router.share.nats import Nats, NatsAccess  # noqa: PLC0415  # an extra
    except ImportError:
        raise SettingsError("share.nats: this needs the extra `nats`") from None
    secret = settings.password
    password = secret.read(base, environment, "share.nats.password").decode() if secret else None
    try:
        tls = ssl.create_default_context(cafile=base / settings.ca) if settings.ca else None
    except OSError as error:
        raise SettingsError(f"share.nats.ca: cannot read {settings.ca}: {error.strerror}") from error
    credentials = str(base / settings.credentials) if settings.credentials else None
    access = NatsAccess(settings.servers, credentials, settings.user, password, tls)
    return Nats(access, cluster, tally)


def build_route(settings: PoolSettings, pool: Pool) -> Route:
    return Route(pool, tuple(settings.models or ()), frozenset(settings.adapters))


def build_source(settings: PoolSettings, base: Path, rng: Random) -> Source:
    """`base` is the folder that relative paths start from: the configuration file's."""
    source = _endpoint_source(settings.endpoints, base, rng)
    return Restarting(ModelsSource(source, rng=rng) if settings.learn_models else source, rng=rng)


def _endpoint_source(settings: EndpointsSettings, base: Path, rng: Random) -> Source:
    if settings.kubernetes is not None:
        return _kubernetes_source(settings.kubernetes, rng)
    if settings.inference_pool is not None:
        return _inference_pool_source(settings.inference_pool, rng)
    if settings.dns is not None:
        return DnsSource(settings.dns, rng=rng)
    if settings.file is not None:
        return FileSource(base / settings.file)
    return StaticSource([Endpoint(address, address) for address in settings.static or ()])


def _kubernetes_source(settings: KubernetesSettings, rng: Random) -> KubernetesSource:
    clients = KubeClients(settings.kubeconfig, settings.context)
    return KubernetesSource(
        KubeAccess(clients.open, rng),
        settings.namespace or clients.own_namespace(),
        settings.service,
        settings.ports,
        family=settings.address_family,
    )


def build_objectives(settings: InferencePoolSettings, rng: Random) -> ObjectivesSource:
    clients = KubeClients(settings.kubeconfig, settings.context)
    namespace = settings.namespace or clients.own_namespace()
    return ObjectivesSource(KubeAccess(clients.open, rng), namespace, settings.name)


def _inference_pool_source(settings: InferencePoolSettings, rng: Random) -> InferencePoolSource:
    clients = KubeClients(settings.kubeconfig, settings.context)
    namespace = settings.namespace or clients.own_namespace()
    pool = PoolName(namespace, settings.name, settings.address_family)
    return InferencePoolSource(KubeAccess(clients.open, rng), pool)
