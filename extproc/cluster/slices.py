"""EndpointSlices as the Kubernetes API sends them, and what one slice says. Pure.

Only what we read is declared; everything else in the JSON is skipped. Fields follow the reference of
`discovery.k8s.io/v1` (Kubernetes 1.37).
"""

from dataclasses import dataclass
from typing import Literal

from msgspec import Struct

from extproc.cluster.kube_api import ObjectMeta
from extproc.errors import AddressError
from extproc.routing.endpoint import Endpoint, join_address

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
class Reading:
    """What one slice says: its endpoints that are ready or draining, and why others are missing.

    `lacks_port` says that it has endpoints, and none at the port that was asked for.
    """

    family: str
    endpoints: tuple[Endpoint, ...] = ()
    fault: str | None = None
    lacks_port: bool = False


def read_slice(slice_: EndpointSlice, port: int | str) -> Reading:
    """Reads the endpoints of one slice at the port of that name or number."""
    family = slice_.address_type
    if family not in ("IPv4", "IPv6"):
        return Reading(family, fault=f"has addresses of type {family!r}")
    number = find_port(slice_.ports or [], port)
    if number is None:
        return _read_other_port(slice_, port)
    endpoints, fault = [], None
    for entry in slice_.endpoints or ():
        try:
            endpoint = _read_endpoint(entry, slice_.metadata.namespace, number)
        except AddressError as error:
            fault = str(error)
        else:
            endpoints += [endpoint] if endpoint else []
    return Reading(family, tuple(endpoints), fault)


def _read_other_port(slice_: EndpointSlice, port: int | str) -> Reading:
    if not slice_.endpoints:
        # A Service without pods keeps one slice, empty, that names no ports.
        return Reading(slice_.address_type)
    fault = f"has no TCP port {port!r}, only {_describe(slice_.ports or [])}"
    return Reading(slice_.address_type, fault=fault, lacks_port=True)


def is_ready(conditions: EndpointConditions) -> bool | None:
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


def _read_endpoint(endpoint: SliceEndpoint, namespace: str, port: int) -> Endpoint | None:
    ready = is_ready(endpoint.conditions or EndpointConditions())
    if ready is None or not endpoint.addresses:
        return None
    # Further addresses have no defined meaning; kube-proxy does not look at them (API reference).
    address = join_address(endpoint.addresses[0], port)
    target = endpoint.target_ref
    name = f"{target.namespace or namespace}/{target.name}" if target and target.name else address
    return Endpoint(name=name, address=address, is_ready=ready, zone=endpoint.zone)


def _describe(ports: list[EndpointPort]) -> str:
    return (
        ", ".join(f"{port.name or 'unnamed'}={port.port}/{port.protocol or 'TCP'}" for port in ports)
        or "none"
    )
