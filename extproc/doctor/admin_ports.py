"""What admin ports show: an Envoy's of its filters that ask a service, the service's of its pools. Pure."""

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from operator import itemgetter
from typing import Any, Final

import msgspec

from extproc.router.lint.partings import PoolPartings

Tree = Mapping[str, Any]
"""A JSON object."""
ClockOffset = tuple[float, float]
"""So many seconds is a clock before another one: at least, and at most."""

# Envoy's own, where a route or a filter does not say.
_ROUTE_TIMEOUT, _MESSAGE_TIMEOUT = "15s", "0.2s"
# Sections of Envoy's start, and of listeners that it does not use any more, or not yet.
_IDLE: Final = ("bootstrap", "warming_state", "draining_state", "error_state")


@dataclass(frozen=True, slots=True)
class ExtProcFilter:
    """An ext_proc filter of a listener. `wait_s`: the longest that Envoy waits for the service's answer.

    `hears_outcomes`: by response headers or a gRPC access log the service learns what became of
    requests. `routes` has the name and timeout of each route whose requests it is asked for; 0 s:
    none.
    """

    listener: str
    cluster: str
    fails_open: bool
    wait_s: float
    hears_outcomes: bool
    routes: Sequence[tuple[str, float]]
    unasked: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class EnvoySeen:
    """An Envoy: the filters that ask us, their counters by their last names, our addresses by health.

    `silence` is its address and why nothing answered there, if so.
    """

    is_seen: bool = False
    filters: Sequence[ExtProcFilter] = ()
    counters: Mapping[str, float] = field(default_factory=dict)
    hosts: Mapping[str, bool] = field(default_factory=dict)
    clock: ClockOffset | None = None
    silence: tuple[str, str] | None = None
    version: tuple[int, int, int] | None = None


def read_version(server_info: str) -> tuple[int, int, int] | None:
    """Reads the release in Envoy's `/server_info`; of another text, a build of one's own or a `-dev` one `None`."""
    release = re.search(
        r'"version": *"[^"/]*/(\d{1,4})\.(\d{1,4})\.(\d{1,4})/', server_info, re.ASCII
    )
    if release is None:
        return None
    major, minor, patch = map(int, release.groups())
    return major, minor, patch


def read_offset(date: str, before_s: float, after_s: float) -> ClockOffset | None:
    """How far a `Date` is before our clock: it was cut to seconds, and may be of a second before that."""
    try:
        said_s = parsedate_to_datetime(date).timestamp()
    except (ValueError, OverflowError):
        return None
    return said_s - after_s, said_s + 2 - before_s


def read_envoy(dump: str, stats: str, clusters: str, port: str) -> EnvoySeen:
    """Reads Envoy's `/config_dump`, `/stats` and `/clusters`, all as JSON; `port` is the service's own.

    The filters that ask us are those whose cluster has a host at our port; if there are none, all.
    Raises `ValueError`, `LookupError`, `TypeError` or `AttributeError` for what is none of Envoy's.
    """
    tree, statuses = json.loads(dump), json.loads(clusters)["cluster_statuses"]
    hosts = {
        each["name"]: dict(map(_read_host, each.get("host_statuses", ()))) for each in statuses
    }
    tables = {table.get("name"): table for table in _find(tree, "route_config")}
    filters = [
        _read_filter(manager, each, tables)
        for manager in _find(tree, "typed_config")
        for each in manager.get("http_filters", ())
        if _is_a(each.get("typed_config", {}), "ext_proc.v3.ExternalProcessor")
    ]
    ours = [
        each
        for each in filters
        if any(at.endswith(f":{port}") for at in hosts.get(each.cluster, ()))
    ]
    counters = defaultdict[str, float](float)
    for stat in json.loads(stats)["stats"]:
        counters[stat.get("name", "").rpartition(".")[2]] += float(stat.get("value", 0))
    ours_or_all = (host for each in ours or filters for host in hosts.get(each.cluster, {}).items())
    # Of two clusters with one address the one that reaches it counts.
    return EnvoySeen(True, ours or filters, counters, dict(sorted(ours_or_all, key=itemgetter(1))))


def _read_host(status: Tree) -> tuple[str, bool]:
    address, health = status["address"], status.get("health_status", {})
    socket = address.get(
        "socket_address", {"address": "unix", "port_value": address.get("pipe", {}).get("path")}
    )
    is_failed = any(health[name] for name in health if name.startswith("failed_"))
    is_healthy = not is_failed and health.get("eds_health_status", "HEALTHY") in {
        "HEALTHY",
        "UNKNOWN",
    }
    return f"{socket['address']}:{socket['port_value']}", is_healthy


