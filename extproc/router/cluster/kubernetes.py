"""A pool's endpoints from the EndpointSlices of a Service."""

from collections.abc import Mapping, Sequence

from extproc.router.cluster.debounce import DebouncedSink, EndpointView
from extproc.router.cluster.kube_api import Resource, WatchLost
from extproc.router.cluster.listwatch import KubeAccess, ListWatch
from extproc.router.cluster.slices import AddressFamily, EndpointSlice, SliceBook
from extproc.router.cluster.source import Sink, SourceFault
from extproc.router.routing.endpoint import Endpoint


class KubernetesSource(EndpointView):
    """Tells the endpoints of one Service as its EndpointSlices change.

    `ports` are names or numbers of ports in the slices (the container's ports). Changes are passed
    on `settle_s` after the first of them, since pods move from one slice to another.
    """

    def __init__(
        self,
        access: KubeAccess,
        namespace: str,
        service: str,
        ports: tuple[int | str, ...],
        *,
        family: AddressFamily = "IPv4",
        settle_s: float = 0.1,
    ) -> None:
        self._service = f"{namespace}/{service}"
        self._book = SliceBook(ports, family=family)
        self._settle_s = settle_s
        selector = f"kubernetes.io/service-name={service}"
        slices = Resource(
            "discovery.k8s.io/v1", namespace, "endpointslices", EndpointSlice, selector
        )
        self._slices = ListWatch(access, slices)

    async def run(self, sink: Sink) -> None:
        self._sink = DebouncedSink(sink, self, self._settle_s)
        try:
            await self._slices.run(self)
        finally:
            self._sink.close()

    def listed(self, objects: Sequence[EndpointSlice]) -> None:
        self._book.replace(objects)
        self._sink.listed()

    def put(self, object_: EndpointSlice) -> None:
        self._book.put(object_)
        self._sink.changed()

    def deleted(self, object_: EndpointSlice) -> None:
        self._book.delete(object_)
        self._sink.changed()

    def confirmed(self) -> None:
        self._sink.confirm()

    def lost(self, lost: WatchLost) -> None:
        self._sink.restarted(lost.why, lost.reason)

    def endpoints(self) -> list[Endpoint]:
        return self._book.endpoints()

    def unready(self) -> list[Endpoint]:
        return self._book.unready()

    def missing(self) -> SourceFault | None:
        if self._book.is_missing:
            return SourceFault(
                "no_service",
                f"Service {self._service} has no EndpointSlice: is there such a Service?",
            )
        if self._book.portless:
            return SourceFault(
                "no_port", f"Service {self._service}: every EndpointSlice {self._book.portless}"
            )
        return None

    def remarks(self) -> Mapping[str, str]:
        return {f"EndpointSlice {name}": fault for name, fault in self._book.faults.items()}
