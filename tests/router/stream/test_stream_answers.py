"""What we answer ourselves, in the words of the request's API."""

import orjson

from extproc import errors
from extproc.router.stream.answers import refuse
from tests.tables import table

ANTHROPIC = {
    errors.PromptError: (400, "invalid_request_error"),
    errors.UnknownModel: (404, "not_found_error"),
    errors.BodyTooLarge: (413, "request_too_large"),
    errors.Overloaded: (429, "rate_limit_error"),
    errors.Sheddable: (429, "rate_limit_error"),
    errors.OverShare: (429, "rate_limit_error"),
    errors.NoEndpoint: (503, "overloaded_error"),
}


@table("path", ["/v1/messages", "/v1/messages?beta=true", "/llama/v1/messages/count_tokens"])
@table("kind", ANTHROPIC)
def test_anthropics_clients_are_refused_in_anthropics_words(
    kind: type[errors.RequestError], path: str
) -> None:
    status, named = ANTHROPIC[kind]

    answer = refuse(kind("so it is"), path)

    assert (answer.status, orjson.loads(answer.body)) == (
        status,
        {"type": "error", "error": {"type": named, "message": "so it is"}},
    )
    dropped = {429: "rejected-saturated", 503: "rejected-no-endpoints"}.get(status)
    assert ("retry-after" in answer.headers) is (status in {429, 503})
    assert answer.headers.get("x-llm-d-request-dropped-reason") == dropped


@table("path", ["/v1/chat/completions", "/v1/completions?x=/v1/messages", ""])
def test_others_are_refused_in_openais(path: str) -> None:
    answer = refuse(errors.UnknownModel("none", param="model"), path)

    answers = {
        "message": "none",
        "type": "invalid_request_error",
        "param": "model",
        "code": "model_not_found",
    }
    assert orjson.loads(answer.body) == {"error": answers}


@table("path", ["/v1/messages", "/v1/completions"])
def test_what_utf8_cannot_say_is_replaced(path: str) -> None:
    assert "a?" in refuse(errors.UnknownModel("a\ud800"), path).body.decode()