def _read_filter(manager: Tree, each: Tree, tables: Mapping[str | None, Tree]) -> ExtProcFilter:
    config = each["typed_config"]
    table = manager.get("route_config") or tables.get(
        manager.get("rds", {}).get("route_config_name"), {}
    )
    logs = [log.get("typed_config", {}) for log in manager.get("access_log", ())]
    is_deaf = config.get("processing_mode", {}).get("response_header_mode") == "SKIP"
    waits = (
        config.get("message_timeout", _MESSAGE_TIMEOUT),
        config.get("max_message_timeout", "0s"),
    )
    routes = list(_read_routes(table, each))
    return ExtProcFilter(
        listener=str(manager.get("stat_prefix", "")),
        cluster=config.get("grpc_service", {}).get("envoy_grpc", {}).get("cluster_name", ""),
        fails_open=config.get("failure_mode_allow", False),
        wait_s=max(map(_seconds, waits)),
        hears_outcomes=not is_deaf or any(_is_a(log, "HttpGrpcAccessLogConfig") for log in logs),
        routes=[(name, limit_s) for name, limit_s, is_asked in routes if is_asked],
        unasked=[name for name, _, is_asked in routes if not is_asked],
    )


def _read_routes(table: Tree, each: Tree) -> Iterator[tuple[str, float, bool]]:
    """Every route to a cluster: its name, its timeout, and whether the filter is on there."""
    for host in table.get("virtual_hosts", ()):
        for number, route in enumerate(host.get("routes", ()), 1):
            own = (
                level.get("typed_per_filter_config", {}).get(each["name"])
                for level in (route, host)
            )
            nearest: Tree = next((config for config in own if config is not None), each)
            if "route" in route:
                name = route.get("name") or f"{host['name']}, route {number}"
                timeout = route["route"].get("timeout", _ROUTE_TIMEOUT)
                yield name, _seconds(timeout), not nearest.get("disabled", False)


def _seconds(text: str) -> float:
    """Reads a duration as protobuf writes it in JSON: `0.200s`."""
    return float(text.removesuffix("s"))


def _is_a(tree: Tree, kind: str) -> bool:
    return str(tree.get("@type", "")).endswith(f".{kind}")


def _find(tree: Any, key: str) -> Iterator[Any]:
    """Yields the values of `key` wherever it occurs in what is in use."""
    pairs = (
        tree.items()
        if isinstance(tree, dict)
        else enumerate(tree)
        if isinstance(tree, list)
        else ()
    )
    for name, below in pairs:
        if name == key:
            yield below
        if name not in _IDLE:
            yield from _find(below, key)


class EventsSeen(msgspec.Struct, frozen=True):
    """How an endpoint's KV events come; `why` they do not come whole."""

    state: str
    why: str = ""


class ListedEndpoint(msgspec.Struct, frozen=True):
    name: str
    address: str
    state: str
    events: EventsSeen | None = None
    first_byte_s: float | None = None
    silent_s: float = 0.0


class SharedPicks(msgspec.Struct, frozen=True):
    """`heard`: how many other replicas are heard of."""

    heard: int


class EndpointTrust(msgspec.Struct, frozen=True):
    """How far what was predicted of an endpoint was found there; of a service that does not say it, all."""

    presumed_share: float = 1.0
    predicted_hit_rate: float = 0.0
    measured_hit_rate: float = 0.0


class Learnt(msgspec.Struct, frozen=True):
    endpoints: Mapping[str, EndpointTrust] = {}


class PoolSeen(msgspec.Struct, frozen=True):
    """What is read of a pool."""

    name: str
    endpoints: Sequence[ListedEndpoint]
    fault: str | None = None
    share: SharedPicks | None = None
    learnt: Learnt = Learnt()


def read_pools(text: str) -> list[PoolSeen]:
    """Raises `ValueError` or `RecursionError` for what is not of a service of this version."""
    return msgspec.json.decode(text, type=list[PoolSeen])


def read_partings(text: str) -> list[PoolPartings]:
    """Reads `/lint`; of a service of another version nothing, and that is told elsewhere."""
    try:
        return msgspec.json.decode(text, type=list[PoolPartings])
    except (ValueError, RecursionError):
        return []
