"""Which path is which API, and whose body matters."""

from extproc.router.routing.prompt.apis import api_of, operation_of, reads_body
from tests.tables import table


def test_without_a_path_the_fields_decide() -> None:
    names = {field.name for field in api_of("")}

    assert {"messages", "prompt", "input", "tools", "system", "query"} <= names
    assert reads_body("POST", "")


@table(
    "path",
    [
        *("/v1/chat/completions?api-version=1", "/llama/v1/chat/completions"),
        *(
            "/a/v1/b/v1/chat/completions/",
            "//v1//chat/completions",
            "/v2/chat/completions?next=/v1/models",
        ),
    ],
)
def test_what_stands_around_the_route_does_not_matter(path: str) -> None:
    assert api_of(path) == api_of("/v1/chat/completions")


@table(
    ("reads", "methods", "paths"),
    [
        (
            True,
            ["POST", "post"],
            ["/v1/chat/completions", "/tokenize", "/unknown", "/v1/audio/translations"],
        ),
        (False, ["GET", "HEAD", "OPTIONS", "DELETE", "CONNECT", ""], ["/v1/chat/completions"]),
        (False, ["POST"], ["/ping", "/health", "/v1/responses/resp_1/cancel", "/v1/models?x=1"]),
    ],
)
def test_posted_bodies_are_read_for_their_model(
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
def test_an_operation_has_the_conventions_word_where_there_is_one(
    path: str, operation: str
) -> None:
    assert operation_of(path) == operation
