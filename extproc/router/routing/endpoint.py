"""Endpoints and their addresses."""

from dataclasses import dataclass, field
from ipaddress import ip_address

from extproc.errors import AddressError


@dataclass(frozen=True, slots=True)
class ModelCard:
    """What an engine's `/v1/models` says of one model; an adapter has a `parent`.

    `created` is the time of the answer in vLLM, so it makes no other card.
    """

    id: str
    root: str | None = None
    parent: str | None = None
    max_model_len: int | None = None
    created: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One `ip:port` that serves a model.

    `name` is the identity that places the endpoint on the ring: `namespace/pod`, a configured name,
    or the address. It survives a change of address, so a restarted pod of a StatefulSet keeps its
    keys. `address` is canonical: `10.0.0.1:8000` or `[fd00::1]:8000`. An endpoint that is not ready
    is draining: it finishes what it has and gets no new picks.
    `cards` describe its `models` and `adapters`. One that computes prompts does so for those with the same
    `revision`.
    """

    name: str
    address: str
    is_ready: bool = True
    zone: str | None = None
    models: frozenset[str] = frozenset()
    adapters: frozenset[str] = frozenset()
    cards: frozenset[ModelCard] = frozenset()
    revision: str = ""

    @property
    def ip(self) -> str:
        return self.address.rpartition(":")[0].strip("[]")

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])


def check_name(name: str) -> str:
    """Returns `name`; raises `AddressError` if it holds NUL, which on the ring ends a name."""
    if "\0" in name:
        raise AddressError(f"{name!r} holds NUL: no name for an endpoint")
    return name


def join_address(ip: str, port: int) -> str:
    """Builds the canonical `ip:port`; an IPv6 address gets brackets (EPP 1.0.0).

    Raises `AddressError` if `ip` is not an IP address (a name belongs into a DNS source) or the
    port is out of range.
    """
    try:
        parsed = ip_address(ip)
    except ValueError:
        raise AddressError(f"{ip!r} is not an IP address") from None
    if not 0 < port < 65536:
        raise AddressError(f"{port} is not a port")
    return f"[{parsed}]:{port}" if parsed.version == 6 else f"{parsed}:{port}"


def parse_address(text: str) -> str:
    """Returns the canonical form of `ip:port` or `[ipv6]:port`; raises `AddressError`."""
    ip, colon, port = text.strip().rpartition(":")
    if "://" in text:
        raise AddressError(f"{text!r}: leave out {text.partition('://')[0]}://")
    if not colon or not (port.isascii() and port.isdigit()) or len(port) > 5:
        raise AddressError(f"{text!r} is not ip:port")
    bracketed = ip.startswith("[") and ip.endswith("]")
    if bracketed != (":" in ip):
        raise AddressError(f"{text!r}: write an IPv6 address as [address]:port")
    return join_address(ip[1:-1] if bracketed else ip, int(port))


def parse_target(text: str) -> tuple[str, int]:
    """Splits `name:port`; raises `AddressError`, also for an address, which needs no name server."""
    name, _, port = text.strip().rpartition(":")
    is_number = port.isascii() and port.isdigit() and len(port) <= 5
    if not name or ":" in name or not (is_number and 0 < int(port) < 65536):
        raise AddressError(f"{text!r} is not name:port")
    try:
        ip_address(name)
    except ValueError:
        return name, int(port)
    raise AddressError(f"{text!r} is an address, not a name: give it as static")


def canonical_location(text: str) -> str:
    """The one spelling of `ip:port` or of a bare `ip`, brackets or not; other texts stay as they are."""
    try:
        return parse_address(text)
    except AddressError:
        pass
    try:
        return str(ip_address(text.strip("[]")))
    except ValueError:
        return text
