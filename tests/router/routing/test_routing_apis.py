"""Which path is which API, and whose body matters."""

from extproc.router.routing.prompt.apis import api_of, operation_of, reads_body
from tests.tables import table

PROMPT_FIELDS = {
    "/v1/chat/completions": ["tools", "documents", "messages"],
    "/v1/chat/completions/batch": ["tools", "documents", "messages"],
    "/cohere/v2/chat": ["tools", "documents", "messages"],
    "/v1/completions": ["prompt"],
    "/v1/responses": ["tools", "instructions", "input"],
    "/v1/messages": ["tools", "system", "messages"],
    "/v1/embeddings": ["messages", "input"],
    "/v2/embed": ["texts", "inputs"],
    "/pooling": ["messages", "input"],
    "/classify": ["messages", "input"],
    "/inference/v1/generate": ["token_ids"],
    "/v1/systemone": ["instructions", "state"],
    "/tokenize": [],
    "/detokenize": [],
    "/v1/messages/count_tokens": [],
    "/v1/chat/completions/render": [],
    "/v1/audio/transcriptions": [],
    "/v1/audio/translations": [],
    "/v1/models": [],
    "/something/else": [],
    "/": [],
}


@table(("path", "fields"), PROMPT_FIELDS.items())
def test_path_tells_where_the_prompt_is(path: str, fields: list[str]) -> None:
    assert fields == [field.name for field in api_of(path)]


def test_without_a_path_the_fields_tell() -> None:
    names = {field.name for field in api_of("")}

    assert {"messages", "prompt", "input", "tools", "system", "query"} <= names
    assert reads_body("POST", "")


@table("path", ["/score", "/v1/score", "/rerank", "/v1/rerank", "/v2/rerank", "/generative_scoring"])
def test_query_comes_before_what_it_is_compared_with(path: str) -> None:
    names = [field.name for field in api_of(path)]

    assert all(
        names.index(query) < names.index("documents") for query in ("query", "queries", "text_1", "data_1")
    )


@table(
    "path",
    [
        "/v1/chat/completions?api-version=1",
        "/llama/v1/chat/completions",
        "/a/v1/b/v1/chat/completions/",
        "//v1//chat/completions",
        "/v2/chat/completions?next=/v1/models",
    ],
)
def test_what_stands_around_the_route_does_not_matter(path: str) -> None:
    assert api_of(path) == api_of("/v1/chat/completions")


@table(
    ("reads", "methods", "paths"),
    [
        (True, ["POST", "post"], ["/v1/chat/completions", "/tokenize", "/unknown", "/v1/audio/translations"]),
        (False, ["GET", "HEAD", "OPTIONS", "DELETE", "CONNECT", ""], ["/v1/chat/completions"]),
        (False, ["POST"], ["/ping", "/health", "/v1/responses/resp_1/cancel", "/v1/models?x=1"]),
    ],
)
def test_posted_bodies_are_read_for_their_model_unless_their_route_takes_no_prompt(
    reads: bool, methods: list[str], paths: list[str]
) -> None:
    assert {reads_body(method, path) for method in methods for path in paths} == {reads}


@table(
    ("path", "operation"),
    [
        ("/v1/chat/completions", "chat"),
        ("/llama/v1/chat/completions?x=1", "chat"),
        ("/cohere/v2/chat", "chat"),
        ("/v1/messages", "chat"),
        ("/v1/responses", "chat"),
        ("/v1/completions", "text_completion"),
        ("/inference/v1/generate", "text_completion"),
        ("/v1/embeddings", "embeddings"),
        ("/v2/embed", "embeddings"),
        ("/v1/rerank", ""),
        ("/v1/messages/count_tokens", ""),
        ("", ""),
    ],
)
def test_an_operation_has_the_conventions_word_where_there_is_one(path: str, operation: str) -> None:
    assert operation_of(path) == operation
