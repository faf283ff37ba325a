"""Discovery messages with their nested messages left as bytes.

On the wire a nested message is a length and its bytes, as a `bytes` field is. So what is already
serialised is embedded as it is, and what nobody reads (Envoy's description of itself, 80 kB, 24 ms)
is not parsed. Field numbers are those of the Envoy API v3; tests compare with envoy-data-plane.
"""

# ruff: noqa: RUF009  # betterproto2's `field` makes dataclass fields

from dataclasses import dataclass
from typing import Final

import betterproto2
import pydantic.dataclasses
from betterproto2 import TYPE_BYTES, TYPE_MESSAGE, TYPE_STRING, field

from extproc.errors import ProtocolError

# Envoy's description of itself, some names. A name takes 2 µs to read, and an empty one two bytes.
_MOST_BYTES: Final = 262_144


@pydantic.dataclasses.dataclass(frozen=True, slots=True)
class Request:
    """What a client says about one type: what it wants, and what it thinks of the last answer.

    `nonce` is empty in the first request of a stream. `fault` is the client's reason for refusing
    the answer with that nonce; `None` accepts it.
    """

    type_url: str
    names: tuple[str, ...] = ()
    nonce: str = ""
    fault: str | None = None


@dataclass(eq=False, repr=False)
class WireStatus(betterproto2.Message):
    """The fields that we read of a google.rpc.Status."""

    message: str = field(2, TYPE_STRING)


@dataclass(eq=False, repr=False)
class WireRequest(betterproto2.Message):
    """The fields that we read of a DiscoveryRequest."""

    resource_names: list[str] = field(3, TYPE_STRING, repeated=True)
    type_url: str = field(4, TYPE_STRING)
    response_nonce: str = field(5, TYPE_STRING)
    error_detail: WireStatus | None = field(6, TYPE_MESSAGE, optional=True)


@dataclass(eq=False, repr=False)
class WireResponse(betterproto2.Message):
    """A DiscoveryResponse; each resource is a serialised google.protobuf.Any."""

    version_info: str = field(1, TYPE_STRING)
    resources: list[bytes] = field(2, TYPE_BYTES, repeated=True)
    type_url: str = field(4, TYPE_STRING)
    nonce: str = field(5, TYPE_STRING)


@dataclass(eq=False, repr=False)
class WireLocality(betterproto2.Message):
    """A LocalityLbEndpoints without a name; each entry is a serialised LbEndpoint."""

    lb_endpoints: list[bytes] = field(2, TYPE_BYTES, repeated=True)


@dataclass(eq=False, repr=False)
class WireAssignment(betterproto2.Message):
    """A ClusterLoadAssignment; each entry is a serialised LocalityLbEndpoints."""

    cluster_name: str = field(1, TYPE_STRING)
    endpoints: list[bytes] = field(2, TYPE_BYTES, repeated=True)


def decode_request(data: bytes) -> Request:
    """Parses a DiscoveryRequest; raises `ProtocolError` if the bytes are none, or more than `_MOST_BYTES`."""
    if len(data) > _MOST_BYTES:
        raise ProtocolError("a DiscoveryRequest that is too large")
    try:
        wire = WireRequest.parse(data)
        fault = wire.error_detail.message if wire.error_detail else None
        # The parser takes wire types as they come; the value's own validation refuses wrong ones.
        return Request(wire.type_url, tuple(wire.resource_names), wire.response_nonce, fault)
    except (ValueError, TypeError, AttributeError, EOFError, LookupError, ArithmeticError) as error:
        raise ProtocolError(f"not a DiscoveryRequest: {type(error).__name__}") from None
