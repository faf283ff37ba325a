"""Our reader of header blocks against `hpack` without a cache: the same heads, the same end, the same table.

Blocks as proxies write them while they trace, and everything that looks like it: names and values
cut, put into strings, said twice, in other representations, behind changes of the table's size.
"""

from typing import Final

from tests.grpc_server.header_blocks import (
    MAX_BYTES,
    compare_decoders,
    huffman_valued,
    literal,
    size_update,
    string,
)
from tests.slow.fuzz.choices import Choices

LIMITS: Final = (MAX_BYTES, MAX_BYTES, 600)
VALUES: Final = (
    b"00-0123456789abcdef0123456789abcdef-0123456789abcdef-01",
    b"00-fedcba9876543210fedcba9876543210-fedcba9876543210-00",
    *(
        b"",
        b"vendor=1",
        b"dd=s:1;p:0123456789abcdef",
        b"a" * 120,
        b" a",
        b"a\n",
        b"\x00\xff",
        b"\x00" * 8,
    ),
)
NAMES: Final = (b"traceparent", b"tracestate", b"x", b"x-request-id")
BEGINNING: Final = (
    b"\x83\x86" + literal(b":path", b"/p") + literal(b"content-type", b"application/grpc")
)
PARENT: Final = b"\x00" + string(b"traceparent")
STATE: Final = b"\x00" + string(b"tracestate")
# Strings that end where they should not, or are none.
ODD_STRINGS: Final = (
    *(b"\x00", b"\x80", b"\x81\x00", b"\x88" + b"\xff" * 8),
    *(b"\x7f\x00", b"\xff\x00", b"\x7e", b""),
)
UPDATES: Final = (*(b"",) * 8, size_update(0), size_update(70), size_update(4_096), b"\x20\x20\x20")


def check_blocks(data: bytes) -> str:
    """Any blocks mean what `hpack` says they mean."""
    choices = Choices(data)
    limit_bytes = choices.one_of(LIMITS)
    traced = BEGINNING + PARENT + string(VALUES[0])
    sequence = (
        [size_update(0) + BEGINNING, traced, traced + STATE + b"\x00"] if choices.byte() % 8 else []
    )
    while choices and len(sequence) < 30:
        sequence.append(_block(choices, sequence))
    heads, filled = compare_decoders(sequence, limit_bytes)
    return f"{min(filled, 5)} filled in, {'lost' if 'lost' in heads else 'whole'}"


def _block(choices: Choices, sequence: list[bytes]) -> bytes:
    way = choices.byte()
    if way > 250:
        return choices.piece()
    if way > 60 and sequence:
        return _changed(choices, choices.one_of(sequence), choices.one_of(sequence))
    pieces = [_piece(choices) for _ in range(choices.byte() % 4)]
    return choices.one_of(UPDATES) + BEGINNING + b"".join(pieces)


def _piece(choices: Choices) -> bytes:
    name, value = choices.one_of(NAMES), choices.one_of(VALUES)
    way, is_huffman = choices.byte() % 16, choices.flag()
    if way < 5:
        return PARENT + string(value, is_huffman=is_huffman)
    if way < 8:
        return PARENT + string(VALUES[0]) + STATE + string(value, is_huffman=is_huffman)
    if way < 11:
        return literal(name, value, choices.one_of((0x00, 0x10, 0x40)), is_huffman=is_huffman)
    if way < 13:
        return huffman_valued(
            name, PARENT + string(value) + (STATE + b"\x00" if is_huffman else b"")
        )
    odd = (
        PARENT + choices.one_of(ODD_STRINGS),
        STATE + choices.one_of(ODD_STRINGS),
        choices.piece(),
    )
    return choices.one_of((*odd, b"\xbe", b"\xbf", b"\x7e\x013", b"\x90"))


def _changed(choices: Choices, block: bytes, other: bytes) -> bytes:
    """A block that came before, with another value where a trace seems to stand; or a part of another one."""
    mark = choices.one_of((PARENT, PARENT, PARENT, STATE))
    place = block.find(mark) + len(mark)
    if place < len(mark) or place >= len(block):
        return block
    end = place + 1 + (block[place] & 0x7F)
    match choices.byte() % 16:
        case 0:
            return block[:place] + other[other.find(mark) + len(mark) :]
        case 1:
            return block[:place] + choices.one_of(ODD_STRINGS) + block[end:]
        case 2:
            return block[:end] + STATE + string(choices.one_of(VALUES)) + block[end:]
        case _:
            return (
                block[:place]
                + string(choices.one_of(VALUES), is_huffman=choices.flag())
                + block[end:]
            )
