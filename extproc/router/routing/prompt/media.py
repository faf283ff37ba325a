"""What a picture, a sound or a video weighs: the tokens that an engine makes of it, estimated without decoding it."""

# A router sees a medium as an address or as base64; the engine sees hundreds of tokens, and a cache
# holds them as it holds any. What they are is the model's own affair. The estimate:
#
# - A picture has a token for each 28 x 28 pixels, from 4 to 16,384. So it is for Qwen2-VL and
#   Qwen2.5-VL: patches of 14 x 14, merged 2 x 2 (`patch_size`, `merge_size`, `min_pixels` and
#   `max_pixels` of their preprocessor_config.json; "4-16384" on the model card). InternVL's tiles
#   have as many. Width and height stand in the head of a PNG, GIF, WebP or JPEG.
# - `detail` changes nothing: vLLM ignores it (`entrypoints/chat_utils.py`).
# - An address says nothing: 1,000 tokens, about 900 x 900 pixels. A file counts as a picture.
# - Sound: 750, which are 30 s at 25 tokens a second (Qwen2-Audio: 3,000 frames, halved twice).
# - Video: 6,000. vLLM reads 32 frames (`num_frames`), Qwen2-VL makes one of two, and each has 391
#   tokens at 640 x 480.
#
# Models that make a fixed number of any picture (256, 576) are off by up to four times. Then the bytes
# of a token that an endpoint's metrics show are off by as much the other way, and the sum is right.

from binascii import a2b_base64
from collections.abc import Mapping
from typing import Final, Self

from xxhash import xxh3_64_hexdigest

_PATCH: Final = 28
_LEAST, _MOST = 4, 16_384
_PICTURE: Final = 1_000
_KINDS: Final = {"audio": 750, "video": 6_000}

# First `uuid`: vLLM takes it for the identity of the medium, and lets later turns leave the data
# out.
MEMBERS: Final = (
    *("uuid", "image_url", "video_url", "audio_url", "input_audio", "source"),
    *("image_embeds", "audio_embeds", "file", "file_data", "file_url", "file_id"),
)
_DATA: Final = ("url", "data", "file_data", "file_url", "file_id")

# What a medium's digest begins with in its place. A client that writes it names a medium that it
# did not send, and misleads its own routing alone: the engine reads the body.
DIGEST: Final = "\x1f"

_URL: Final = b"data:"
_HEAD: Final = 40  # more than any format but JPEG needs
_SEGMENTS: Final = 64
_FRAMES: Final = frozenset({*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC})


class Medium(str):
    """A text that ends with a medium's digest, and the tokens of that medium."""

    __slots__ = ("tokens",)

    tokens: int

    def __new__(cls, text: str, tokens: int) -> Self:
        medium = super().__new__(cls, text)
        medium.tokens = tokens
        return medium


def digest_of(data: bytes | bytearray | memoryview) -> str:
    """What stands for a medium's data: its hash, and its tokens where its head says them. O(n)."""
    tokens = picture_tokens(data)
    return f"{xxh3_64_hexdigest(data)}{f':{tokens}' if tokens else ''}"


def medium_in(part: Mapping[str, object]) -> Medium | None:
    """Reads a part that is a medium, as the digest of its distinguishing member. O(n) in its bytes.

    A uuid's tokens are those of the part's kind: it names a medium whose data later turns leave out.
    """
    for name in MEMBERS:
        value = part.get(name)
        texts = map(value.get, _DATA) if isinstance(value, dict) else [value]
        data = next((text for text in texts if isinstance(text, str)), None)
        if data:
            written = data[len(DIGEST) :] if data.startswith(DIGEST) else digest_of(data.encode())
            digest, _, known = written.partition(":")
            kind = f"{part.get('type') or name}"
            tokens = next((each for word, each in _KINDS.items() if word in kind), _PICTURE)
            if name != "uuid" and known.isdecimal() and len(known) <= len(str(_MOST)):
                tokens = min(int(known), _MOST)
            return Medium(f"{DIGEST}{name}:{digest}", tokens)
    return None


def picture_tokens(data: bytes | bytearray | memoryview) -> int:
    """Tokens of a picture in base64, or in a data URL; 0 for anything else. Reads a few dozen bytes."""
    start = 0
    if bytes(data[: len(_URL)]) == _URL:
        start = bytes(data[:128]).find(b",") + 1
    try:
        width, height = _size(
            data[start:] if isinstance(data, memoryview) else memoryview(data)[start:]
        )
    except (ValueError, IndexError):
        return 0
    patches = -(-width // _PATCH) * -(-height // _PATCH)
    return min(max(patches, _LEAST), _MOST) if patches else 0


def _size(encoded: memoryview) -> tuple[int, int]:
    """Width and height. Raises `ValueError` for what is no base64, or no picture."""
    head = _bytes_at(encoded, 0, _HEAD)
    if head.startswith(b"\x89PNG\r\n\x1a\n"):
        return int.from_bytes(head[16:20], "big"), int.from_bytes(head[20:24], "big")
    if head.startswith((b"GIF87a", b"GIF89a")):
        return int.from_bytes(head[6:8], "little"), int.from_bytes(head[8:10], "little")
    if head.startswith(b"RIFF") and head[8:12] == b"WEBP":
        return _webp_size(head)
    if head.startswith(b"\xff\xd8"):
        return _jpeg_size(encoded)
    return 0, 0


def _webp_size(head: bytes) -> tuple[int, int]:
    match head[12:16]:
        case b"VP8 ":
            return int.from_bytes(head[26:28], "little") & 0x3FFF, int.from_bytes(
                head[28:30], "little"
            ) & 0x3FFF
        case b"VP8L":
            bits = int.from_bytes(head[21:25], "little")
            return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
        case b"VP8X":
            return int.from_bytes(head[24:27], "little") + 1, int.from_bytes(
                head[27:30], "little"
            ) + 1
    return 0, 0


def _jpeg_size(encoded: memoryview) -> tuple[int, int]:
    """Of the frame's header, which stands behind segments of any length: previews, colour profiles."""
    at = 2
    for _ in range(_SEGMENTS):
        segment = _bytes_at(encoded, at, 9)
        if segment[0] != 0xFF:
            break
        if segment[1] in _FRAMES:
            return int.from_bytes(segment[7:9], "big"), int.from_bytes(segment[5:7], "big")
        at += 2 + int.from_bytes(segment[2:4], "big")
    return 0, 0


def _bytes_at(encoded: memoryview, at: int, count: int) -> bytes:
    start = at // 3 * 4
    stop = -(-(at + count) // 3) * 4
    return a2b_base64(encoded[start:stop])[at % 3 : at % 3 + count]
