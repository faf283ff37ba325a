"""`/v1/responses`. The wording is that of vLLM 0.32.0."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from extproc.simulator.http.apis.api import Frames
from extproc.simulator.http.apis.fields import Message
from extproc.simulator.http.apis.responses_asked import ResponseRequest
from extproc.simulator.http.apis.responses_frames import ResponseFrames
from extproc.simulator.http.apis.responses_told import describe_response
from extproc.simulator.http.order import AnswerHead, FinishedAnswer, Order, Usage
from extproc.simulator.http.prompts import render
from extproc.simulator.http.refusals import Refusal
from extproc.simulator.http.scores import refuse_param
from extproc.simulator.http.store import ResponseStore, StoredResponse
from extproc.simulator.http.tokens import Tokenizer

_INCLUDES_SCORES: Final = "message.output_text.logprobs"


class Responses:
    """`store` holds what may be gone on with."""

    id_prefix = "resp_"

    def __init__(self, store: ResponseStore | None = None) -> None:
        self.store = ResponseStore() if store is None else store

    def read(self, body: object, tokenizer: Tokenizer) -> Order:
        request = ResponseRequest.read(body)
        if request.background and not request.store:
            raise refuse_param("background can only be used when `store` is true", "background")
        form = request.form()
        before: Sequence[Message] = ()
        if request.previous_response_id is not None:
            before = self.store.find(request.previous_response_id).told
        messages = request.messages(before)
        wants_scores = _INCLUDES_SCORES in (request.include or ())
        return Order(
            prompts=[tokenizer.encode(render(messages, request.tools))],
            model=request.model,
            max_tokens=request.max_output_tokens,
            max_tokens_name="max_output_tokens",
            ignore_eos=request.ignore_eos,
            seed=request.seed or 0,
            cache_salt=request.cache_salt or "",
            is_stream=bool(request.stream),
            repeated=request.repeated(),
            form=form,
            scores=(request.top_logprobs or 0) if wants_scores else None,
            told=messages,
            keeps=request.store is not False,
        )

    def keep(self, order: Order, body: Mapping[str, Any]) -> None:
        """Stores a response that is complete, if its client did not say otherwise."""
        if not order.keeps:
            return
        # What a model calls its client sends again, with what came of it.
        told = [
            *order.told,
            *(
                Message(role="assistant", content=item["content"][0]["text"])
                for item in body["output"]
                if item["type"] == "message"
            ),
        ]
        characters = sum(len(message.model_dump_json()) for message in told)
        self.store.add(body["id"], StoredResponse(body, told, characters))

    def describe(self, refusal: Refusal) -> dict[str, Any]:
        return refusal.describe()

    def frames(self, head: AnswerHead, order: Order) -> Frames:
        return ResponseFrames(head, order, self.keep)

    def whole(
        self, head: AnswerHead, order: Order, choices: Sequence[FinishedAnswer], usage: Usage
    ) -> dict[str, Any]:
        body = describe_response(head, order, choices[0], usage)
        self.keep(order, body)
        return body
