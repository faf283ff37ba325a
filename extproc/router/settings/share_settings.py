"""How gateways share their picks, as the configuration says it."""

from typing import Annotated, Self

from pydantic import Field, StringConstraints, model_validator

from extproc.router.settings.endpoints import PeersSettings
from extproc.router.settings.sections import Listen, Name, SecretSettings, Section


class MeshSettings(Section):
    """Every gateway has a connection to every other one."""

    listen: Listen = "0.0.0.0:9004"
    """The port for the other gateways, `host:port`."""
    peers: PeersSettings
    """Where the gateways' addresses come from; this gateway may be among them. In Kubernetes use a headless
    Service of their own."""

    @model_validator(mode="after")
    def _are_gateways(self) -> Self:
        if self.listen.startswith("unix:"):
            raise ValueError("the others cannot reach a unix socket")
        return self


class NatsSettings(Section):
    """A NATS server that brings each letter to all others (extra `nats`)."""

    servers: list[Annotated[str, StringConstraints(pattern=r"^(nats|tls)://[^\s@/]+$")]] = Field(
        min_length=1
    )
    """`nats://host:port` each, or `tls://…`."""
    credentials: str | None = None
    """A file with a user's JWT and seed (`.creds`). Relative to the configuration file."""
    user: str | None = None
    """The user name at the server. Give `password`, too."""
    password: SecretSettings | None = None
    """Where that user's password is, as `secret`."""
    ca: str | None = None
    """PEM file with the authorities of the servers' certificates; omitted, with `tls://`: the system's."""

    @model_validator(mode="after")
    def _has_both(self) -> Self:
        if (self.user is None) != (self.password is None):
            raise ValueError("user and password go together")
        return self


class ShareSettings(Section):
    """Exchange of picks with other gateways. A change takes effect with a restart."""

    cluster: Name
    """Gateways with the same name and secret share their picks. Messages of others are ignored."""
    secret: SecretSettings
    """16 bytes or more that nobody can guess, the same for all gateways. It encrypts their messages."""
    mesh: MeshSettings | None = None
    """Direct connections, without a broker. For up to about a dozen gateways."""
    nats: NatsSettings | None = None
    """A NATS server. For many gateways."""

    @model_validator(mode="after")
    def _has_a_carrier(self) -> Self:
        if (self.mesh is None) == (self.nats is None):
            raise ValueError("give exactly one of mesh, nats")
        return self
