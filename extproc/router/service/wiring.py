"""From settings to the parts they describe: pools, routes, sources, credentials."""

import ssl
from asyncio import Event
from collections.abc import Mapping
from pathlib import Path
from random import Random, SystemRandom

from msgspec import Struct

from extproc.errors import MissingExtra, SettingsError
from extproc.grpc_server.budget import Budget
from extproc.router.cluster.dns import DnsSource
from extproc.router.cluster.file import FileSource
from extproc.router.cluster.inference_pool_source import InferencePoolSource
from extproc.router.cluster.kubernetes import KubernetesSource
from extproc.router.cluster.listwatch import KubeAccess
from extproc.router.cluster.models import ModelsSource
from extproc.router.cluster.objectives import ObjectivesSource
from extproc.router.cluster.restarting import Restarting
from extproc.router.cluster.source import Source, StaticSource
from extproc.router.events.kv_log import EventLogs
from extproc.router.events.kv_reader import EventReader
from extproc.router.feedback.cooling import Cooling, Rules
from extproc.router.feedback.probes import ProbePlan
from extproc.router.feedback.scraper import ScrapePlan
from extproc.router.lint.partings import PoolLint
from extproc.router.recording.trace_rows import PoolTrace
from extproc.router.routing.endpoint import Endpoint
from extproc.router.routing.pool import Pool
from extproc.router.routing.prefill_stage import (
    NOBODY_STREAMS,
    STEPS_OF_A_TRANSFER,
    PrefillStage,
    Transfer,
)
from extproc.router.routing.queue import Later, Queue, QueueLimits
from extproc.router.routing.signals import EndpointSignals
from extproc.router.routing.strategies.base import ClockAndRandom, Strategy
from extproc.router.routing.strategies.prefix_cache.strategy import PrefixCacheSettings
from extproc.router.routing.strategies.registry import STRATEGIES
from extproc.router.service.trace_file import TraceFile
from extproc.router.settings.endpoints import (
    EndpointsSettings,
    InferencePoolSettings,
    KubernetesSettings,
)
from extproc.router.settings.pool_settings import (
    PoolSettings,
    ProbeSettings,
    SignalsSettings,
)
from extproc.router.settings.share_settings import NatsSettings, ShareSettings
from extproc.router.shadow.comparison import PoolShadow
from extproc.router.share.courier import RESULTS, Carrier, Courier, LetterCounts
from extproc.router.share.mesh import Mesh
from extproc.router.share.sealed import Seal


class PoolWiring(Struct, frozen=True):
    """Builds the parts of a pool that its settings describe; nothing runs yet.

    `base` is the folder that relative paths start from; `environment` has variables with secrets.
    Each method may raise `SettingsError`.
    """

    _base: Path
    outside: ClockAndRandom
    _environment: Mapping[str, str] = {}

    def strategy(self, settings: PoolSettings) -> Strategy:
        options = settings.strategy.options()
        if settings.only_prefills:
            options["rule"] = NOBODY_STREAMS
        return STRATEGIES.build(settings.strategy.name, options, self.outside)

    def shadow(self, settings: PoolSettings, pool: Pool) -> PoolShadow | None:
        """`None`: nobody asked for one."""
        if settings.shadow is None:
            return None
        options = settings.strategy.options()
        engines = {name: options[name] for name in ("engine", "kv_tokens")}
        return PoolShadow(pool, self.outside, engines, settings.shadow.deferred_close_s)

    def prefill(
        self, settings: PoolSettings, answering: Pool, stage: Pool | None
    ) -> PrefillStage | None:
        """`None`: each endpoint computes its own prompts."""
        wanted, strategy = settings.prefill, settings.strategy
        if stage is None or wanted is None or not isinstance(strategy, PrefixCacheSettings):
            return None
        overhead_ms = STEPS_OF_A_TRANSFER * strategy.costs.step_ms
        transfer = Transfer(overhead_ms, wanted.kv_bytes_per_token, wanted.gbit_per_s)
        return PrefillStage(stage, transfer, answering)

    def lint(self, settings: PoolSettings) -> PoolLint | None:
        return PoolLint(settings.name, self.outside.clock) if settings.lint else None

    def trace(
        self, settings: PoolSettings, signals: Mapping[str, EndpointSignals]
    ) -> tuple[PoolTrace | None, TraceFile | None]:
        """What makes rows of requests, and what writes them; `None`: nobody asked for them."""
        record = settings.record
        if record is None:
            return None, None
        file, rng = TraceFile(self._base / record.file, self.outside.clock), SystemRandom()
        limit = record.limit_mb * 1_000_000
        return PoolTrace(
            file,
            signals,
            self.outside.clock,
            lambda: rng.randbytes(32),
            share=record.share,
            limit_bytes=limit,
        ), file

    def cooling(self, settings: PoolSettings) -> Cooling:
        return Cooling(build_rules(settings), clock=self.outside.clock, rng=self.outside.rng)

    def queue(self, settings: PoolSettings, budget: Budget, later: Later) -> Queue | None:
        """`None`: the pool refuses requests without room at once."""
        if settings.hold is None:
            return None
        return Queue(
            QueueLimits(**dict(settings.hold)), budget, clock=self.outside.clock, later=later
        )

    def source(self, settings: PoolSettings) -> Source:
        source = _endpoint_source(
            settings.endpoints,
            self._base,
            self.outside.rng,
            prefills=settings.only_prefills,
            match_label=settings.match_label or "",
        )
        if settings.learn_models:
            headers = self.engine_headers(settings)
            source = ModelsSource(source, headers, rng=self.outside.rng)
        return Restarting(source, rng=self.outside.rng)

    def engine_headers(self, settings: PoolSettings) -> Mapping[str, str]:
        """What every question of ours to the pool's engines carries: their key, where they have one."""
        return settings.engine_headers(self._base, self._environment)

    def key_folder(self, settings: PoolSettings) -> Path | None:
        """Where the file with the engines' key is; `None`: it is in none."""
        secret = settings.engine_key
        return (self._base / secret.file).parent if secret and secret.file else None

    def objectives(self, settings: InferencePoolSettings) -> ObjectivesSource:
        access, namespace = _access(settings, self.outside.rng)
        return ObjectivesSource(access, namespace, settings.name)

    def event_reader(
        self, pool: Pool, heard: EventLogs, settings: PoolSettings, has_changed: Event
    ) -> EventReader:
        wanted = settings.signals.events if settings.signals else True
        port = None if wanted is True else wanted
        headers = self.engine_headers(settings)
        return EventReader(pool, heard, port, headers, self.outside.clock, has_changed)


