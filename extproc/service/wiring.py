"""From settings to the parts they describe: strategies, keys, sources, credentials."""

from pathlib import Path
from random import Random

from extproc.cluster.dns import DnsSource
from extproc.cluster.file import FileSource
from extproc.cluster.kubeclient import KubeClients
from extproc.cluster.kubernetes import KubernetesSource
from extproc.cluster.models import ModelsSource
from extproc.cluster.source import Source
from extproc.cluster.static import StaticSource
from extproc.routing.endpoint import Endpoint
from extproc.routing.picker import Route
from extproc.routing.pool import Pool
from extproc.routing.prefix import parse_key
from extproc.routing.ring import Ring
from extproc.routing.strategies.balanced import LeastLoad, RandomChoice, RoundRobin
from extproc.routing.strategies.base import Strategy
from extproc.routing.strategies.prefix_hash import PrefixHash
from extproc.settings import (
    EndpointsSettings,
    KubernetesSettings,
    LeastLoadSettings,
    PoolSettings,
    PrefixHashSettings,
    RandomSettings,
    RoundRobinSettings,
    StrategySettings,
)


def build_strategy(settings: StrategySettings, rng: Random) -> Strategy:
    match settings:
        case RoundRobinSettings():
            return RoundRobin()
        case RandomSettings():
            return RandomChoice(rng)
        case LeastLoadSettings():
            return LeastLoad(rng)
        case PrefixHashSettings():
            return PrefixHash(rng, load_factor=settings.load_factor, load_floor=settings.load_floor)


def build_ring(settings: StrategySettings) -> Ring:
    """An empty ring; every pool has one, so that a change to `prefix_hash` finds it ready."""
    return Ring(positions=settings.positions) if isinstance(settings, PrefixHashSettings) else Ring()


def build_pool(settings: PoolSettings, rng: Random) -> Pool:
    strategy = build_strategy(settings.strategy, rng)
    return Pool(settings.name, strategy, build_ring(settings.strategy), max_in_flight=settings.max_in_flight)


def build_route(settings: PoolSettings, pool: Pool) -> Route:
    models, adapters = tuple(settings.models or ()), frozenset(settings.adapters)
    strategy = settings.strategy
    if not isinstance(strategy, PrefixHashSettings):
        return Route(pool, models, adapters)
    return Route(pool, models, adapters, tuple(map(parse_key, strategy.key)), strategy.prefix_chars)


def build_source(settings: PoolSettings, base: Path, rng: Random) -> Source:
    """`base` is the folder that relative paths start from: the configuration file's."""
    source = _endpoint_source(settings.endpoints, base, rng)
    return ModelsSource(source, rng=rng) if settings.learn_models else source


def _endpoint_source(settings: EndpointsSettings, base: Path, rng: Random) -> Source:
    if settings.kubernetes is not None:
        return _kubernetes_source(settings.kubernetes, rng)
    if settings.dns is not None:
        return DnsSource(settings.dns, rng=rng)
    if settings.file is not None:
        return FileSource(base / settings.file)
    return StaticSource([Endpoint(address, address) for address in settings.static or ()])


def _kubernetes_source(settings: KubernetesSettings, rng: Random) -> KubernetesSource:
    return KubernetesSource(
        KubeClients(settings.kubeconfig, settings.context).open,
        settings.namespace,
        settings.service,
        settings.port,
        family=settings.address_family,
        rng=rng,
    )
