"""Bodies made to cost whoever reads them as much as can be, and honest ones of the same size."""

from collections.abc import Callable
from types import MappingProxyType
from typing import Final, NamedTuple

CHAT: Final = "/v1/chat/completions"
COMPLETIONS: Final = "/v1/completions"
FORM_PATH: Final = "/v1/audio/transcriptions"
JSON: Final = "application/json"


class Body(NamedTuple):
    """A request; `model` says whether its model can be found, wherever it stands."""

    path: str
    data: bytes
    content_type: str = JSON
    model: str | None = "m"


def hostile_chat(messages: bytes) -> Body:
    return Body(CHAT, b'{"messages":[%b],"model":"m","stream":true}' % messages)


def content(text: bytes, role: bytes = b"user") -> Body:
    return hostile_chat(
        b'{"role":"%b","content":"%b"},{"role":"user","content":"x"}' % (role, text)
    )


def part_bodies(element: bytes, size: int) -> Body:
    return hostile_chat(b'{"role":"user","content":[%b0]}' % fill(element, size))


def prompt_body(value: bytes) -> Body:
    return Body(COMPLETIONS, b'{"prompt":%b,"model":"m"}' % value)


def form_body(data: bytes, boundary: str, model: str | None = None) -> Body:
    return Body(FORM_PATH, data, f"multipart/form-data; boundary={boundary}", model)


def fill(piece: bytes, size: int) -> bytes:
    return piece * (size // len(piece))


def members(size: int) -> bytes:
    return b"".join(b'"k%07d":0,' % index for index in range(size // 13))


def form_field(name: bytes, value: bytes) -> bytes:
    return b'--X\r\nContent-Disposition: form-data; name="%b"\r\n\r\n%b\r\n' % (name, value)


# Ten parameters of a tool, about 600 bytes.
TEN: Final = b"".join(
    b'"parameter_%d":{"type":"string","description":"something"},' % number for number in range(10)
)

HOSTILE: Final = MappingProxyType[str, Callable[[int], Body]](
    {
        "arrays 480 deep": lambda size: hostile_chat(
            fill(b"[" * 480 + b"]" * 480 + b",", size) + b"0"
        ),
        "objects 300 deep": lambda size: hostile_chat(
            fill(b'{"a":' * 300 + b"0" + b"}" * 300 + b",", size) + b"0"
        ),
        "small objects": lambda size: hostile_chat(fill(b'{"a":0},', size) + b"0"),
        "empty arrays": lambda size: hostile_chat(fill(b"[],", size) + b"0"),
        "empty strings": lambda size: hostile_chat(fill(b'"",', size) + b"0"),
        "empty messages": lambda size: hostile_chat(fill(b'{"role":"user"},', size) + b"0"),
        "literals": lambda size: hostile_chat(fill(b"null,", size) + b"0"),
        "parts without text": lambda size: part_bodies(b'{"a":0},', size),
        "parts of text": lambda size: part_bodies(b'{"type":"text","text":"a"},', size),
        "lone surrogates": lambda size: part_bodies(b'"\\ud800",', size),
        "members of the body": lambda size: Body(CHAT, b'{%b"model":"m"}' % members(size)),
        "members of a message": lambda size: hostile_chat(
            b'{%b"role":"user","content":"x"}' % members(size)
        ),
        "tools": lambda size: Body(
            CHAT, b'{"tools":[%b0],"messages":[],"model":"m"}' % fill(b'{"a":[{"b":0}]},', size)
        ),
        "white space in a prompt": lambda size: prompt_body(b"[%b]" % (b" " * size)),
        "white space before the body": lambda size: Body(CHAT, b" " * size + b'{"model":"m"}'),
        "white space everywhere": lambda size: hostile_chat(fill(b" { } ,", size) + b"0"),
        "numbers": lambda size: prompt_body(b"[%b1]" % fill(b"1,", size)),
        "arrays of numbers": lambda size: prompt_body(b"[%b[1]]" % fill(b"[1],", size)),
        "a number": lambda size: prompt_body(b"[%b]" % (b"1" * size)),
        "escapes": lambda size: content(fill(rb"\u4e16", size)),
        "escaped quotes": lambda size: content(fill(rb"\"", size)),
        "backslashes": lambda size: content(fill(rb"\\", size)),
        "escapes in the system text": lambda size: content(fill(rb"\u4e16", size), b"system"),
        "surrogates in the system text": lambda size: content(fill(rb"\ud800", size), b"system"),
        "open brackets": lambda size: Body(
            CHAT, b'{"model":"m","messages":' + b"[" * size, JSON, None
        ),
        "a name": lambda size: Body(CHAT, b'{"%b":0,"model":"m"}' % (b"n" * size)),
        "names of the model": lambda size: hostile_chat(fill(b'{"model":"x"},', size) + b"0"),
        "many parts of a form": lambda size: form_body(
            fill(b"--X\r\n", size) + form_field(b"model", b"m"), "X"
        ),
        "a boundary of dashes": lambda size: form_body(b"-" * size, "-" * 190),
        "a boundary that never comes": lambda size: form_body(b"a" * size, "a" * 200),
    }
)

HONEST: Final = MappingProxyType[str, Callable[[int], Body]](
    {
        "text": lambda size: content(fill(b"some text, and more of it. ", size)),
        "text with quotes": lambda size: content(
            fill(b"some text, and more. " * 40 + rb"\"Oh!\"\n", size)
        ),
        "system text": lambda size: content(fill(b"some text, and more of it. ", size), b"system"),
        "Chinese": lambda size: content(fill("世界你好".encode(), size)),
        r"Chinese as \u escapes": lambda size: content(fill(rb"\u4e16\u754c", size)),
        "an image": lambda size: hostile_chat(
            b'{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:%b"}}]}'
            % fill(b"iVBORw0K", size)
        ),
        "a chat of 2,000 messages": lambda size: hostile_chat(
            b",".join(
                [b'{"role":"user","content":"%b"}' % fill(b"some text ", size // 2_000)] * 2_000
            )
        ),
        "tools and text": lambda size: Body(
            CHAT,
            b'{"model":"m","tools":[%b],"messages":[{"role":"user","content":"%b"}]}'
            % (
                b",".join(
                    [b'{"type":"function","function":{"parameters":{%b"z":{}}}}' % TEN]
                    * (size // 3_000)
                ),
                fill(b"some text, and more of it. ", size),
            ),
        ),
        "token ids": lambda size: prompt_body(b"[%b1]" % fill(b"12345,", size)),
        "a file in a form": lambda size: form_body(
            b'--X\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n%b\r\n'
            % fill(b"\x00\xffa-", size)
            + form_field(b"model", b"m")
            + b"--X--\r\n",
            "X",
            "m",
        ),
    }
)
