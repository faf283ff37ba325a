"""Pods as the Kubernetes API sends them, and the endpoints that they are. Pure.

Only what we read is declared; everything else in the JSON, most of a pod, is skipped. Fields follow the
reference of the core API (Kubernetes 1.37).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from msgspec import Struct, field

from extproc.errors import AddressError
from extproc.router.cluster.kube_api import ObjectMeta
from extproc.router.cluster.slices import AddressFamily, keep_distinct, name_endpoint
from extproc.router.routing.endpoint import Endpoint, join_address

# `gc=False`: they are trees, of which there may be thousands for the garbage collector to walk.

# Copied from the node since Kubernetes 1.35 (KEP 4742); an EndpointSlice has it as `zone`.
ZONE_LABEL = "topology.kubernetes.io/zone"


class PodCondition(Struct, gc=False):
    type: str = ""
    status: str = ""


class PodIP(Struct, gc=False):
    ip: str = ""


class PodStatus(Struct, gc=False):
    phase: str = ""
    conditions: list[PodCondition] | None = None
    pod_ip: str = field(name="podIP", default="")
    pod_ips: list[PodIP] | None = field(name="podIPs", default=None)


class Pod(Struct, gc=False):
    metadata: ObjectMeta
    status: PodStatus = field(default_factory=PodStatus)


@dataclass(frozen=True, slots=True)
class PodReading:
    """What one pod says: an endpoint for each port, none if it cannot serve, and what is odd about it."""

    endpoints: tuple[Endpoint, ...] = ()
    fault: str | None = None


def read_pod(pod: Pod, ports: tuple[int, ...], family: AddressFamily) -> PodReading:
    """Reads the endpoints of one pod: Running, Ready and with an address, else there are none.

    A pod that terminates and is still Ready is draining, as an EndpointSlice's `serving` and
    `terminating` say it: it gets no picks and finishes what it has.
    """
    address = _address(pod.status, family)
    if pod.status.phase != "Running" or not _is_ready(pod.status) or not address:
        return PodReading()
    try:
        return PodReading(tuple(_endpoint(pod, address, port, is_alone=len(ports) == 1) for port in ports))
    except AddressError as error:
        return PodReading(fault=f"is left out: {error}")


def _endpoint(pod: Pod, address: str, port: int, *, is_alone: bool) -> Endpoint:
    return Endpoint(
        name=name_endpoint(pod.metadata.namespace, pod.metadata.name, port, is_alone=is_alone),
        address=join_address(address, port),
        is_ready=pod.metadata.deletion_timestamp is None,
        zone=(pod.metadata.labels or {}).get(ZONE_LABEL),
    )


def _is_ready(status: PodStatus) -> bool:
    return any(entry.type == "Ready" and entry.status == "True" for entry in status.conditions or ())


def _address(status: PodStatus, family: AddressFamily) -> str:
    """The address of the preferred family, else the other's; `podIP` is the first of `podIPs`."""
    addresses = [entry.ip for entry in status.pod_ips or () if entry.ip]
    preferred = (ip for ip in addresses if (":" in ip) == (family == "IPv6"))
    return next(preferred, status.pod_ip or next(iter(addresses), ""))


class PodBook:
    """Holds the last state of every pod that a selector chose, and what each says at `ports`."""

    def __init__(self, ports: tuple[int, ...], *, family: AddressFamily = "IPv4") -> None:
        self._ports = ports
        self._family = family
        self._pods: dict[str, Pod] = {}
        self._readings: dict[str, PodReading] = {}

    def use_ports(self, ports: tuple[int, ...]) -> None:
        self._ports = ports
        self.replace(list(self._pods.values()))

    def replace(self, pods: Iterable[Pod]) -> None:
        self._pods, self._readings = {}, {}
        for pod in pods:
            self.put(pod)

    def put(self, pod: Pod) -> None:
        name = pod.metadata.name
        self._pods[name] = pod
        self._readings[name] = read_pod(pod, self._ports, self._family)

    def delete(self, pod: Pod) -> None:
        self._pods.pop(pod.metadata.name, None)
        self._readings.pop(pod.metadata.name, None)

    @property
    def faults(self) -> Mapping[str, str]:
        return {name: reading.fault for name, reading in self._readings.items() if reading.fault}

    def endpoints(self) -> list[Endpoint]:
        """Returns the endpoints in the order of their names. O(n log n).

        An address that a terminating pod still holds and a new one has already is the new one's.
        """
        entries = [endpoint for reading in self._readings.values() for endpoint in reading.endpoints]
        return keep_distinct(sorted(entries, key=_rank))


def _rank(endpoint: Endpoint) -> tuple[bool, str]:
    return not endpoint.is_ready, endpoint.name
