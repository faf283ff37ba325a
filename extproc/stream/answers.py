"""What we answer to a client ourselves, in OpenAI's words: refusals, and the list of models."""

from collections.abc import Sequence

import orjson

from extproc.errors import RequestError
from extproc.stream.events import Answer


def refuse(error: RequestError) -> Answer:
    """Says `error` as `{"error": {"message", "type", "param", "code"}}`."""
    fields = {"message": error.message, "type": error.kind, "param": error.param, "code": error.code}
    # A client's model name may hold what UTF-8 cannot: a lone surrogate.
    fields["message"] = error.message.encode(errors="replace").decode()
    headers = {} if error.retry_after_s is None else {"retry-after": str(error.retry_after_s)}
    body = orjson.dumps({"error": fields})
    return Answer(error.status, body, error.code or "bad_request", headers, error.pool)


def list_models(names: Sequence[str]) -> Answer:
    data = [{"id": name, "object": "model", "created": 0, "owned_by": "extproc"} for name in names]
    return Answer(200, orjson.dumps({"object": "list", "data": data}), "models")
