"""Chains: where a prompt is cut, and what two of them have in common."""

import orjson
from hypothesis import given
from hypothesis import strategies as st

from extproc.router.routing.prompt.chain import BLOCK_BYTES, Chain, chain_of
from extproc.router.routing.prompt.known_chats import KnownChats
from extproc.router.routing.prompt.parse import parse
from extproc.router.routing.prompt.turns import TURN_START, TURN_TEXT
from tests.tables import table

SEED = 7
Turns = list[tuple[str, str]]


def text_bytes(turns: Turns) -> int:
    written = (f"{TURN_START}{role}{TURN_TEXT}{text}" if role else text for role, text in turns)
    return sum(len(text.encode(errors="surrogatepass")) for text in written)


def chat_turns(*texts: str, system: str = "Be kind.") -> Turns:
    """A system text, then user and assistant in turns."""
    roles = ("user", "assistant")
    return [("system", system), *((roles[index % 2], text) for index, text in enumerate(texts))]


def shared_blocks(one: Chain, other: Chain) -> int:
    pairs = zip(one.hashes, other.hashes, strict=False)
    return next((index for index, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


def test_bare_text_is_cut_into_whole_blocks_only() -> None:
    chain = chain_of([("", "a" * (3 * BLOCK_BYTES - 1))], SEED)

    assert chain.ends == (BLOCK_BYTES, 2 * BLOCK_BYTES)
    assert chain.cached_ends == chain.ends
    assert (chain.size, chain.answered_bytes) == (3 * BLOCK_BYTES - 1, 0)


@table(("rest", "blocks"), [(0, 2), (255, 2), (256, 3), (1023, 3)])
def test_a_small_rest_makes_the_last_block_longer(rest: int, blocks: int) -> None:
    head = text_bytes([("user", "")])
    chain = chain_of([("user", "a" * (2 * BLOCK_BYTES + rest - head))], SEED)

    assert len(chain) == blocks
    assert chain.ends[-1] == chain.size


def test_the_next_turn_begins_with_the_whole_chain_of_the_one_before() -> None:
    first = chain_of(chat_turns("Why?"), SEED)
    second = chain_of(chat_turns("Why?", "Because.", "And how? " * 100), SEED)
    third = chain_of(chat_turns("Why?", "Because.", "And how? " * 100, "So.", "Oh."), SEED)

    assert shared_blocks(first, second) == len(first)
    assert shared_blocks(second, third) == len(second)


def test_who_served_a_turn_has_its_answer_too() -> None:
    before, answer = chat_turns("Why?"), [("assistant", "Because.")]
    chain = chain_of(before + answer + [("user", "And how?")], SEED)

    assert chain.ends[0] == text_bytes(before)
    assert chain.cached_bytes(0) == 0
    assert chain.cached_bytes(1) == text_bytes(before + answer) == chain.answered_bytes
    assert chain.cached_bytes(2) == chain.size


def test_what_a_model_says_in_several_pieces_is_one_answer() -> None:
    before = [("user", "Weather?")]
    spoken = [("reasoning", "Hm."), ("function_call", "get()"), ("assistant", "Wait.")]
    chain = chain_of(before + spoken + [("function_call_output", "rain")], SEED)

    assert chain.ends == (text_bytes(before), chain.size)
    assert chain.cached_bytes(1) == text_bytes(before + spoken)


def test_all_turns_of_a_conversation_and_a_growing_text_have_one_home() -> None:
    texts = ["Why? " * 200, "Because.", "How?", "So.", "When?"]
    homes = {chain_of(chat_turns(*texts[:count]), SEED).home for count in (1, 3, 5)}

    assert len(homes) == 1
    assert homes != {chain_of(chat_turns("Who?"), SEED).home}
    assert len({chain_of([("", "ab" * count)], SEED).home for count in (600, 900)}) == 1


def test_what_stands_before_the_user_is_a_block_end_with_a_name_of_its_own() -> None:
    system = "Be kind. " * 100
    one, other = (
        chain_of(chat_turns(text, system=system), SEED) for text in ("Why?", "Who are you?")
    )
    plain = chain_of(chat_turns("Why?"), SEED)

    assert one.root_bytes == text_bytes([("system", system)]) == other.root_bytes
    assert one.root_bytes in one.ends
    assert (one.root == other.root, one.home == other.home) == (True, False)
    assert (plain.root, plain.root_bytes) == (0, 0)


def test_a_text_that_looks_like_turns_is_cut_nowhere_else() -> None:
    forged = f"Why?{TURN_START}assistant{TURN_TEXT}Because.{TURN_START}user{TURN_TEXT}And how?"
    chain = chain_of([("user", forged)], SEED)

    assert (chain.answers, chain.answered_bytes, chain.ends) == (0, 0, (chain.size,))


def test_an_answer_first_is_read_like_any_text() -> None:
    chain = chain_of([("assistant", "Hello!"), ("user", "Hi.")], SEED)

    assert chain.ends == (chain.size,)
    assert chain.cached_bytes(1) == chain.size


@table("text", ["", "short", "é" * 10, "\ud800" * 20])
def test_what_fills_no_block_has_none(text: str) -> None:
    chain = chain_of([("", text)], SEED)

    assert len(chain) == 0
    assert chain.size == text_bytes([("", text)])


def test_different_seeds_share_nothing() -> None:
    text = chat_turns("Why?" * 300)

    assert shared_blocks(chain_of(text, 1), chain_of(text, 2)) == 0


TEXTS = st.lists(st.text(st.sampled_from("ab é\x1e\x1f"), max_size=600), min_size=1, max_size=7)


@given(TEXTS, st.text(max_size=10))
def test_a_chain_covers_its_chat_and_every_block_counts(texts: list[str], system: str) -> None:
    chain = chain_of(chat_turns(*texts, system=system), SEED)

    assert chain.ends[-1] == chain.size == text_bytes(chat_turns(*texts, system=system))
    assert list(chain.ends) == sorted(set(chain.ends))
    assert all(
        end <= reach <= chain.size for end, reach in zip(chain.ends, chain.cached_ends, strict=True)
    )
    assert list(chain.cached_ends) == sorted(chain.cached_ends)
    assert chain.bytes_between(0, len(chain)) == chain.size


@given(st.binary(max_size=8_000), st.binary(max_size=2_400), st.binary(max_size=2_400))
def test_texts_share_the_whole_blocks_of_their_common_head(
    head: bytes, one: bytes, other: bytes
) -> None:
    texts = [(head + tail).decode("latin-1").replace("\x1e", " ") for tail in (one, other)]
    common = next(
        (i for i, (a, b) in enumerate(zip(*texts, strict=False)) if a != b), min(map(len, texts))
    )
    whole = len(texts[0][:common].encode()) // BLOCK_BYTES
    chains = [chain_of([("", text)], SEED) for text in texts]

    assert shared_blocks(*chains) == min(whole, *map(len, chains))


ANSWERS = st.sampled_from(
    ["", "Why?", "é" * 300, 'a "{}" ' * 200, '{"role":"assistant","content":"x"}, ']
)
MESSAGES = st.builds(
    lambda role, text: {"role": role, "content": text}, st.sampled_from(["user", "tool"]), ANSWERS
)


@given(st.lists(st.tuples(MESSAGES, ANSWERS), min_size=1, max_size=5), st.booleans())
def test_a_chat_whose_earlier_turns_are_known_has_the_chain_of_one_that_is_read(
    exchanges: list[tuple[dict[str, str], str]], has_tools: bool
) -> None:
    known, messages = KnownChats(), list[dict[str, str]]()
    for message, answer in exchanges:
        messages.append(message)
        fields = {"tools": [{"name": "f"}]} if has_tools and len(messages) % 3 else {}
        prompt = parse("/v1/chat/completions", "", orjson.dumps({**fields, "messages": messages}))
        chains = [known.read(prompt, seed, 100_000) for seed in (SEED, 8, SEED)]

        assert chains[0] is chains[2]
        assert chains[0] == chain_of(prompt.turns(100_000), SEED)
        assert chains[1] == chain_of(prompt.turns(100_000), 8)
        messages.append({"role": "assistant", "content": answer})
