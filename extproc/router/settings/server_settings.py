"""The section `server`: where we listen, and our limits."""

from typing import Final, Literal, Self

from pydantic import Field, model_validator

from extproc.router.settings.sections import HeaderName, Listen, Section

# This machine, and every address of it.
_HERE: Final = frozenset({"127.0.0.1", "[::1]", "0.0.0.0", "[::]", "localhost"})


class TlsSettings(Section):
    """Certificates of the gRPC listener: files, read again when they change, or one that we make."""

    certificate: str | None = None
    """PEM file with the server's certificate chain. Relative paths are from the configuration's folder."""
    key: str | None = None
    """PEM file with its private key."""
    client_ca: str | None = None
    """PEM file with the authorities of client certificates. With it clients need one (mTLS)."""
    self_signed: bool = False
    """Make a certificate at the start, keep it in memory, replace it in time. For gateways that want TLS and
    check no certificate."""

    @model_validator(mode="after")
    def _is_one_of_two(self) -> Self:
        if self.self_signed and self.model_fields_set - {"self_signed"}:
            raise ValueError("self_signed goes with no files")
        if not self.self_signed and (self.certificate is None or self.key is None):
            raise ValueError("give certificate and key, or self_signed: true")
        return self


class ServerSettings(Section):
    """Where we listen, and our limits. A change of this section takes effect with a restart."""

    listen: Listen = "0.0.0.0:9002"
    """The port of ext_proc, gRPC health and xDS: `host:port`, or `unix:/path` for a sidecar."""
    admin: Listen = "127.0.0.1:9090"
    """The admin port (HTTP): a page, /live, /metrics, /healthz, /readyz, /pools, /config, /explain. It has no
    authentication, so the default is for this machine only. In a container: 0.0.0.0 and a
    NetworkPolicy."""
    health: Listen | None = None
    """A second port with gRPC health alone, in plain text. With `tls`, kubelets and load balancers need it
    (upstream's picker: 0.0.0.0:9003). Omitted: health is on `listen` only."""
    max_body_bytes: int = Field(default=50_331_648, ge=1_024, le=1_073_741_824)
    """The largest request body; give Envoy's buffer limit the same size. Why 48 MiB: vLLM takes 25 MiB of
    audio at most, which is 33 MiB as base64. The rest is for the conversation around it."""
    budget_bytes: int | None = Field(default=None, ge=65_536)
    """The most bytes of bodies that are read at a time. A request beyond it is routed without its body.
    Omitted: three times `max_body_bytes`."""
    transport: Literal["native", "grpcio"] = "native"
    """The code for HTTP/2: ours, or grpcio's if ours makes trouble. Both give the same answers."""
    drain_s: float = Field(default=30, ge=0)
    """How long open requests may go on after SIGTERM, seconds."""
    clear_route_cache: bool = False
    """Tell Envoy to choose the route again after our answer: needed if routes match `x-extproc-pool`."""
    xds: bool = False
    """Send Envoy its clusters and endpoints over xDS (ADS), on the port of `listen`."""
    tls: TlsSettings | None = None
    """Certificates for the port of `listen`. Omitted: it is plain text."""
    pass_headers: list[HeaderName] = Field(default=[])
    """Headers of clients that go on to the endpoint. We remove all others that are instructions to a picker:
    `x-gateway-{inference,model,destination}-…`, `x-llm-d-…`, `x-extproc-…`."""
    unseen_s: float = Field(default=10, ge=0)
    """How long a request counts as load, seconds, if the gateway never says that it ended (NGINX Gateway
    Fabric). Take the mean time of your requests: then loads are right on average."""
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    """DEBUG writes one line per request; no level ever writes a prompt."""

    @model_validator(mode="after")
    def _has_ports_of_its_own(self) -> Self:
        taken: dict[str, str] = {}
        for name in ("listen", "admin", "health"):
            place = str(getattr(self, name)).rpartition(":")[2]
            if place in taken and place != "0":
                raise ValueError(f"{taken[place]} and {name} have the same port, {place}")
            taken[place] = name
        return self

    def name_own(self, address: str) -> str | None:
        """The setting whose port this machine's `address` is; `None`: it is none of ours."""
        ip, _, port = address.rpartition(":")
        for name in ("listen", "admin", "health"):
            host, _, own = str(getattr(self, name)).rpartition(":")
            if own == port and (ip == host or (ip in _HERE and host in {*_HERE, ""})):
                return name
        return None

    @property
    def budget(self) -> int:
        return 3 * self.max_body_bytes if self.budget_bytes is None else self.budget_bytes

    @property
    def announced(self) -> int:
        """What proxies may be about to buffer: with its copy on the way here, half the heap of our Envoys."""
        return 4 * self.max_body_bytes
