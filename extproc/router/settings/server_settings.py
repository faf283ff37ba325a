"""The section `server`: where we listen, and our limits."""

from typing import Literal, Self

from pydantic import Field, model_validator

from extproc.router.settings.sections import HeaderName, Listen, Section


class TlsSettings(Section):
    """Certificates of the gRPC listener: files, read again when they change, or one of our own."""

    certificate: str | None = None
    """PEM file with the server's certificate chain."""
    key: str | None = None
    """PEM file with its private key."""
    client_ca: str | None = None
    """PEM file with the authorities of client certificates; given, a client must have one (mTLS)."""
    self_signed: bool = False
    """A certificate made at start, kept in memory and replaced in time, for gateways that want TLS and check
    no certificate."""

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
    """ext_proc, gRPC health and xDS: `host:port`, or `unix:/path` for a sidecar."""
    admin: Listen = "127.0.0.1:9090"
    """A page, /live, /metrics, /healthz, /readyz, /pools, /config and /explain over HTTP, without
    authentication, so the default is this machine alone. In a container 0.0.0.0, and a network policy."""
    health: Listen | None = None
    """gRPC health alone, always plain text: for kubelets and load balancers where `tls` is set (upstream's
    picker: 0.0.0.0:9003). Omitted: on `listen` only."""
    max_body_bytes: int = Field(default=50_331_648, ge=1_024, le=1_073_741_824)
    """The largest request body; Envoy's buffer limit should be the same. 48 MiB: audio of 25 MiB, the most
    that vLLM takes, is 33 MiB as base64, and there is room for the conversation around it."""
    budget_bytes: int | None = Field(default=None, ge=65_536)
    """What all bodies on their way may hold at once; a request beyond it is routed without its body.
    Omitted: three of the largest."""
    transport: Literal["native", "grpcio"] = "native"
    """Our own HTTP/2, or grpcio's: the reference, and the way back. Both answer alike."""
    drain_s: float = Field(default=30, ge=0)
    """How long open requests may go on after SIGTERM, seconds."""
    clear_route_cache: bool = False
    """Tell Envoy to choose the route again after ours; needed where routes match `x-extproc-pool`."""
    xds: bool = False
    """Serve clusters and endpoints to Envoy over xDS (ADS), on the same port."""
    tls: TlsSettings | None = None
    """Certificates for the gRPC listener; omitted, it speaks plain text."""
    pass_headers: list[HeaderName] = Field(default=[])
    """Headers of clients that go on to the endpoint although they instruct a picker, as all that begin
    with `x-gateway-inference-`, `x-gateway-model-`, `x-gateway-destination-`, `x-llm-d-` or `x-extproc-`."""
    unseen_s: float = Field(default=10, ge=0)
    """How long a request counts, seconds, where a gateway never sends its response (NGINX Gateway Fabric).
    The mean time of your requests makes the loads right on average."""
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    """DEBUG writes one line per request; no level ever writes a prompt."""

    @property
    def budget(self) -> int:
        return 3 * self.max_body_bytes if self.budget_bytes is None else self.budget_bytes

    @property
    def announced(self) -> int:
        """What proxies may be about to buffer: with its copy on the way here, half the heap of our Envoys."""
        return 4 * self.max_body_bytes
