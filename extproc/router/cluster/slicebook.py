"""The EndpointSlices of one Service, and the one list of endpoints they add up to. Pure."""

from collections.abc import Iterable, Mapping

from extproc.router.cluster.slices import (
    AddressFamily,
    EndpointSlice,
    SliceReading,
    keep_distinct,
    read_slice,
)
from extproc.router.routing.endpoint import Endpoint


class SliceBook:
    """Holds the last reading of every slice; what it lists depends on the final state alone.

    Slices change one at a time, so an endpoint can stand in two of them for a moment, or in one per
    address family for good. `endpoints` has each port of a pod once and each address once: of several
    entries the preferred family's stays, then a ready one, as kube-proxy does it.
    """

    def __init__(self, ports: tuple[int | str, ...], *, family: AddressFamily = "IPv4") -> None:
        self._ports = ports
        self._family = family
        self._readings: dict[str, SliceReading] = {}

    def replace(self, slices: Iterable[EndpointSlice]) -> None:
        self._readings = {slice_.metadata.name: read_slice(slice_, self._ports) for slice_ in slices}

    def put(self, slice_: EndpointSlice) -> None:
        self._readings[slice_.metadata.name] = read_slice(slice_, self._ports)

    def delete(self, slice_: EndpointSlice) -> None:
        self._readings.pop(slice_.metadata.name, None)

    @property
    def faults(self) -> Mapping[str, str]:
        """Why endpoints are missing, by the names of their slices."""
        return {name: reading.fault for name, reading in self._readings.items() if reading.fault}

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

    def endpoints(self) -> list[Endpoint]:
        """Returns the endpoints in the order of their names. O(n log n)."""
        entries = [
            (reading.family, entry) for reading in self._readings.values() for entry in reading.endpoints
        ]
        return keep_distinct(endpoint for _, endpoint in sorted(entries, key=self._rank))

    def _rank(self, entry: tuple[str, Endpoint]) -> tuple[bool, bool, str, str, str]:
        family, endpoint = entry
        is_other = family != self._family
        return is_other, not endpoint.is_ready, endpoint.name, endpoint.address, endpoint.zone or ""
