"""The simulated Messages API reads a prompt as vLLM does: else no run could show what a router misses."""

from typing import Any

from extproc.simulator.http.apis.chat import Chat
from extproc.simulator.http.apis.messages import CountRequest, Messages
from extproc.simulator.http.apis.responses import Responses
from extproc.simulator.http.tokens import FourByteTokenizer
from tests.router.routing.left_out import ALIKE, ALIKE_ELSEWHERE, APART, APART_ELSEWHERE, ASK
from tests.tables import table


def rendered(body: dict[str, Any]) -> list[str]:
    return CountRequest.read({"model": "m", **body}).render()


@table("one, other", ALIKE.values(), ids=ALIKE)
def test_what_vllm_leaves_out_makes_the_same_prompt(
    one: dict[str, Any], other: dict[str, Any]
) -> None:
    assert rendered(one) == rendered(other)


@table("one, other", [*APART.values()][:-1])
def test_what_vllm_reads_makes_another(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert rendered(one) != rendered(other)


def tokens(path: str, body: dict[str, Any]) -> object:
    api = Chat() if path == "chat/completions" else Responses()
    return api.read(body, FourByteTokenizer()).prompts


@table("path, one, other", ALIKE_ELSEWHERE.values(), ids=ALIKE_ELSEWHERE)
def test_so_do_the_other_apis(path: str, one: dict[str, Any], other: dict[str, Any]) -> None:
    assert tokens(path, one) == tokens(path, other)


@table("path, one, other", APART_ELSEWHERE.values(), ids=APART_ELSEWHERE)
def test_what_they_read_makes_another(
    path: str, one: dict[str, Any], other: dict[str, Any]
) -> None:
    assert tokens(path, one) != tokens(path, other)


def test_system_messages_stand_in_front() -> None:
    late = {"role": "system", "content": "Be brief."}

    assert rendered({"system": "You are an agent. ", "messages": [ASK, late]}) == rendered(
        {"system": "You are an agent. Be brief.", "messages": [ASK]}
    )


@table(
    "part",
    [
        {"type": "image", "source": {"type": "url", "url": "http://a/1"}},
        {"image_url": "http://a/1"},
    ],
)
def test_a_picture_has_the_tokens_that_a_model_makes_of_it(part: dict[str, Any]) -> None:
    messages = [{"role": "user", "content": [part]}]
    tokenizer = FourByteTokenizer()
    requests = [
        api.read({"model": "m", "max_tokens": 1, "messages": messages}, tokenizer)
        for api in (Chat(), Messages())
    ]

    assert {len(request.prompts[0]) - 1_000 for request in requests} <= {*range(20)}
