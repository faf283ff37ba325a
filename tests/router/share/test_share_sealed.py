"""Letters as bytes: whole, secret, bounded."""

from contextlib import suppress

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from hypothesis import given
from hypothesis import strategies as st
from msgspec.msgpack import encode

from extproc.router.routing.prompt.chain import BLOCK_BYTES, Chain, chain_of
from extproc.router.share import letters
from extproc.router.share.sealed import MAX_BYTES, LetterError, Seal, read
from tests.tables import table

ME, OTHER = 7, 2**64 - 1
SECRET = b"sixteen bytes it"
NAMES = st.integers(0, 2**64 - 1)
NUMBERS = st.integers(1, 2**62)
NEWS = st.one_of(
    st.builds(
        letters.Picked,
        NUMBERS,
        NAMES,
        st.integers(0, 2**40),
        st.lists(NAMES, max_size=20).map(tuple),
        st.dictionaries(st.integers(0, letters.MAX_BLOCKS - 1), st.integers(1, 400), max_size=5),
    ),
    st.builds(letters.Ended, NUMBERS, NAMES, NUMBERS),
    st.builds(
        letters.Heartbeat,
        st.integers(0, 2**62),
        st.dictionaries(NAMES, st.integers(1, 10**6), max_size=5),
    ),
    st.just(letters.Goodbye()),
)
LETTERS = st.builds(
    letters.Letter,
    st.just(ME),
    NAMES,
    st.integers(0, 2**62),
    st.lists(NEWS, max_size=5),
    st.lists(
        st.builds(letters.Echo, NAMES, st.integers(0, 2**62), st.integers(0, 2**62)), max_size=3
    ),
)


def seal(me: int = ME, cluster: str = "llama", secret: bytes = SECRET) -> Seal:
    return Seal(cluster, secret, me)


def open_fault(data: bytes, reader: Seal | None = None) -> str:
    with pytest.raises(LetterError) as raised:
        (reader or seal(OTHER)).open(data)
    return str(raised.value)


@given(LETTERS)
def test_a_letter_comes_as_it_was_sent(letter: letters.Letter) -> None:
    assert seal(OTHER).open(seal().close(letter)) == letter


@given(st.binary(max_size=300))
def test_any_bytes_are_a_letter_or_a_letter_error(data: bytes) -> None:
    for cut in (data, b"\x01" + data):
        assert open_fault(cut) in {"version", "short", "foreign"}


@given(st.binary(max_size=300))
def test_anything_sealed_is_a_letter_or_a_letter_error(data: bytes) -> None:
    with suppress(LetterError):
        assert isinstance(read(data), letters.Letter)


@given(LETTERS, st.data())
def test_a_letter_that_was_changed_anywhere_is_none(
    letter: letters.Letter, data: st.DataObject
) -> None:
    sent = bytearray(seal().close(letter))
    sent[data.draw(st.integers(0, len(sent) - 1))] ^= data.draw(st.integers(1, 255))

    assert open_fault(bytes(sent)) in {"version", "foreign"}
    assert open_fault(bytes(sent[:-1])) in {"version", "short", "foreign"}


@table("reader", [seal(OTHER, cluster="qwen"), seal(OTHER, secret=SECRET[::-1])])
def test_two_installations_never_mix(reader: Seal) -> None:
    assert open_fault(seal().close(letters.Letter(ME, 1, 1)), reader) == "foreign"


def test_nobody_writes_in_anothers_name() -> None:
    forger = Seal("llama", SECRET, ME)
    letter = letters.Letter(OTHER, 1, 1)
    with pytest.raises(ValueError, match="nonce"):
        forger.close(letter)

    sent = bytearray(seal(OTHER).close(letter))
    sent[1:9] = ME.to_bytes(8)

    assert open_fault(bytes(sent)) == "foreign"


