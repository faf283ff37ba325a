"""Tokenizers and pseudo-text."""

from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

import msgspec
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from extproc.errors import SettingsError
from extproc.simulator.http.answers import Author
from extproc.simulator.http.api_request import ApiRequest
from extproc.simulator.http.tokens import FileTokenizer, FourByteTokenizer, Tokenizer
from tests.simulator.face import serving
from tests.simulator.wording import ERRORS, STREAMS, WHOLE, as_stream, list_kinds, mask, mask_tokens
from tests.tables import table

TEXT = "the quick brown fox jumps over the lazy dog and the dog sleeps while the fox runs over the hill"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny byte-level BPE tokenizer."""
    either_tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    either_tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    either_tokenizer.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=320,
        initial_alphabet=alphabet,
        special_tokens=["<|im_end|>"],
        show_progress=False,
    )
    either_tokenizer.train_from_iterator([TEXT] * 20, trainer)
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    either_tokenizer.save(str(path))
    return path


@pytest.fixture(params=["four bytes", "file"])
def either_tokenizer(request: pytest.FixtureRequest, trained: Path) -> Tokenizer:
    return FourByteTokenizer() if request.param == "four bytes" else FileTokenizer(trained)


TEXTS = st.text(st.characters(codec="utf-8"))


@given(TEXTS, TEXTS)
def test_a_text_survives_four_byte_tokens_and_equal_heads_give_equal_tokens(
    head: str, tail: str
) -> None:
    either_tokenizer = FourByteTokenizer()
    whole, part = either_tokenizer.encode([head + tail]), either_tokenizer.encode([head])
    full = len(head.encode()) // 4

    assert part[:full] == whole[:full]
    assert either_tokenizer.decode(part) == head.replace("\0", "")
    assert len(part) == -(-len(head.encode()) // 4)
    assert len(either_tokenizer.encode(["ab", "cd"])) == 2


def test_words_read_back_as_themselves(either_tokenizer: Tokenizer) -> None:
    words = list(either_tokenizer.words)[:50]

    assert words == either_tokenizer.encode([either_tokenizer.decode(words)])


def test_a_tokenizer_file_counts_as_the_model_does(trained: Path) -> None:
    either_tokenizer = FileTokenizer(trained)
    tokens = either_tokenizer.encode(["the quick", " brown fox"])

    assert tokens == tokenizers.Tokenizer.from_file(str(trained)).encode("the quick brown fox").ids
    assert either_tokenizer.decode(tokens) == "the quick brown fox"


def test_a_file_that_is_no_tokenizer_or_has_no_words_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text("{}")
    with pytest.raises(SettingsError, match=r"tokenizer\.json"):
        FileTokenizer(path)
    tokenizers.Tokenizer(tokenizers.models.BPE()).save(str(path))
    with pytest.raises(SettingsError, match="no token reads as an English word"):
        FileTokenizer(path)


def test_answers_are_those_of_their_texts(either_tokenizer: Tokenizer) -> None:
    answer = Author(either_tokenizer).write(
        ApiRequest([[1, 2, 3]], max_tokens=30), [1, 2, 3], room=100, variant=0
    )

    assert list(answer.tokens) == either_tokenizer.encode([answer.text])
    assert msgspec.json.decode(b'["%b"]' % b'","'.join(answer.texts)) == [
        either_tokenizer.decode([token]) for token in answer.tokens
    ]


def test_natural_lengths_have_their_mean_and_never_outgrow_their_room() -> None:
    author, natural = Author(FourByteTokenizer(), mean_tokens=80), ApiRequest([])
    answers = [author.write(natural, [number], room=10_000, variant=0) for number in range(2_000)]
    orders = [
        natural,
        ApiRequest([], max_tokens=500, ignore_eos=True),
        ApiRequest([], min_tokens=500),
    ]
    short = [author.write(order, [1], room=3, variant=0) for order in orders]

    assert 75 < mean(len(answer.tokens) for answer in answers) < 85
    assert {answer.reason for answer in answers} == {"stop"}
    assert len({len(answer.tokens) for answer in answers}) > 100
    assert [(len(answer.tokens), answer.reason) for answer in short] == [(3, "length")] * 3


def test_an_answer_depends_on_the_end_of_its_prompt() -> None:
    author, order = Author(FourByteTokenizer()), ApiRequest([], max_tokens=10)
    prompts = [[7] * 1000 + [number] for number in range(100)]
    texts = {author.write(order, prompt, room=100, variant=0).text for prompt in prompts}
    varied = {
        author.write(replace(order, seed=seed), [1], room=100, variant=0).text
        for seed in range(100)
    }

    assert len(texts) == 100
    assert len(varied) == 100


RECORDED = msgspec.json.decode(
    (Path(__file__).parent / "data" / "answers-0.32.0.json").read_bytes()
)


@table("index", range(len(STREAMS)))
async def test_streams_have_the_events_of_vllm(index: int) -> None:
    path, body = STREAMS[index]
    async with serving() as face:
        actual = list_kinds(await face.events(path, as_stream(body)))

    assert list(map(mask_tokens, RECORDED["streams"][index])) == list(map(mask_tokens, actual))


@table("index", range(len(WHOLE)))
async def test_whole_answers_have_the_fields_of_vllm(index: int) -> None:
    path, body = WHOLE[index]
    expected_status, expected = RECORDED["whole"][index]
    async with serving() as face:
        status, answer = await face.post(path, body)

    assert expected_status == status
    assert mask_tokens(expected) == mask_tokens(mask(msgspec.json.encode(answer).decode()))


@table("index", range(len(ERRORS)))
async def test_errors_are_worded_as_those_of_vllm(index: int) -> None:
    path, body = ERRORS[index]
    async with serving() as face:
        actual: list[Any] = list(await face.post(path, body))

    assert RECORDED["errors"][index] == actual
