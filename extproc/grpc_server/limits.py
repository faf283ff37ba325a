"""What a peer may cost us. Every bound has a test; the reasons stand beside the numbers."""

from msgspec import Struct


class WireLimits(Struct, frozen=True):
    """Bounds of the listener and of each of its connections.

    A bound that an honest proxy could reach costs it as little as possible: a refused stream, a
    skipped message. Only what no honest peer does ends a connection, for that ends everybody's
    requests on it.
    """

    connections: int = 1_024
    """An Envoy opens one per worker thread; more than this at once is somebody else."""
    streams: int = 10_000
    """Open at once on one connection, each a request in flight. A further one is REFUSED_STREAM."""
    all_streams: int = 50_000
    """Open at once on all connections together, 1.2 kB each; beyond it each connection has an equal share."""
    message_bytes: int = 51_380_224
    """Longest message: a body and its framing. A longer one is refused by its length, unread."""
    header_bytes: int = 16_384
    """Of one header block, encoded and decoded: gRPC's own customary limit. Envoy sends a few hundred."""
    continuations: int = 8
    """CONTINUATION frames of one header block (CVE-2024-27316 and its kin): 16 KB need none."""
    early_resets_per_s: int = 5_000
    """Streams reset before they were answered (CVE-2023-44487). Higher than what a proxy does whose own
    timeouts all end at once."""
    control_frames_per_s: int = 20_000
    """SETTINGS, PING, PRIORITY, WINDOW_UPDATE, RST_STREAM, unknown frames and empty DATA (CVE-2019-9512
    to 9518). A busy grpc-go client pings once a round trip."""
    preface_s: float = 10.0
    """From the connection, through its TLS handshake, to the client's preface and SETTINGS."""
    handshakes_per_s: float = 50.0
    """TLS handshakes that begin in a second, 5.4 ms of the loop each: a quarter of its time at most. Who says
    nothing begins none."""
    handshakes: int = 100
    """That may begin at once: a gateway opens a connection per worker thread when we start."""
    stalled_s: float = 30.0
    """How long a stream may owe the rest of a message, or its first one, or a window for what we send."""
    idle_s: float = 20.0
    """Silence after which we send a PING, to see whether the peer still lives."""
    answer_s: float = 10.0
    """Time to answer that PING; and to read again, for a peer that stopped reading what we send."""
    tick_s: float = 1.0
    """How often the times above are looked at."""
    stream_window_bytes: int = 262_144
    """What a stream may send before we take it in: most bodies never wait for a WINDOW_UPDATE, and other
    streams of the connection never wait for more of a long body than this."""
    connection_window_bytes: int = 16_777_216