def build_rules(settings: PoolSettings) -> Rules:
    """Of prefill endpoints all may be left out: the others can do without them."""
    return Rules(settings.cool_after, most=1.0 if settings.only_prefills else 0.5)


def build_probe(settings: PoolSettings) -> ProbePlan | None:
    """`None`: no probes, since Kubernetes probes them, or the operator does not want it."""
    probe = settings.probe
    if probe is None and not settings.endpoints.lists_health:
        probe = ProbeSettings()
    return ProbePlan(**dict(probe)) if probe else None


def build_scrape(settings: PoolSettings) -> ScrapePlan | None:
    """`None`: the endpoints' metrics are left alone."""
    signals = settings.signals
    if signals is None and settings.strategy.reads_signals:
        signals = SignalsSettings()
    return ScrapePlan(signals.scrape_s) if signals else None


def build_courier(
    settings: ShareSettings, base: Path, environment: Mapping[str, str], outside: ClockAndRandom
) -> Courier:
    """Raises `SettingsError` for a secret that is not there, or too short."""
    letter_counts = dict.fromkeys(RESULTS, 0)
    if settings.nats is not None:
        carrier: Carrier = _build_nats(
            settings.nats, settings.cluster, base, environment, letter_counts
        )
    elif settings.mesh is not None:
        peers = Restarting(
            _endpoint_source(settings.mesh.peers.endpoints(), base, outside.rng), rng=outside.rng
        )
        carrier = Mesh(
            settings.mesh.listen, peers, letter_counts, rng=outside.rng, clock=outside.clock
        )
    secret = settings.secret.read(base, environment)
    names = SystemRandom()
    try:
        return Courier(
            carrier,
            lambda me: Seal(settings.cluster, secret, me),
            letter_counts,
            draw=lambda: names.getrandbits(64),
            clock=outside.clock,
        )
    except ValueError as error:
        raise SettingsError(f"share.secret: {error}") from None


def _build_nats(
    settings: NatsSettings,
    cluster: str,
    base: Path,
    environment: Mapping[str, str],
    letter_counts: LetterCounts,
) -> Carrier:
    try:
        from extproc.router.share.nats import Nats, NatsAccess  # noqa: PLC0415  # an extra
    except ImportError:
        raise MissingExtra("share.nats", "nats") from None
    secret = settings.password
    password = secret.read(base, environment, "share.nats.password").decode() if secret else None
    try:
        tls = ssl.create_default_context(cafile=base / settings.ca) if settings.ca else None
    except OSError as error:
        raise SettingsError(
            f"share.nats.ca: cannot read {settings.ca}: {error.strerror}"
        ) from error
    credentials = str(base / settings.credentials) if settings.credentials else None
    access = NatsAccess(settings.servers, credentials, settings.user, password, tls)
    return Nats(access, cluster, letter_counts)


def _endpoint_source(
    settings: EndpointsSettings,
    base: Path,
    rng: Random,
    *,
    prefills: bool = False,
    match_label: str = "",
) -> Source:
    if service := settings.kubernetes:
        access, namespace = _access(service, rng)
        family = service.address_family
        return KubernetesSource(access, namespace, service.service, service.ports, family=family)
    if pool := settings.inference_pool:
        access, namespace = _access(pool, rng)
        return InferencePoolSource(
            access,
            namespace,
            pool.name,
            family=pool.address_family,
            prefills=prefills,
            match_label=match_label,
        )
    if settings.dns is not None:
        return DnsSource(settings.dns, rng=rng)
    if settings.file is not None:
        return FileSource(base / settings.file)
    return StaticSource([Endpoint(address, address) for address in settings.static or ()])


def _access(
    settings: KubernetesSettings | InferencePoolSettings, rng: Random
) -> tuple[KubeAccess, str]:
    """How the API server is reached, and the namespace that is meant."""
    try:
        from extproc.router.cluster.kubeclient import KubeClients  # noqa: PLC0415  # an extra
    except ImportError:
        raise MissingExtra("a Kubernetes source", "kubernetes") from None
    clients = KubeClients(settings.kubeconfig)
    return KubeAccess(clients.open, rng), settings.namespace or clients.own_namespace()
