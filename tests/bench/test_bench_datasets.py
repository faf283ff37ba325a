"""The dataset preprocessor: sources, filters, lengths, order, and the account of the result."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.bench.datasets.chats import write_prepared
from extproc.bench.datasets.conversation import (
    BYTES,
    ChatTurn,
    Conversation,
    Ruler,
    TurnMessage,
    build_prompts,
    count_prompt_tokens,
    fit_text,
    join_prompt,
)
from extproc.bench.datasets.dataset_account import account, find_period
from extproc.bench.datasets.prepare import fit_messages, prepare
from extproc.bench.datasets.tokens import TokenRuler
from extproc.bench.load.registry import PROCESSORS, build_registry
from extproc.bench.processors.processor import ChatQuery
from extproc.bench.spec.presets import PRESETS
from extproc.bench.spec.traffic import Dataset, TrafficShape
from extproc.errors import SettingsError
from tests.tables import table


def build_dataset(
    dataset: object,
    *,
    need: int = 100,
    seed: int = 1,
    ruler: Ruler = BYTES,
    api: str | None = None,
    **traffic: Any,
) -> list[Conversation]:
    rate = None if traffic.get("shape") == "trace" else 1
    shape = TrafficShape.model_validate(
        {"req_rate": rate, "total_prompts": need, "dataset": dataset, **traffic}
    )
    source = build_registry((), ruler, api).dataset(shape.dataset.name)
    return prepare(shape, source, need, np.random.SeedSequence(seed), ruler)


def chat(messages: int, size: int = 10) -> dict[str, object]:
    roles = ["human", "gpt"]
    return {
        "conversations": [{"from": roles[i % 2], "value": f"{i} " * size} for i in range(messages)]
    }


def write_json(path: Path, rows: object) -> Path:
    path.write_text(json.dumps(rows))
    return path


def test_sharegpt_is_cut_at_its_answers(tmp_path: Path) -> None:
    said = [
        ("gpt", "welcome"),
        ("system", "be brief"),
        ("human", "a"),
        ("human", "b"),
        ("gpt", "one"),
    ]
    turns = [{"from": who, "value": text} for who, text in [*said, ("human", "unanswered")]]
    path = write_json(tmp_path / "s.json", [{"conversations": turns}])
    (conversation,) = build_dataset({"name": "share-gpt", "path": path})

    asked = (TurnMessage("system", "be brief"), TurnMessage("user", "a"), TurnMessage("user", "b"))
    assert conversation.turns == (ChatTurn(asked, 1, "one"),)


def test_openorca_rows_and_openai_bodies_are_single_turns(tmp_path: Path) -> None:
    rows, bodies = tmp_path / "o.jsonl", tmp_path / "bodies.jsonl"
    rows.write_text('{"system_prompt": "s", "question": "q", "response": "r"}\n{"question": ""}\n')
    bodies.write_text(
        '{"messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}], "max_tokens": 3}\n'
        '{"body": {"prompt": "once"}}\n'
    )
    (row,) = build_dataset({"name": "open-orca", "path": rows})
    chat_body, completion = build_dataset({"name": "openai-bodies", "path": bodies})

    assert row.turns == (ChatTurn((TurnMessage("system", "s"), TurnMessage("user", "q")), 1, "r"),)
    assert chat_body.turns == (ChatTurn((TurnMessage("user", "hi"),), 3),)
    assert chat_body.body is not None
    assert completion.turns[0].messages == (TurnMessage("user", "once"),)


def test_filters_of_both_published_benchmarks(tmp_path: Path) -> None:
    """16 messages or more; 5 user messages or more and 2,500 characters or more."""
    rows = [chat(14), chat(16), chat(30), chat(8, size=2000), chat(10, size=2000)]
    path = write_json(tmp_path / "s.json", rows)

    long = build_dataset({"name": "share-gpt", "path": path, "min-messages": 16})
    wordy = build_dataset(
        {"name": "share-gpt", "path": path, "min-user-messages": 5, "min-user-characters": 2500}
    )
    assert [c.message_count for c in long] == [16, 30]
    assert [c.message_count for c in wordy] == [10]


def test_prompts_per_turn_extend_one_another_up_to_max_prompt_tokens(tmp_path: Path) -> None:
    path = write_json(tmp_path / "s.json", [chat(6, size=40)])
    dataset = {"name": "share-gpt", "path": path, "turns": "prompts"}
    prompts, short = build_dataset(dataset), build_dataset({**dataset, "max-prompt-tokens": 60})

    texts = [join_prompt(prompt.turns[0].messages) for prompt in prompts]
    assert [len(prompt.turns[0].messages) for prompt in prompts] == [1, 3, 5]
    assert texts[1].startswith(texts[0])
    assert texts[2].startswith(texts[1])
    assert short == prompts[:2]


def test_max_prompts_cuts_prompts_and_repeat_takes_them_again(tmp_path: Path) -> None:
    path = write_json(tmp_path / "s.json", [chat(6), chat(6)])
    dataset = {"name": "share-gpt", "path": path, "turns": "prompts", "max-prompts": 4, "repeat": 3}
    prompts = build_dataset(dataset)
    shuffled = build_dataset({**dataset, "shuffle": True})

    assert len(prompts) == 12
    assert prompts[:4] == prompts[4:8]
    assert shuffled != prompts
    # As KubeAI's script does it: one random order, gone through again and again.
    assert shuffled[:4] == shuffled[4:8] == shuffled[8:]
    assert sorted(map(repr, shuffled)) == sorted(map(repr, prompts))


def test_shared_prefixes_are_shared_by_popularity_and_random_prompts_share_nothing() -> None:
    dataset = {"name": "shared-prefix", "groups": 4, "prefix-tokens": 50, "hot-share": 0.25}
    systems = [prompt.turns[0].messages[0].content for prompt in build_dataset(dataset, need=4000)]
    shares = sorted(systems.count(system) / 4000 for system in set(systems))
    alone = account(build_dataset("random", need=50), 50, 8)

    assert shares == pytest.approx([0.1875] * 3 + [0.4375], abs=0.03)
    assert (alone.exact_repeats, alone.ideal_hit_rate) == (0, 0)
    assert alone.distinct_tokens == alone.input_tokens == 50 * 1024


@table("name", PRESETS)
def test_preset_builds(name: str) -> None:
    traffic = TrafficShape.model_validate({"preset": name, "req_rate": 1, "total_prompts": 20})
    source = build_registry().dataset(traffic.dataset.name)
    prompts = prepare(traffic, source, 20, np.random.SeedSequence(1))
    made = account(prompts, 20, 1)

    assert prompts
    if name in ("summarization", "generation"):
        assert (made.input_tokens > 10 * made.output_tokens) == (name == "summarization")


AZURE = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    "2023-11-16 18:17:03.9799600,12,4\n2023-11-16 18:17:05.4799600,8,2\n"
)


def test_trace_keeps_times_and_lengths(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(AZURE)
    dataset = {"name": "trace", "layout": "azure", "path": path, "speed": 2}
    first, second = build_dataset(dataset, shape="trace")

    assert build_dataset({**dataset, "max-prompts": 1}, shape="trace") == [first]
    assert [first.arrival_s, second.arrival_s] == pytest.approx([0.0, 0.75])
    assert [c.turns[0].output_tokens for c in (first, second)] == [4, 2]
    assert [BYTES.count(c.turns[0].messages[0].content) for c in (first, second)] == [12, 8]


def test_mooncake_blocks_give_equal_text_for_equal_ids(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    rows = [(0, 1000, [1, 2]), (500, 1000, [1, 3])]
    path.write_text(
        "".join(
            json.dumps({"timestamp": at, "input_length": size, "output_length": 2, "hash_ids": ids})
            + "\n"
            for at, size, ids in rows
        )
    )
    first, second = (
        c.turns[0].messages[0].content
        for c in build_dataset({"name": "trace", "layout": "mooncake", "path": path}, shape="trace")
    )

    assert first[: 512 * 4] == second[: 512 * 4]
    assert first[512 * 4 :] != second[512 * 4 :]


MOONCAKE = '{"timestamp": 0, "input_length": 513, "output_length": 2'


def test_prepared_file_reads_back_what_was_written(tmp_path: Path) -> None:
    path = tmp_path / "dataset.jsonl"
    conversations = build_dataset("synthetic", need=20)
    write_prepared(path, conversations)

    assert build_dataset({"name": "prepared", "path": path}) == conversations


@table(
    ("name", "text", "fault"),
    [
        ("share-gpt", "{nope", "line 1 is not JSON"),
        ("share-gpt", "[1]", "rows must be JSON objects"),
        ("share-gpt", "[]", "nothing is left"),
        ("share-gpt", None, "No such file"),
        ("prepared", "{}", "not a dataset file"),
        ("azure", "a,b\n1,2\n", "not a trace of layout azure"),
        (
            "mooncake",
            MOONCAKE + ', "delay": 3, "turn": 1}',
            "row 1 has delay, turn, which is not replayed: leave",
        ),
        (
            "mooncake",
            MOONCAKE + ', "hash_ids": [1]}',
            "row 1: input_length is above 512 tokens for each of hash_i",
        ),
        (
            "mooncake",
            MOONCAKE + ', "hash_ids": 7}',
            "row 1: hash_ids is no list of numbers or texts",
        ),
        ("mooncake", "{}", "row 1: input_length is no number from 0 on"),
    ],
)
def test_file_that_cannot_be_used_is_told(
    name: str, text: str | None, fault: str, tmp_path: Path
) -> None:
    path = tmp_path / ("file" if text is not None else "none")
    path.write_text(text) if text is not None else None
    options = {"name": "trace", "layout": name} if name in {"azure", "mooncake"} else {"name": name}

    with pytest.raises(SettingsError, match=fault):
        build_dataset({"path": path, **options})
    with pytest.raises(SettingsError, match="give the path of a local file"):
        build_dataset("share-gpt")


TEXTS = st.text(alphabet="ab é👋", max_size=60)


@given(TEXTS, st.integers(min_value=1, max_value=30))
def test_fitted_text_has_its_length_and_keeps_its_head(text: str, tokens: int) -> None:
    fitted = fit_text(text, tokens)

    assert BYTES.count(fitted) == tokens
    assert fitted.startswith(BYTES.trim(text, tokens))


@given(TEXTS, TEXTS, TEXTS, st.integers(min_value=1, max_value=20))
def test_fitting_keeps_common_prefixes(head: str, one: str, other: str, tokens: int) -> None:
    """Equal prompts stay equal; prompts share what they shared, as far as their new length goes."""
    prompts = [(TurnMessage("system", head), TurnMessage("user", tail)) for tail in (one, other)]
    a, b = ("\0".join(m.content for m in fit_messages(prompt, tokens)) for prompt in prompts)

    assert (a == b) or one != other
    # Instructions that would take all the room leave an eighth of it to the question.
    shared = BYTES.trim(head, tokens - max(1, tokens // 8))
    assert a.startswith(shared)
    assert b.startswith(shared)


def test_padding_does_not_continue_the_prompt_and_instructions_leave_room_for_the_question() -> (
    None
):
    """Were filler equal for all, a prompt and its continuation would share it by accident."""
    a, b = (
        fit_messages((TurnMessage("user", text),), 40)[0].content
        for text in ("tell me", "tell me more")
    )
    fitted = fit_messages(
        (TurnMessage("system", "law " * 500), TurnMessage("user", "why " * 50)), 80
    )

    assert BYTES.count(a) == BYTES.count(b) == 40
    assert a[7:20] != b[12:25]
    assert [(m.role, BYTES.count(m.content)) for m in fitted] == [("system", 70), ("user", 10)]


def test_input_length_applies_to_prompts_and_variable_lengths_are_drawn(tmp_path: Path) -> None:
    path = write_json(tmp_path / "s.json", [chat(6), chat(8)])
    dataset = {"name": "share-gpt", "path": path, "turns": "prompts"}
    fixed = build_dataset(dataset, input_length=64, max_output_length=9)
    varied = build_dataset(dataset, input_length={"kind": "uniform", "min": 10, "max": 90})

    sizes = {BYTES.count(join_prompt(c.turns[0].messages).replace("\n\n", "")) for c in fixed}
    assert sizes <= {64, 65}
    assert {c.turns[0].output_tokens for c in fixed} == {9}
    assert len({BYTES.count(join_prompt(c.turns[0].messages)) for c in varied}) > 3


def prompt_of(*sizes: int) -> tuple[TurnMessage, ...]:
    """Alternating messages of so many tokens, from a question on; the last is a question."""
    roles = ["user", "assistant"]
    return tuple(
        TurnMessage(roles[place % 2], f"{place}ab " * size) for place, size in enumerate(sizes)
    )


@table("tokens", range(2, 60))
@table("system", [(), (TurnMessage("system", "be brief " * 4),)])
def test_input_length_is_the_prompts_and_ends_in_asking(
    tokens: int, system: tuple[TurnMessage, ...]
) -> None:
    prompt = (*system, *prompt_of(10, 8, 6, 12, 4))
    fitted = fit_messages(prompt, tokens)

    assert count_prompt_tokens(fitted) == tokens
    assert fitted[-1].role == "user"
    assert [m.role for m in fitted] == [m.role for m in prompt][: len(fitted)]
    assert all(
        ours.content and each.content.startswith(ours.content)
        for ours, each in zip(fitted[:-1], prompt, strict=False)
    )


def test_prompts_of_one_conversation_are_no_repeats_at_a_length() -> None:
    """A quarter of 1,024-token prompts were: later turns of a conversation were all cut to one head."""
    prompts = build_dataset("synthetic", need=400, input_length=1024)
    honesty = account(prompts, len(prompts), 1)
    roles = {tuple(m.role for m in c.turns[0].messages) for c in prompts}

    assert honesty.exact_repeats == 0
    assert honesty.ideal_hit_rate > 0.5
    assert all(role != other for found in roles for role, other in pairwise(found))


def test_input_length_of_conversations_is_that_of_every_request(tmp_path: Path) -> None:
    """Without `turns` a length makes each turn a request of its own: a session's prompt would grow."""
    path = write_json(tmp_path / "s.json", [chat(16, size=40), chat(20, size=30)])
    for dataset in ({"name": "share-gpt", "path": path}, {"name": "synthetic"}, {"name": "random"}):
        prompts = build_dataset(dataset, need=30, input_length=1024)
        honesty = account(prompts, len(prompts), 1)

        assert {len(c.turns) for c in prompts} == {1}
        assert set(honesty.input_quantiles) == {1024}
        assert {c.turns[0].messages[-1].role for c in prompts} == {"user"}


