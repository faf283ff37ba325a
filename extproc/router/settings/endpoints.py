"""Where a pool's endpoints come from: this section of the configuration."""

from typing import Annotated, Literal, Self

from pydantic import (
    Field,
    ValidationError,
    ValidatorFunctionWrapHandler,
    field_validator,
    model_validator,
)

from extproc.errors import AddressError
from extproc.router.routing.endpoint import parse_address, parse_target
from extproc.router.settings.sections import HostPort, KubeName, Name, OneOf, Section

PortNumber = Annotated[int, Field(ge=1, le=65_535)]


class ServiceSettings(Section):
    """The EndpointSlices of a Service, in the cluster that we run in."""

    service: KubeName = Field(description="The Service's name; headless or not.")
    port: Name | PortNumber | Annotated[list[Name | PortNumber], Field(min_length=1, max_length=8)]
    """The port's name or number in the EndpointSlices (the container's port, not the Service's). Give a list
    if a Pod serves at several ports, as data-parallel ranks do. Each is then an endpoint of its
    own."""

    @field_validator("port", mode="wrap")
    @classmethod
    def _is_port(cls, given: object, read: ValidatorFunctionWrapHandler) -> object:
        try:
            return read(given)
        except ValidationError:  # one line for each kind that it could be
            text = "is no port: a number from 1 to 65535, a name, or a list of up to 8 of these"
            raise ValueError(f"{given!r} {text}") from None

    @model_validator(mode="after")
    def _are_ports(self) -> Self:
        if len(set(self.ports)) < len(self.ports):
            raise ValueError("a port is given twice")
        if any(isinstance(port, str) and port.isdigit() for port in self.ports):
            raise ValueError("a port's number goes without quotes")
        return self

    @property
    def ports(self) -> tuple[int | str, ...]:
        return tuple(self.port) if isinstance(self.port, list) else (self.port,)


class _ClusterSection(Section):
    """How a Kubernetes cluster is reached, and where in it."""

    namespace: KubeName | None = None
    """Omitted: the namespace of the service's own Pod; outside a cluster `default`."""
    kubeconfig: str | None = None
    """Path of a kubeconfig file; omitted: the Pod's service account, else ~/.kube/config."""
    address_family: Literal["IPv4", "IPv6"] = "IPv4"
    """Which address of a dual-stack Pod is used. If a Pod lacks it, the other one is used."""


class KubernetesSettings(ServiceSettings, _ClusterSection):
    """The EndpointSlices of a Service."""


class InferencePoolSettings(_ClusterSection):
    """The InferencePool of a gateway: its pods, at all of its ports."""

    name: Name = Field(description="The InferencePool's name.")


class _AddressSettings(OneOf):
    """Where addresses come from: exactly one of these."""

    static: list[str] | None = None
    """`ip:port` each; an IPv6 address in brackets."""
    file: Annotated[str, Field(min_length=1)] | None = None
    """A watched YAML file: a list of {name, address, port}. Relative to the configuration file."""
    dns: HostPort | None = None
    """`name:port`, such as a headless Service's: every address of this name is an endpoint. We ask a name
    server and do not read /etc/hosts."""

    @field_validator("static")
    @classmethod
    def _are_addresses(cls, static: list[str] | None) -> list[str] | None:
        try:
            addresses = [parse_address(text) for text in static or []]
        except AddressError as error:
            hint = "; a name goes with `dns:`" if "is not an IP address" in str(error) else ""
            raise ValueError(f"{error}{hint}") from None
        if len(set(addresses)) < len(addresses):
            raise ValueError("an address is given twice")
        return static and addresses

    @field_validator("dns")
    @classmethod
    def _is_target(cls, dns: str | None) -> str | None:
        if dns is not None:
            parse_target(dns)
        return dns


class EndpointsSettings(_AddressSettings):
    """Where a pool's endpoints come from: exactly one of these."""

    kubernetes: KubernetesSettings | None = None
    """The EndpointSlices of a Service, watched."""
    inference_pool: InferencePoolSettings | None = None
    """The Pods of an InferencePool (Gateway API Inference Extension). Both are watched."""

    @property
    def kind(self) -> str:
        [kind] = self.model_fields_set
        return kind

    def describe(self) -> str:
        source = getattr(self, self.kind)
        if isinstance(source, list):
            return f"{len(source)} static endpoints"
        return f"{self.kind} {getattr(source, 'service', None) or getattr(source, 'name', source)}"

    @property
    def lists_health(self) -> bool:
        """Whether the list is of endpoints that somebody has found healthy: the kubelet."""
        return self.kubernetes is not None or self.inference_pool is not None


class PeersSettings(_AddressSettings):
    """Where the gateways of a mesh come from: exactly one of these."""

    kubernetes: ServiceSettings | None = None
    """The EndpointSlices of a headless Service of their own, watched."""

    def endpoints(self) -> EndpointsSettings:
        """Says the same as a pool's endpoints."""
        return EndpointsSettings.model_validate(self.model_dump(exclude_unset=True))
