"""Media and token ids: they weigh what an engine makes of them, not what they have of text."""

from base64 import b64encode
from struct import pack

import orjson
from hypothesis import example, given
from hypothesis import strategies as st

from extproc.router.routing.picker import Query
from extproc.router.routing.prompt.chain import Chain, chain_of
from extproc.router.routing.prompt.known_chats import KnownChats
from extproc.router.routing.prompt.media import picture_tokens
from extproc.router.routing.prompt.parse import parse
from tests.router.routing.fleet import CHAT, Fleet
from tests.tables import table

COMPLETIONS = "/v1/completions"
PNG = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"
# A preview of 40 KB, then a table, and only then the frame.
JPEG = (
    b"\xff\xd8\xff\xe1" + pack(">H", 40_000) + b"x" * 39_998 + b"\xff\xc4\0\x03y\xff\xc2\0\x11\x08"
)
HEADS = {
    "png": PNG + pack(">II", 840, 1120) + bytes(40),
    "gif": b"GIF89a" + pack("<HH", 840, 1120) + bytes(40),
    "webp": b"RIFF....WEBPVP8 " + bytes(10) + pack("<HH", 840, 1120) + bytes(40),
    "webp lossless": b"RIFF....WEBPVP8L" + bytes(5) + pack("<I", 839 | 1119 << 14) + bytes(40),
    "webp extended": b"RIFF....WEBPVP8X" + bytes(8) + pack("<Q", 839 | 1119 << 24)[:6] + bytes(40),
    "jpeg": JPEG + pack(">HH", 1120, 840) + bytes(40),
}


def png_part(
    width: int = 840, height: int = 1120, *, name: int = 0, more: int = 0
) -> dict[str, object]:
    data = b64encode(PNG + pack(">IIQ", width, height, name) + bytes(more)).decode()
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}


def showing(*parts: object, question: str = "What is it?") -> bytes:
    asked = {"role": "user", "content": [*parts, {"type": "text", "text": question}]}
    return orjson.dumps({"messages": [asked]})


def read_chain(body: bytes, path: str = CHAT) -> Chain:
    return chain_of(parse(path, "", body).turns(1 << 20), 1)


@table("data", HEADS.values(), ids=HEADS)
@table("start", [b"", b"data:image/any;base64,"])
def test_the_head_of_a_picture_tells_its_tokens(data: bytes, start: bytes) -> None:
    assert picture_tokens(start + b64encode(data)) == 1_200


