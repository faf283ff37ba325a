"""What a call's header block costs: the same bytes again, and Envoy's while it traces, each with its own id.

Blocks as Envoy 1.40 writes them to a decoder without a table, every string Huffman-coded. `with a table` is
what it writes to one with 4,096 bytes: each id is an entry, so no block is like another.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle

from hpack import Encoder
from hpack.hpack import encode_integer
from hpack.huffman_table import decode_huffman

from extproc.router.wire.headers import HeadReader
from extproc.router.wire.limits import WireLimits
from tests.benchmarks.report import Row, report, time_us

Field = tuple[str, str]
BLOCKS = 8_000
PATH = "/envoy.service.ext_proc.v3.ExternalProcessor/Process"
FRONT = (
    *((":method", "POST"), (":path", PATH), (":authority", "extproc"), (":scheme", "http")),
    *(("te", "trailers"), ("content-type", "application/grpc")),
)
BACK = (("x-envoy-internal", "true"), ("x-forwarded-for", "192.0.2.2"))
STATIC = {(":method", "POST"): b"\x83", (":scheme", "http"): b"\x86"}
NAMED = {":path": 4, ":authority": 1, "content-type": 31}


def traced(rng: random.Random, state: str = "") -> list[Field]:
    parent = f"00-{rng.getrandbits(128):032x}-{rng.getrandbits(64):016x}-00"
    return [*FRONT, ("traceparent", parent), ("tracestate", state), *BACK]


def string(text: str) -> bytes:
    coded = Encoder().huffman_coder.encode(text.encode())
    return bytes((0x80 | len(coded),)) + coded if coded else b"\x00"


def without_table(fields: Sequence[Field]) -> bytes:
    """Every field that the static table has not is a literal that is not indexed (RFC 7541 §6.2.2)."""
    parts = []
    for name, value in fields:
        number = NAMED.get(name, 0)
        named = bytes(encode_integer(number, 4)) if number else b"\x00" + string(name)
        parts.append(STATIC.get((name, value), named + string(value)))
    return b"".join(parts)


def reading(blocks: Sequence[bytes], *, has_table: bool = False) -> Callable[[], object]:
    reader, each = HeadReader(WireLimits().header_bytes), cycle(blocks)
    if not has_table:
        reader.read(b"\x20" + blocks[0])  # the first one after our SETTINGS says that there is none
    return lambda: reader.read(next(each))


def indexed(all_fields: Sequence[Sequence[Field]]) -> Iterator[bytes]:
    encoder = Encoder()
    for fields in all_fields:
        yield encoder.encode(fields)


def main() -> None:
    rng = random.Random(1)
    calls = [traced(rng) for _ in range(BLOCKS)]
    blocks = [*map(without_table, calls)]
    states = [without_table(traced(rng, f"dd=s:1;p:{rng.getrandbits(64):016x}")) for _ in range(BLOCKS)]
    plain = without_table([*FRONT, *BACK])
    parent = string(calls[0][len(FRONT)][1])[1:]
    arms: dict[str, Callable[[], object]] = {
        "the same block again": reading([plain]),
        "traceparent of its own": reading(blocks),
        "tracestate of its own, too": reading(states),
        "with a table": reading([*indexed(calls)], has_table=True),
        "the Huffman code of a traceparent": lambda: decode_huffman(parent),
    }
    rows = [Row(name, time_us(once), "µs") for name, once in arms.items()]
    report("blocks", rows, reference=rows[0].name)


if __name__ == "__main__":
    main()
