"""The events of a streamed answer of `/v1/responses`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import orjson

from extproc.simulator.http.apis.responses_told import (
    describe_call_item,
    describe_response,
    list_scores,
    name_call_item,
    name_item,
)
from extproc.simulator.http.forms import Call, CallDelta
from extproc.simulator.http.order import AnswerHead, Due, FinishedAnswer, Order, Usage
from extproc.simulator.http.scores import Score


class ResponseFrames:
    """Typed events with running numbers; the text is needed again at the end.

    `keep` is told of the response when it is complete.
    """

    def __init__(
        self, head: AnswerHead, order: Order, keep: Callable[[Order, Mapping[str, Any]], None]
    ) -> None:
        self._head = head
        self._order = order
        self._keep = keep
        self._item_id = name_item(head)
        self._number = 0
        self._text = b""
        self._is_open = False
        self._calls: list[Call] = []
        self._scores: list[Score] | None = None if order.scores is None else []
        self._reason = "stop"
        self._position = {"content_index": 0, "item_id": self._item_id, "output_index": 0}

    def opening(self) -> bytes:
        response = describe_response(self._head, self._order, None, None)
        return self._event("response.created", {"response": response}) + self._event(
            "response.in_progress", {"response": response}
        )

    def piece(self, _index: int, due: Due) -> bytes:
        if due.deltas:
            return b"".join(map(self._tell, due.deltas))
        if self._calls or not due.text:
            return b""
        opening = b"" if self._is_open else self._open_text()
        self._text += due.text
        if self._scores is not None and due.scores:
            self._scores += due.scores
        scores = b"[]" if not due.scores else orjson.dumps(self._list_scores(due.scores))
        delta = (
            b'event: response.output_text.delta\ndata: {"content_index":0,"delta":"%b","item_id":"%b",'
            b'"logprobs":%b,"output_index":0,"sequence_number":%d,"type":"response.output_text.delta"}\n\n'
            % (due.text, self._item_id.encode(), scores, self._number)
        )
        self._number += 1
        return opening + delta

    def last_piece(self, index: int, due: Due, reason: str) -> bytes:
        self._reason = reason
        return self.piece(index, due)

    def closing(self, usage: Usage) -> bytes:
        text: str = orjson.loads(b'"%b"' % self._text)
        choice = FinishedAnswer(text, self._reason, self._calls, self._scores)
        response = describe_response(self._head, self._order, choice, usage)
        self._keep(self._order, response)
        ends = self._close_call() if self._calls else self._close_text(response["output"][0], text)
        return ends + self._event("response.completed", {"response": response})

    def _open_text(self) -> bytes:
        self._is_open = True
        item = {"id": self._item_id, "content": [], "role": "assistant", "status": "in_progress"}
        part: dict[str, Any] = {"annotations": [], "text": "", "type": "output_text", "logprobs": []}
        return self._event(
            "response.output_item.added",
            {"item": item | {"type": "message", "phase": None}, "output_index": 0},
        ) + self._event("response.content_part.added", self._position | {"part": part})

    def _close_text(self, item: dict[str, Any], text: str) -> bytes:
        scores = [] if self._scores is None else self._list_scores(self._scores)
        opening = b"" if self._is_open else self._open_text()
        return (
            opening
            + self._event("response.output_text.done", self._position | {"logprobs": scores, "text": text})
            + self._event("response.content_part.done", self._position | {"part": item["content"][0]})
            + self._event("response.output_item.done", {"item": item, "output_index": 0})
        )

    def _tell(self, delta: CallDelta) -> bytes:
        if delta.name:
            ending = self._close_call() if self._calls else b""
            self._calls.append(Call(delta.id, delta.name, ""))
            item = describe_call_item(self._calls[-1], is_whole=False)
            place = {"item": item, "output_index": delta.call}
            return ending + self._event("response.output_item.added", place)
        call = self._calls[-1]
        self._calls[-1] = replace(call, arguments=call.arguments + delta.arguments)
        position = {"delta": delta.arguments, "item_id": name_call_item(call), "output_index": delta.call}
        return self._event("response.function_call_arguments.delta", position)

    def _close_call(self) -> bytes:
        call = self._calls[-1]
        place: dict[str, Any] = {"output_index": len(self._calls) - 1}
        item = {"item": describe_call_item(call, is_whole=True)}
        done = {"arguments": call.arguments, "item_id": name_call_item(call), "name": call.name}
        return self._event("response.function_call_arguments.done", place | done) + self._event(
            "response.output_item.done", place | item
        )

    def _list_scores(self, scores: Sequence[Score]) -> list[dict[str, Any]]:
        return list_scores(scores, self._order.scores or 0)

    def _event(self, kind: str, members: dict[str, Any]) -> bytes:
        # OpenAI's events have their members in alphabetical order.
        members |= {"sequence_number": self._number, "type": kind}
        data = orjson.dumps({name: members[name] for name in sorted(members)})
        self._number += 1
        return b"event: %b\ndata: %b\n\n" % (kind.encode(), data)
