"""Whatever a client sends is answered: with tokens or with an error, and nothing stays behind."""

from typing import Any, cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.simulator.http.apis.api import Api
from extproc.simulator.http.apis.chat import Chat
from extproc.simulator.http.apis.completions import Completions
from extproc.simulator.http.apis.messages import Messages
from extproc.simulator.http.apis.responses import Responses
from extproc.simulator.http.driver import Clock
from extproc.simulator.http.endpoint import SimulatedEndpoint
from extproc.simulator.http.refusals import VllmRefusal, decode_body, refuse_unsupported
from tests.simulator.face import NOON, QUICK_OPTIONS

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 2**70) | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=12,
)
MESSAGE = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "system"])},
    optional={"content": st.text(max_size=40) | JSON, "tool_calls": JSON},
)
# Half of the fields are as they should be, so that some bodies get all the way.
BODY = st.fixed_dictionaries(
    {},
    optional={
        "model": st.just("tiny") | JSON,
        "messages": st.lists(MESSAGE, max_size=3) | JSON,
        "prompt": st.text(max_size=40) | st.lists(st.integers(0, 100), max_size=20) | JSON,
        "input": st.text(max_size=40) | st.lists(MESSAGE, max_size=3) | JSON,
        "system": JSON,
        "max_tokens": st.integers(-1, 5000) | JSON,
        "max_output_tokens": st.integers(-1, 5000) | JSON,
        "n": st.integers(0, 3) | JSON,
        "min_tokens": st.integers(-1, 9) | JSON,
        "seed": JSON,
        "stream": st.booleans() | JSON,
        "stream_options": JSON,
        "cache_salt": st.text(max_size=5) | JSON,
        "tool_choice": JSON,
        "response_format": JSON,
        "text": JSON,
        "include": JSON,
        "logprobs": JSON,
    },
)
Body = st.one_of(BODY, JSON)


@pytest.mark.parametrize("api", [Chat(), Completions(), Responses(), Messages()])
@given(body=Body)
def test_any_body_is_answered_or_refused(api: Api, body: object) -> None:
    endpoint = SimulatedEndpoint("vllm", QUICK_OPTIONS, Clock(), lambda: NOON)
    try:
        ask = api.read(body, endpoint.options.tokenizer)
        refuse_unsupported(cast("dict[str, Any]", body))
        reply = endpoint.begin(ask, endpoint.head(ask, api.id_prefix))
    except VllmRefusal as refusal:
        answer: Any = msgspec.json.decode(msgspec.json.encode(api.describe(refusal)))

        assert isinstance(answer["error"]["message"], str)
        assert endpoint.driver.engine.is_idle
    else:
        assert not endpoint.driver.engine.is_idle
        reply.close()
        assert endpoint.driver.engine.is_idle


@given(st.binary(max_size=60) | JSON.map(lambda value: repr(value).encode("utf-8", "replace")))
def test_any_bytes_are_a_value_or_refused(data: bytes) -> None:
    try:
        outcome = decode_body(data, "application/json; charset=utf-8")
    except VllmRefusal as refusal:
        outcome = refusal.status

    assert outcome is not None