@table(
    ("part", "tokens"),
    [
        (png_part(1, 1), 4),
        (png_part(2**31, 2**31), 16_384),
        (png_part(0, 28), 1_000),
        ({"type": "input_image", "image_url": "https://a/1.png", "detail": "low"}, 1_000),
        (
            {
                "type": "image",
                "source": {"type": "base64", "data": b64encode(HEADS["png"]).decode()},
            },
            1_200,
        ),
        ({**png_part(), "uuid": "u1"}, 1_000),
        ({"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}, 750),
        ({"type": "video_url", "video_url": {"url": "https://a/1.mp4"}}, 6_000),
        ({"type": "video_url", "video_url": None, "uuid": "u1"}, 6_000),
        ({"type": "file", "file": {"file_id": "f1"}}, 1_000),
        ({"image_url": "\x1f" + "0" * 16 + ":99999"}, 16_384),
        ({"image_url": "\x1f" + "0" * 16 + ":" + "9" * 4_000}, 1_000),
    ],
)
def test_a_medium_weighs_its_tokens(part: object, tokens: int) -> None:
    assert read_chain(showing(part)).size // 4 - tokens in range(40)


@given(
    st.sampled_from([b"", *(head[:size] for head in HEADS.values() for size in (8, 16, 40))]),
    st.binary(max_size=99),
)
@example(b"\xff\xd8", b"\xff\xe1\0\0" * 300)
def test_any_bytes_have_tokens_within_the_limits_or_none(head: bytes, rest: bytes) -> None:
    for data in (b64encode(head + rest), head + rest, b"data:," + rest):
        assert picture_tokens(data) in {0, *range(4, 16_385)}


def test_another_question_about_the_same_pictures_shares_them() -> None:
    parts = [png_part(name=number) for number in range(3)]
    one, other = (read_chain(showing(*parts, question=text)) for text in ("What?", "Where?"))

    assert one.hashes[:3] == other.hashes[:3]
    assert one.hashes[3:] != other.hashes[3:]
    assert one.ends[2] > 3 * 4 * 1_200


def test_equal_blocks_have_equal_lengths_whatever_size_a_client_claims() -> None:
    one, other = (read_chain(showing({"image_url": f"\x1fabc:{size}"})) for size in (100, 200))

    assert one.hashes[0] != other.hashes[0]


def test_a_chat_with_pictures_goes_on_from_turn_to_turn_however_large_its_body_becomes() -> None:
    known, chains, messages = KnownChats(), list[Chain](), list[object]()
    for number, more in enumerate((30, 9_000, 90_000)):
        messages += orjson.loads(showing(png_part(name=number, more=more)))["messages"]
        prompt = parse(CHAT, "", orjson.dumps({"messages": messages}))
        chains += [known.read(prompt, 1, 1 << 20), chain_of(prompt.turns(1 << 20), 1)]
        messages.append({"role": "assistant", "content": "A cat, it seems. " * 99})

    assert chains[::2] == chains[1::2]
    assert chains[4].hashes[: len(chains[2])] == chains[2].hashes
    assert len({chain.home for chain in chains}) == len({chain.question for chain in chains}) == 1
    assert chains[4].size == chains[4].ends[-1] > 3 * 4_800 + 2 * 1_600


def test_what_is_shown_before_the_user_speaks_changes_no_question() -> None:
    heads = ["See: ", [png_part(), {"type": "text", "text": "See."}]]
    asked = [
        {"messages": [{"role": "system", "content": head}, {"role": "user", "content": "Why?"}]}
        for head in heads
    ]

    assert len({read_chain(orjson.dumps(body)).question for body in asked}) == 1


@table(
    ("path", "field"),
    [(COMPLETIONS, "prompt"), ("/inference/v1/generate", "token_ids"), ("/generate", "input_ids")],
)
def test_a_token_id_is_four_bytes(path: str, field: str) -> None:
    ids = [*range(150_000, 151_024)]
    chains = [
        read_chain(orjson.dumps({field: part}), path) for part in (ids[:600], ids, [ids, [1]])
    ]

    assert [chain.size for chain in chains] == [2_400, 4_096, 4_096]
    assert [chain.ends for chain in chains[:2]] == [(1_024, 2_048), (1_024, 2_048, 3_072, 4_096)]
    assert chains[1].hashes[:2] == chains[0].hashes
    assert chains[2].hashes == chains[1].hashes


@table("odd", [b"-1", b"1.5", b"4294967296", b"1e400"])
def test_what_no_engine_takes_as_ids_is_read_as_it_is_written(odd: bytes) -> None:
    assert read_chain(b'{"prompt":[7,%b]}' % odd, COMPLETIONS).size == len(b"7,%b" % odd)


def test_ids_and_text_have_as_many_tokens_as_an_engine_counts_in_one_pool() -> None:
    fleet = Fleet()

    def prompt_tokens(path: str, body: dict[str, object]) -> object:
        decision = fleet.picker.propose(Query("POST", path, {}, orjson.dumps(body)))
        return decision.pick.reading.explain(fleet.pool.candidates())["prompt_tokens"]

    assert prompt_tokens(COMPLETIONS, {"prompt": [*range(50_000, 130_000)]}) == 80_000
    assert prompt_tokens(COMPLETIONS, {"prompt": "wor " * 80_000}) == 80_000
    assert prompt_tokens(CHAT, orjson.loads(showing(png_part()))) in range(1_200, 1_240)