def test_a_letter_in_which_somebody_else_is_named_is_garbled() -> None:
    key = HKDF(SHA256(), 32, salt=None, info=b"extproc share \x01llama").derive(SECRET)
    nonce = ME.to_bytes(8) + bytes(4)
    sent = [
        b"\x01" + nonce + AESGCM(key).encrypt(nonce, encode(letters.Letter(name, 1, 1)), b"\x01")
        for name in (OTHER, ME)
    ]

    assert open_fault(sent[0]) == "garbled"
    assert sent[1] == seal().close(letters.Letter(ME, 1, 1))


def test_another_version_and_what_is_too_long_are_not_looked_at() -> None:
    assert open_fault(b"\x02" + seal().close(letters.Letter(ME, 1, 1))[1:]) == "version"
    assert open_fault(b"\x01" * (MAX_BYTES + 1)) == "long"
    assert open_fault(b"") == "version"


def test_a_nonce_is_used_once_and_a_short_secret_is_refused() -> None:
    one, letter = seal(), letters.Letter(ME, 1, 1)
    assert one.close(letter) != one.close(letter)

    one.sent = 1 << 32
    with pytest.raises(ValueError, match="nonce"):
        one.close(letter)
    with pytest.raises(ValueError, match="16 bytes"):
        seal(secret=b"short")


def test_nothing_of_a_prompt_can_be_seen() -> None:
    """Neither its text nor a hash of it, by which somebody could find out what it was."""
    chain = chain_of([("", "My name is Ada. " * 80)], 1)
    sent = seal().close(letters.Letter(ME, 1, 1, [letters.pick_news(1, 2, 3, chain)]))

    for block in chain.hashes:
        assert block.to_bytes(8) not in sent
        assert block.to_bytes(8, "little") not in sent
    assert b"Ada" not in sent


@table("words", [10, 204, 205, 256, 1_000])
def test_blocks_arrive_with_their_lengths(words: int) -> None:
    chain = chain_of([("user", "Why? " * words)], 1)
    found = letters.pick_news(1, 2, 3, chain)
    assert found.hashes == tuple(chain.hashes)
    for start in range(len(chain)):
        for stop in range(start, len(chain) + 1):
            assert found.bytes_between(start, stop) == chain.bytes_between(start, stop)


def test_of_the_longest_prompt_the_head_is_sent_and_of_one_without_blocks_the_pick() -> None:
    places = range(1, letters.MAX_BLOCKS + 10)
    chain = Chain([*places], [BLOCK_BYTES * place for place in places], [], 0, 0, 0)
    found = letters.pick_news(1, 2, 3, chain)

    assert len(found.hashes) == letters.MAX_BLOCKS
    assert found.bytes_between(0, letters.MAX_BLOCKS) == BLOCK_BYTES * letters.MAX_BLOCKS
    assert (
        letters.pick_news(1, 2, 3, None).hashes
        == letters.pick_news(1, 2, 3, chain_of([("", "Why?")], 1)).hashes
        == ()
    )


def test_the_longest_letters_are_within_their_bound() -> None:
    most = 2**62
    picks = [
        letters.Picked(most, OTHER, 2**40, (OTHER,) * blocks, dict.fromkeys(range(blocks), 300))
        for blocks in (letters.MAX_BLOCKS, letters.LETTER_BLOCKS - letters.MAX_BLOCKS)
    ]
    many = [letters.Ended(most, OTHER, most)] * (letters.LETTER_NEWS - len(picks))
    standing = letters.Heartbeat(
        most, {OTHER - place: 1_000_000 for place in range(letters.MAX_ENDPOINTS)}
    )

    full = letters.Letter(ME, OTHER, most, [*picks, *many], [])
    beat = letters.Letter(ME, OTHER, most, [standing], [letters.Echo(OTHER, most, most)] * 256)

    assert len(seal().close(full)) <= MAX_BYTES
    assert len(seal().close(beat)) <= MAX_BYTES