@pytest.fixture(scope="module")
def word_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A byte-level BPE that knows few words, so that none of our rules of thumb is right for it."""
    tokenizers = pytest.importorskip("tokenizers")
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=400,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(
        ["the quick brown fox jumps over the lazy dog", "bab cad dob"] * 50, trainer
    )
    made.save(str(path))
    return path


@table("name", ["random", "synthetic", "share-gpt"])
def test_lengths_are_counted_by_a_tokenizer_that_is_there(
    name: str, word_tokenizer: Path, tmp_path: Path
) -> None:
    ruler = TokenRuler(word_tokenizer)
    section = {"name": name}
    if name == "share-gpt":
        section["path"] = str(write_json(tmp_path / "s.json", [chat(16, size=40)]))
    prompts = build_dataset(section, need=8, input_length=300, ruler=ruler)
    honesty = account(prompts, len(prompts), 1, ruler)
    generated = build_dataset({"name": "random", "input_tokens": 77}, need=5, ruler=ruler)

    assert {sum(ruler.count(m.content) for m in c.turns[0].messages) for c in prompts} == {300}
    assert set(honesty.input_quantiles) == {300}
    assert f"tokens by        the tokenizer {word_tokenizer}" in str(honesty)
    assert {ruler.count(c.turns[0].messages[0].content) for c in generated} == {77}


@given(TEXTS, st.integers(min_value=1, max_value=30))
def test_tokenizer_trims_and_fits_any_text(word_tokenizer: Path, text: str, tokens: int) -> None:
    ruler = TokenRuler(word_tokenizer)

    assert ruler.count(ruler.trim(text, tokens)) <= tokens
    assert text.startswith(ruler.trim(text, tokens))
    assert ruler.count(fit_text(text, tokens, ruler=ruler)) == tokens


def test_account_warns_of_a_cycled_datasets_period_and_counts_hits_of_whole_blocks() -> None:
    prompts = build_dataset("random", need=16)
    cycled = account(prompts, 64, endpoints=8)
    twice = account(
        [Conversation((ChatTurn((TurnMessage("user", fit_text("", 32)),), 1),))], 2, endpoints=8
    )

    assert (cycled.exact_repeats, cycled.period, cycled.has_faked_affinity) == (0.75, 16, True)
    assert "round robin will look like affinity" in str(cycled)
    assert not account(prompts[:15], 60, endpoints=8).has_faked_affinity
    # Of the second 32 tokens the last block is computed again.
    assert (twice.ideal_hit_rate, twice.distinct_tokens, twice.reuse) == (16 / 64, 32, {"2": 1.0})


@given(st.lists(st.integers(0, 2), min_size=1, max_size=4), st.integers(2, 4))
def test_period_of_a_repeated_list_divides_nothing_smaller(keys: list[int], times: int) -> None:
    period = find_period(keys * times)

    assert period is not None
    assert period <= len(keys)
    assert all(a == b for a, b in zip(keys * times, (keys * times)[period:], strict=False))
    assert find_period([1, 2, 3, 4]) is find_period([]) is None


def test_turns_without_reply_add_nothing_to_the_next_prompt() -> None:
    turns = (ChatTurn((TurnMessage("user", "a"),), 1), ChatTurn((TurnMessage("user", "b"),), 1))
    prompts = list(build_prompts(Conversation(turns)))

    assert [len(prompt.turns[0].messages) for prompt in prompts] == [1, 2]


def prepare_preset(preset: str, need: int, **traffic: Any) -> list[Conversation]:
    shape = TrafficShape.model_validate({"preset": preset, **traffic})
    return prepare(shape, build_registry().dataset("synthetic"), need, np.random.SeedSequence(1))


def test_preset_of_the_published_benchmark_has_its_figures() -> None:
    """8,000 requests, 6,656,338 tokens in and 608,447 out; nine in ten prompts came before."""
    prompts = prepare_preset("kubeai-8xl4", 800, req_rate=200, max_concurrency=1600)
    honesty = account(prompts, 8000, 8)

    assert len(prompts) == 8000
    assert honesty.input_tokens == pytest.approx(6_656_338, rel=0.01)
    assert honesty.output_tokens == pytest.approx(608_447, rel=0.01)
    assert honesty.exact_repeats == pytest.approx(0.9, abs=0.01)
    assert honesty.period == 800
    assert honesty.has_faked_affinity


def test_preset_of_the_published_k6_run_has_its_figures() -> None:
    """1,000 threads of 7.34 requests, 680 tokens in, 9.24 out."""
    threads = prepare_preset("kubeai-k6", 1, vus=320)
    prompts = [prompt for thread in threads for prompt in build_prompts(thread)]

    assert len(threads) == 1000
    assert len(prompts) / 1000 == pytest.approx(7.34, rel=0.03)
    assert account(threads, len(prompts), 8).input_tokens / len(prompts) == pytest.approx(
        680, rel=0.01
    )
    answers = [prompt.turns[0].output_tokens for prompt in prompts]
    assert float(np.mean(answers)) == pytest.approx(9.24, abs=0.02)


def test_chat_preset_has_the_lengths_of_sharegpt_at_large() -> None:
    """WildChat paper: 3.51 turns, questions of 94.46 +- 626 tokens, answers of 348 +- 270."""
    chats = prepare_preset("chat", 20_000, req_rate=1, total_prompts=20_000)
    replies = [turn.output_tokens for chat in chats for turn in chat.turns]

    assert len(replies) / len(chats) == pytest.approx(3.51, rel=0.05)
    assert float(np.mean(replies)) == pytest.approx(348, rel=0.05)
    assert float(np.std(replies)) == pytest.approx(270, rel=0.1)


MESSAGES = {"messages": [{"role": "user", "content": "hi"}]}
TURNS = {
    who: [{"from": who, "value": "a"}, {"from": "gpt", "value": "b"}]
    for who in ("Human", "observation", "gpt")
}


@table(
    ("api", "body", "fault"),
    [
        ("openai-completions", MESSAGES, "line 2: prompt: missing or empty"),
        ("openai-chat", {"prompt": ["a", "b"]}, "line 2: messages: missing or empty"),
        ("vllm-completions", {"prompt": ""}, "line 2: prompt: missing or empty"),
        ("openai-completions", {"prompt": [[1, 2]]}, "line 2: prompt: token ids are not"),
        *(
            ("openai-chat", {**MESSAGES, "max_tokens": limit}, "line 2: max_tokens: .* is no whole")
            for limit in (4.5, 0, -1, True)
        ),
        ("openai-completions", {"prompt": ["a", "b"], "n": 2}, ""),
        ("anthropic", {**MESSAGES, "system": "s", "tools": [{"name": "f"}], "stop": "x"}, ""),
        ("openai-responses", {"input": "hi", "instructions": "s"}, ""),
    ],
)
def test_recorded_body_is_sent_as_it_is_or_refused_with_line_and_field(
    api: str, body: dict[str, object], fault: str, tmp_path: Path
) -> None:
    path = tmp_path / "bodies.jsonl"
    path.write_text(f"\n{json.dumps({'model': 'old', 'max_tokens': 4, **body})}\n")
    dataset = {"name": "openai-bodies", "path": path}
    if fault:
        with pytest.raises(SettingsError, match=fault):
            build_dataset(dataset, api=api)
        return
    (made,) = build_dataset(dataset, api=api)
    (turn,) = made.turns
    sent = PROCESSORS[api].body(ChatQuery("m", turn.messages, turn.output_tokens, body=made.body))

    assert sent.items() >= {**body, "model": "m"}.items()
    assert turn.output_tokens == 4
    assert account([made], 1, 1).input_tokens > 0


def test_rows_that_cannot_be_asked_are_counted_and_named(tmp_path: Path) -> None:
    rows = [{"conversations": said} for said in TURNS.values()]
    path = write_json(tmp_path / "s.json", [*rows, {"items": []}])
    registry = build_registry()
    kept = registry.dataset("share-gpt")(
        Dataset(name="share-gpt", path=path), 1, np.random.default_rng(0)
    )

    assert [chat.turns[0].reply for chat in kept] == ["b"]
    assert registry.left_out == {
        "with the role observation": 1,
        "without an answered question": 1,
        "without `conversations` of `from` and `value`": 1,
    }


@table(
    ("data", "fault"),
    [
        (b"PAR1\x15\x04", "Parquet is not read: write it as JSON lines"),
        (b'{\n "data": []\n}', "no row can be asked: 1 without `conversations` of `from`"),
        (b'{"messages": []}', "no row can be asked: 1 without `conversations` of `from`"),
    ],
)
def test_foreign_shape_is_told_what_is_wanted(data: bytes, fault: str, tmp_path: Path) -> None:
    path = tmp_path / "s"
    path.write_bytes(data)
    with pytest.raises(SettingsError, match=fault):
        build_dataset({"name": "share-gpt", "path": path})
