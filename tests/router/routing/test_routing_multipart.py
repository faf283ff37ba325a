"""Forms: the model of an audio request, whatever the file beside it."""

import time

import pytest
from aiohttp import FormData
from hypothesis import given
from hypothesis import strategies as st

from extproc.errors import PromptError
from extproc.router.routing.prompt.multipart import END_BYTES, MAX_PARTS, MAX_VALUE_BYTES, open_form
from extproc.router.routing.prompt.parse import parse
from tests.tables import table

PATH = "/v1/audio/transcriptions"
FORM = "multipart/form-data; boundary=X"
DISPOSITION = b"Content-Disposition: form-data; name="
FILE = (
    b'--X\r\n%s"file"; filename="a.wav"\r\nContent-Type: audio/wav\r\n\r\n' % DISPOSITION
    + b"%s\r\n"
)


def field(name: str, value: bytes) -> bytes:
    return b'--X\r\nContent-Disposition: form-data; name="%s"\r\n\r\n%s\r\n' % (
        name.encode(),
        value,
    )


def close_form(*parts: bytes) -> bytes:
    return b"".join(parts) + b"--X--\r\n"


@table(
    "body",
    [
        close_form(field("model", b"whisper"), FILE % b"\x00\xff" * 2),
        close_form(field("model", b"whisper"), FILE % bytes(3 * END_BYTES)),
        close_form(
            FILE % bytes(3 * END_BYTES), field("model", b"whisper"), field("language", b"en")
        ),
        close_form(FILE % b'name="model"\r\n\r\ntiny\r\n--', field("model", b"whisper")),
        b"preamble\r\n" + close_form(field("model", b"whisper")) + b"epilogue",
        close_form(field("model", b"tiny"), field("model", b"whisper")),
        close_form(
            b"--X\r\ncontent-disposition:form-data;name=model\r\nX-Other: 1\r\n\r\nwhisper\r\n"
        ),
        close_form(
            b'--X\r\nContent-Type: text/plain\r\n%s"model"\r\n\r\nwhisper\r\n' % DISPOSITION
        ),
        close_form(field("model", b"whisper"))[:-4],
        close_form(field("model", b"whisper"), FILE % b"cut")[:-20],
    ],
)
def test_model_is_read_from_the_form(body: bytes) -> None:
    assert parse(PATH, FORM, body).model == "whisper"
    assert parse(PATH, FORM, memoryview(body)).model == "whisper"


async def test_form_of_a_client_library_is_read() -> None:
    data = FormData()
    data.add_field("file", bytes(5_000), filename="a.wav", content_type="audio/wav")
    data.add_field("model", "whisper-größe")
    data.add_field("user", "me")
    payload = data()

    prompt = parse(PATH, payload.headers["Content-Type"], await payload.as_bytes())

    assert ("whisper-größe", "me") == (prompt.model, prompt.field("user"))


@table(
    "content_type",
    [
        'multipart/form-data; boundary="X"',
        "Multipart/Form-Data; charset=utf-8; BOUNDARY=X",
        "multipart/form-data;boundary=X;charset=utf-8",
    ],
)
def test_boundary_is_found_however_it_is_written(content_type: str) -> None:
    assert parse(PATH, content_type, close_form(field("model", b"m"))).model == "m"


@table(
    ("content_type", "body"),
    [
        ("multipart/form-data", close_form(field("model", b"m"))),
        ("multipart/form-data; boundary=", close_form(field("model", b"m"))),
        ("multipart/form-data; boundary=Y", close_form(field("model", b"m"))),
        (FORM, b""),
        (FORM, b'{"model": "m"}'),
    ],
)
def test_broken_form_raises(content_type: str, body: bytes) -> None:
    with pytest.raises(PromptError):
        parse(PATH, content_type, body)


@table(
    "body",
    [
        close_form(),
        close_form(field("other", b"m")),
        close_form(field("model", b"m" * (MAX_VALUE_BYTES + 10))),
        close_form(FILE.replace(b'"file"', b'"model"') % b"m"),
        close_form(b"--X\r\nmodel\r\n\r\nm\r\n"),
        close_form(b'--X\r\nContent-Disposition: form-data; name="model"'),
        close_form(*[field("other", b"1")] * MAX_PARTS, field("model", b"m")),
        field("model", b"half a na")[:-2],
    ],
)
def test_form_without_a_readable_model_has_none(body: bytes) -> None:
    assert parse(PATH, FORM, body).model is None


def test_hostile_heads_cost_no_time() -> None:
    # A pattern that tried every occurrence against the rest of its line would take seconds.
    head = b"--X\r\n" + b"content-disposition:" * 200 + b"\r\n\r\n\r\n"
    start_s = time.process_time()

    assert open_form(FORM, close_form(*[head] * MAX_PARTS)).string("model") is None
    assert time.process_time() - start_s < 0.1


def test_form_of_an_audio_request_has_no_prompt() -> None:
    prompt = parse(PATH, FORM, close_form(field("prompt", b"p")))

    assert ("", "", "p") == (prompt.first_user_message(9), prompt.head(9), prompt.field("prompt"))


@given(
    st.dictionaries(
        st.text(st.characters(codec="utf-8", exclude_characters='"\r\n')), st.text(max_size=50)
    )
)
def test_every_short_field_is_read(fields: dict[str, str]) -> None:
    opened = open_form(
        "multipart/form-data; boundary=a-long-boundary",
        close_form(*(field(name, value.encode()) for name, value in fields.items()), FILE).replace(
            b"--X", b"--a-long-boundary"
        ),
    )

    assert fields == {name: opened.string(name) for name in fields}
    assert opened.string("file") is None or "file" in fields
