"""Pods as the Kubernetes API sends them, and the endpoints that they are. Pure.

Only what we read is declared; everything else in the JSON, most of a pod, is skipped. Fields follow
the reference of the core API (Kubernetes 1.37).
"""

from collections.abc import Callable

from msgspec import Struct, field

from extproc.errors import AddressError
from extproc.router.cluster.kube_api import ObjectMeta
from extproc.router.cluster.slices import AddressFamily, EndpointBook, ObjectReading, name_endpoint
from extproc.router.routing.endpoint import Endpoint, join_address

# `gc=False`: they are trees, of which there may be thousands for the garbage collector to walk.

# Copied from the node since Kubernetes 1.35 (KEP 4742); an EndpointSlice has it as `zone`.
ZONE_LABEL = "topology.kubernetes.io/zone"


# llm-d's: `prefill`, `decode`, `prefill-decode` (once `both`), `encode` and more. A Pod without it decodes.
ROLE_LABEL = "llm-d.ai/role"


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


def has_role(pod: Pod, *, prefills: bool) -> bool:
    """Whether a pod may answer requests or, with `prefills`, compute prompts for others."""
    role = (pod.metadata.labels or {}).get(ROLE_LABEL, "decode")
    return role == "both" or ("prefill" if prefills else "decode") in role.split("-")


def read_pod(
    pod: Pod, ports: tuple[int, ...], family: AddressFamily, match_label: str = ""
) -> ObjectReading:
    """Reads the endpoints of one pod: Running, Ready and with an address, else there are none.

    A pod that terminates and is still Ready is draining, as an EndpointSlice's `serving` and
    `terminating` say it: it gets no picks and finishes what it has.
    """
    address = _address(pod.status, family)
    is_ready = any(
        one.type == "Ready" and one.status == "True" for one in pod.status.conditions or ()
    )
    is_going = pod.metadata.deletion_timestamp is not None
    if pod.status.phase != "Running" or not address or (is_going and not is_ready):
        return ObjectReading()
    try:
        found = tuple(
            _endpoint(pod, address, port, match_label, is_alone=len(ports) == 1) for port in ports
        )
    except AddressError as error:
        return ObjectReading(fault=f"is left out: {error}")
    return ObjectReading(endpoints=found) if is_ready else ObjectReading(unready=found)


def _endpoint(pod: Pod, address: str, port: int, match_label: str, *, is_alone: bool) -> Endpoint:
    labels = pod.metadata.labels or {}
    return Endpoint(
        name=name_endpoint(pod.metadata.namespace, pod.metadata.name, port, is_alone=is_alone),
        address=join_address(address, port),
        is_ready=pod.metadata.deletion_timestamp is None,
        zone=labels.get(ZONE_LABEL),
        revision=labels.get(match_label, ""),
    )


def _address(status: PodStatus, family: AddressFamily) -> str:
    """The address of the preferred family, else the other's; `podIP` is the first of `podIPs`."""
    addresses = [entry.ip for entry in status.pod_ips or () if entry.ip]
    preferred = (ip for ip in addresses if (":" in ip) == (family == "IPv6"))
    return next(preferred, status.pod_ip or next(iter(addresses), ""))


class PodBook(EndpointBook[Pod]):
    """The pods that a selector chose, and that have the role that is wanted; `match_label` has their revision."""

    def __init__(
        self,
        ports: tuple[int, ...],
        *,
        family: AddressFamily = "IPv4",
        prefills: bool = False,
        match_label: str = "",
    ) -> None:
        self._prefills, self._match_label = prefills, match_label
        super().__init__(family, self._reader(ports))

    def use_ports(self, ports: tuple[int, ...]) -> None:
        self._read = self._reader(ports)
        self.replace(list(self._objects.values()))

    def _reader(self, ports: tuple[int, ...]) -> Callable[[Pod], ObjectReading]:
        def read(pod: Pod) -> ObjectReading:
            if not has_role(pod, prefills=self._prefills):
                return ObjectReading()
            return read_pod(pod, ports, self._family, self._match_label)

        return read
