"""The simulated Messages API reads a prompt as vLLM does: else no run could show what a router misses."""

from typing import Any

from extproc.simulator.http.apis.chat import Chat
from extproc.simulator.http.apis.messages import CountRequest, Messages
from extproc.simulator.http.tokens import FourByteTokenizer
from tests.router.routing.left_out import ALIKE, APART, ASK
from tests.tables import table


def rendered(body: dict[str, Any]) -> list[str]:
    return CountRequest.read({"model": "m", **body}).render()


@table("one, other", ALIKE.values(), ids=ALIKE)
def test_what_vllm_leaves_out_makes_the_same_prompt(
    one: dict[str, Any], other: dict[str, Any]
) -> None:
    assert rendered(one) == rendered(other)


@table("one, other", [*APART.values()][:4])
def test_what_vllm_reads_makes_another(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert rendered(one) != rendered(other)


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
