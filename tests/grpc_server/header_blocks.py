"""Header blocks byte by byte, and our reader of them beside `hpack` without a cache."""

from functools import cache
from typing import Final

from hpack import Decoder, HPACKError
from hpack.hpack import decode_integer, encode_integer
from hpack.huffman import HuffmanEncoder
from hpack.huffman_constants import REQUEST_CODES, REQUEST_CODES_LENGTH

from extproc.grpc_server.headers import Head, HeadReader, MalformedRequest, read_head
from tests.reach import reach

MAX_BYTES: Final = 16_384


@cache
def huffman(text: bytes) -> bytes:
    return HuffmanEncoder(REQUEST_CODES, REQUEST_CODES_LENGTH).encode(text)


def string(text: bytes, *, is_huffman: bool = True) -> bytes:
    coded = huffman(text) if is_huffman else text
    size = encode_integer(len(coded), 7)
    size[0] |= 0x80 if is_huffman else 0
    return bytes(size) + coded


def literal(name: bytes, value: bytes, prefix: int = 0x00, *, is_huffman: bool = False) -> bytes:
    """A literal with a new name: 0x00 without indexing, 0x10 never indexed, 0x40 to be indexed."""
    return (
        bytes((prefix,))
        + string(name, is_huffman=is_huffman)
        + string(value, is_huffman=is_huffman)
    )


def huffman_valued(name: bytes, coded: bytes) -> bytes:
    """A field whose value looks so when it is Huffman-coded. What looks like a trace is `02ccQaceparent…`."""
    size = encode_integer(len(coded), 7)
    size[0] |= 0x80
    return b"\x00" + string(name, is_huffman=False) + bytes(size) + coded


def size_update(size: int) -> bytes:
    encoded = encode_integer(size, 5)
    encoded[0] |= 0x20
    return bytes(encoded)


def starts_with_sizes(block: bytes, count: int) -> bool:
    """Whether so many changes of the table's size stand before anything else (RFC 7541 §4.2, §6.3)."""
    for _ in range(count):
        if not block or block[0] & 0xE0 != 0x20:
            return False
        try:
            block = block[decode_integer(block, 5)[1] :]
        except HPACKError:
            return False
    return True


def plainly_read(decoder: Decoder, block: bytes) -> Head | str:
    """What a decoder without a cache makes of a block."""
    if starts_with_sizes(block, 3):
        return "lost"
    try:
        fields = decoder.decode(block, raw=True)
        return read_head(
            [(bytes(n).decode("latin-1"), bytes(v).decode("latin-1")) for n, v in fields]
        )
    except MalformedRequest:
        return "malformed"
    except HPACKError:
        return "lost"


def head_or_fault(reader: HeadReader, block: bytes) -> Head | str:
    try:
        return reader.read(block)
    except MalformedRequest:
        return "malformed"
    except HPACKError:
        return "lost"


def compare_decoders(
    sequence: list[bytes], limit_bytes: int = MAX_BYTES
) -> tuple[list[Head | str], int]:
    """Has both read the blocks up to the first that is lost; returns the heads, and how many were filled."""
    decoder, reader = Decoder(limit_bytes), HeadReader(limit_bytes)
    [own] = [found for found in reach(reader) if isinstance(found, Decoder)]
    heads: list[Head | str] = []
    filled = 0
    for block in sequence:
        reader.decoded_bytes = 0
        heads.append(head_or_fault(reader, block))
        filled += 0 < reader.decoded_bytes < len(block)
        assert heads[-1] == plainly_read(decoder, block)
        if heads[-1] == "lost":
            break
        ours, theirs = own.header_table, decoder.header_table
        assert (ours.dynamic_entries, ours.maxsize) == (theirs.dynamic_entries, theirs.maxsize)
        if isinstance(heads[-1], Head) and isinstance(head := head_or_fault(reader, block), Head):
            heads[-1] = (
                head  # the same bytes at once again: they may change the table, so both read them
            )
            assert head == plainly_read(decoder, block)
    return heads, filled
