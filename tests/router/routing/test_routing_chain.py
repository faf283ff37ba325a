"""Chains: where a prompt is cut, and what two of them have in common."""

from hypothesis import given
from hypothesis import strategies as st

from extproc.router.routing.prompt.chain import BLOCK_BYTES, Chain, chain_of
from extproc.router.routing.prompt.turns import TURN_START, TURN_TEXT
from tests.tables import table

SEED = 7


def turn(role: str, text: str) -> str:
    return f"{TURN_START}{role}{TURN_TEXT}{text}"


def chat(*texts: str, system: str = "Be kind.") -> str:
    """A system text, then user and assistant in turns."""
    roles = ("user", "assistant")
    said = [turn(roles[index % 2], text) for index, text in enumerate(texts)]
    return "".join([turn("system", system), *said])


def shared(one: Chain, other: Chain) -> int:
    pairs = zip(one.hashes, other.hashes, strict=False)
    return next((index for index, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


def test_bare_text_is_cut_into_whole_blocks_only() -> None:
    chain = chain_of("a" * (3 * BLOCK_BYTES - 1), SEED)

    assert chain.ends == [BLOCK_BYTES, 2 * BLOCK_BYTES]
    assert chain.reaches == chain.ends
    assert (chain.size, chain.answered) == (3 * BLOCK_BYTES - 1, 0)


def test_a_chat_is_cut_at_its_end_to_the_byte() -> None:
    text = chat("Why is the sky blue?")
    chain = chain_of(text, SEED)

    assert chain.ends == [len(text)]


@table(("rest", "blocks"), [(0, 2), (63, 2), (64, 3), (255, 3)])
def test_a_small_rest_makes_the_last_block_longer(rest: int, blocks: int) -> None:
    head = turn("user", "")
    chain = chain_of(head + "a" * (2 * BLOCK_BYTES + rest - len(head)), SEED)

    assert len(chain) == blocks
    assert chain.ends[-1] == chain.size


def test_the_next_turn_begins_with_the_whole_chain_of_the_one_before() -> None:
    first = chain_of(chat("Why?"), SEED)
    second = chain_of(chat("Why?", "Because.", "And how? " * 100), SEED)
    third = chain_of(chat("Why?", "Because.", "And how? " * 100, "So.", "Oh."), SEED)

    assert shared(first, second) == len(first)
    assert shared(second, third) == len(second)


def test_who_served_a_turn_has_its_answer_too() -> None:
    before, answer = chat("Why?"), turn("assistant", "Because.")
    chain = chain_of(before + answer + turn("user", "And how?"), SEED)

    assert chain.ends[0] == len(before)
    assert chain.reach(0) == 0
    assert chain.reach(1) == len(before + answer) == chain.answered
    assert chain.reach(2) == chain.size


def test_what_a_model_says_in_several_pieces_is_one_answer() -> None:
    before = turn("user", "Weather?")
    spoken = turn("reasoning", "Hm.") + turn("function_call", "get()") + turn("assistant", "Wait.")
    chain = chain_of(before + spoken + turn("function_call_output", "rain"), SEED)

    assert chain.ends == [len(before), chain.size]
    assert chain.reach(1) == len(before + spoken)


def test_all_turns_of_a_conversation_have_one_home() -> None:
    said = ["Why? " * 200, "Because.", "How?", "So.", "When?"]
    homes = {chain_of(chat(*said[:count]), SEED).home for count in (1, 3, 5)}

    assert len(homes) == 1
    assert homes != {chain_of(chat("Who?"), SEED).home}


def test_what_stands_before_the_user_is_a_block_end_with_a_name_of_its_own() -> None:
    system = "Be kind. " * 100
    one, other = (chain_of(chat(text, system=system), SEED) for text in ("Why?", "Who are you?"))
    plain = chain_of(chat("Why?"), SEED)

    assert one.rooted == len(turn("system", system)) == other.rooted
    assert one.rooted in one.ends
    assert (one.root == other.root, one.home == other.home) == (True, False)
    assert (plain.root, plain.rooted) == (0, 0)


def test_a_growing_text_has_one_home() -> None:
    assert chain_of("ab" * 400, SEED).home == chain_of("ab" * 900, SEED).home


def test_an_answer_first_is_read_like_any_text() -> None:
    chain = chain_of(turn("assistant", "Hello!") + turn("user", "Hi."), SEED)

    assert chain.ends == [chain.size]
    assert chain.reach(1) == chain.size


@table("text", ["", "short", "é" * 10])
def test_what_fills_no_block_has_none(text: str) -> None:
    chain = chain_of(text, SEED)

    assert len(chain) == 0
    assert chain.size == len(text.encode())


def test_different_seeds_share_nothing() -> None:
    text = chat("Why?" * 300)

    assert shared(chain_of(text, 1), chain_of(text, 2)) == 0


def test_a_lone_surrogate_is_hashed_like_anything() -> None:
    assert chain_of("\ud800" * 200, SEED).size == 600


TEXTS = st.lists(st.text(st.sampled_from("ab é\x1e\x1f"), max_size=600), min_size=1, max_size=7)


@given(TEXTS, st.text(max_size=10))
def test_a_chain_covers_its_chat_and_every_block_counts(texts: list[str], system: str) -> None:
    chain = chain_of(chat(*texts, system=system), SEED)

    assert chain.ends[-1] == chain.size
    assert list(chain.ends) == sorted(set(chain.ends))
    assert all(end <= reach <= chain.size for end, reach in zip(chain.ends, chain.reaches, strict=True))
    assert list(chain.reaches) == sorted(chain.reaches)
    assert chain.bytes_between(0, len(chain)) == chain.size


@given(st.binary(max_size=2_000), st.binary(max_size=600), st.binary(max_size=600))
def test_texts_share_the_whole_blocks_of_their_common_head(head: bytes, one: bytes, other: bytes) -> None:
    texts = [(head + tail).decode("latin-1").replace("\x1e", " ") for tail in (one, other)]
    common = next((i for i, (a, b) in enumerate(zip(*texts, strict=False)) if a != b), min(map(len, texts)))
    whole = len(texts[0][:common].encode()) // BLOCK_BYTES
    chains = [chain_of(text, SEED) for text in texts]

    assert shared(*chains) == min(whole, *map(len, chains))
