"""EndpointSlices as the Kubernetes API sends them, and the endpoints that those of a Service add up to. Pure.

Only what we read is declared; everything else in the JSON is skipped. Fields follow the reference
of `discovery.k8s.io/v1` (Kubernetes 1.37).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Literal

from msgspec import Struct

from extproc.errors import AddressError
from extproc.router.cluster.kube_api import ObjectMeta, T
from extproc.router.routing.endpoint import Endpoint, join_address

AddressFamily = Literal["IPv4", "IPv6"]


class EndpointConditions(Struct):
    ready: bool | None = None
    serving: bool | None = None
    terminating: bool | None = None


class ObjectReference(Struct):
    name: str = ""
    namespace: str = ""


class EndpointPort(Struct):
    name: str | None = None
    port: int | None = None
    protocol: str | None = None


class SliceEndpoint(Struct, rename="camel"):
    addresses: list[str]
    conditions: EndpointConditions | None = None
    target_ref: ObjectReference | None = None
    zone: str | None = None


class EndpointSlice(Struct, rename="camel"):
    metadata: ObjectMeta
    address_type: str = ""
    endpoints: list[SliceEndpoint] | None = None
    ports: list[EndpointPort] | None = None


@dataclass(frozen=True, slots=True)
class ObjectReading:
    """What one object says: its endpoints that are ready or draining, and why others are missing.

    `unready` are those that are there, do not terminate and are not ready. `lacks_port` says that
    it has endpoints, and none at the configured port.
    """

    family: str = ""
    endpoints: tuple[Endpoint, ...] = ()
    unready: tuple[Endpoint, ...] = ()
    fault: str | None = None
    lacks_port: bool = False


def read_slice(slice_: EndpointSlice, ports: tuple[int | str, ...]) -> ObjectReading:
    """Reads the endpoints of one slice at each of the ports of these names or numbers."""
    family = slice_.address_type
    if family not in ("IPv4", "IPv6"):
        return ObjectReading(family, fault=f"has addresses of type {family!r}")
    if not slice_.endpoints:
        # A Service without pods keeps one slice, empty, that names no ports.
        return ObjectReading(family)
    found = {port: find_port(slice_.ports or [], port) for port in ports}
    numbers = list(dict.fromkeys(number for number in found.values() if number is not None))
    lacking = [port for port, number in found.items() if number is None]
    why = f"has no TCP port {', '.join(map(repr, lacking))}, only {_describe(slice_.ports or [])}"
    fault = why if lacking else None
    endpoints: list[Endpoint] = []
    unready: list[Endpoint] = []
    for entry in slice_.endpoints:
        conditions = entry.conditions or EndpointConditions()
        ready = read_state(conditions)
        if ready is None and conditions.terminating:
            continue
        try:
            (unready if ready is None else endpoints).extend(
                _read_endpoint(
                    entry,
                    slice_.metadata.namespace,
                    numbers,
                    ready=bool(ready),
                    is_alone=len(ports) == 1,
                )
            )
        except AddressError as error:
            fault = str(error)
    return ObjectReading(family, tuple(endpoints), tuple(unready), fault, lacks_port=not numbers)


def read_state(conditions: EndpointConditions) -> bool | None:
    """Returns whether the endpoint is picked (`True`), draining (`False`) or to be left out (`None`).

    Null `ready` and `serving` are to be read as true, null `terminating` as false (API reference of
    EndpointConditions). `terminating` goes before `ready`: a Service with publishNotReadyAddresses
    calls its terminating pods ready, and they get no new picks all the same.
    """
    if conditions.terminating:
        return False if conditions.serving is not False else None
    return True if conditions.ready is not False else None


def find_port(ports: list[EndpointPort], port: int | str) -> int | None:
    """Returns the TCP port of this name or number, or `None`.

    A number is the container's port. It needs no entry where the slice names no ports at all (a
    headless Service without ports) or has one without a number, which stands for every port.
    """
    tcp = [entry for entry in ports if entry.protocol in (None, "TCP")]
    if isinstance(port, str):
        return next((entry.port for entry in tcp if (entry.name or "") == port), None)
    if not ports or any(entry.port in (None, port) for entry in tcp):
        return port
    return None


def _read_endpoint(
    endpoint: SliceEndpoint, namespace: str, ports: Sequence[int], *, ready: bool, is_alone: bool
) -> Iterator[Endpoint]:
    if not endpoint.addresses:
        return
    target = endpoint.target_ref
    for port in ports:
        # Further addresses have no defined meaning; kube-proxy does not look at them (API
        # reference).
        name = address = join_address(endpoint.addresses[0], port)
        if target and target.name:
            name = name_endpoint(
                target.namespace or namespace, target.name, port, is_alone=is_alone
            )
        yield Endpoint(name=name, address=address, is_ready=ready, zone=endpoint.zone)


def _describe(ports: list[EndpointPort]) -> str:
    return (
        ", ".join(
            f"{port.name or 'unnamed'}={port.port}/{port.protocol or 'TCP'}" for port in ports
        )
        or "none"
    )


def name_endpoint(namespace: str, pod: str, port: int, *, is_alone: bool) -> str:
    """Names the endpoint at `port` of a pod: `namespace/pod`, and `namespace/pod:port` if it has others.

    Several ports of one pod are ranks of one engine (data parallel), each with a cache of its own,
    so each has a place of its own on the ring. A port that is alone needs no number: the pod keeps
    its place whatever kind of source it is known from.
    """
    return f"{namespace}/{pod}" if is_alone else f"{namespace}/{pod}:{port}"


class EndpointBook(Generic[T]):
    """Holds every object and what `read` makes of it; what it lists depends on the final state alone.

    Objects change one at a time, so an endpoint can stand in two of them for a moment, or in one
    per address family for good, and an address that a terminating pod still has can be a new one's.
    `endpoints` has each port of a pod once and each address once: of several entries the preferred
    family's stays, then a ready one, as kube-proxy does it.
    """

    def __init__(self, family: AddressFamily, read: Callable[[T], ObjectReading]) -> None:
        self._family = family
        self._read = read
        self._objects: dict[str, T] = {}
        self._readings: dict[str, ObjectReading] = {}

    def replace(self, objects: Iterable[T]) -> None:
        self._objects, self._readings = {}, {}
        for object_ in objects:
            self.put(object_)

    def put(self, object_: T) -> None:
        name = object_.metadata.name
        self._objects[name], self._readings[name] = object_, self._read(object_)

    def delete(self, object_: T) -> None:
        self._objects.pop(object_.metadata.name, None)
        self._readings.pop(object_.metadata.name, None)

    @property
    def faults(self) -> Mapping[str, str]:
        """Why endpoints are missing, by the names of their objects."""
        return {name: reading.fault for name, reading in self._readings.items() if reading.fault}

    def endpoints(self) -> list[Endpoint]:
        """Returns the endpoints in the order of their names. O(n log n)."""
        return self._merge(
            (each.family, one) for each in self._readings.values() for one in each.endpoints
        )

    def unready(self) -> list[Endpoint]:
        return self._merge(
            (each.family, one) for each in self._readings.values() for one in each.unready
        )

    def _merge(self, entries: Iterable[tuple[str, Endpoint]]) -> list[Endpoint]:
        chosen: dict[str, Endpoint] = {}
        addresses: set[str] = set()
        for _, endpoint in sorted(entries, key=self._rank):
            if endpoint.name not in chosen and endpoint.address not in addresses:
                chosen[endpoint.name] = endpoint
                addresses.add(endpoint.address)
        return [chosen[name] for name in sorted(chosen)]

    def _rank(self, entry: tuple[str, Endpoint]) -> tuple[bool, bool, str, str, str]:
        family, endpoint = entry
        is_other = family != self._family
        return is_other, not endpoint.is_ready, endpoint.name, endpoint.address, endpoint.zone or ""


class SliceBook(EndpointBook[EndpointSlice]):
    """The EndpointSlices of one Service."""

    def __init__(self, ports: tuple[int | str, ...], *, family: AddressFamily = "IPv4") -> None:
        super().__init__(family, lambda slice_: read_slice(slice_, ports))

    @property
    def is_missing(self) -> bool:
        """Whether there is no slice at all: a Service with a selector has one even without a pod."""
        return not self._readings

    @property
    def portless(self) -> str | None:
        """What a slice says of its ports where all pods are at others than ours; `None` if some are not."""
        readings = self._readings.values()
        if any(reading.endpoints for reading in readings):
            return None
        return next((reading.fault for reading in readings if reading.lacks_port), None)
