"""The error tree: every failure that leaves the room it happened in is an `ExtprocError`.

Errors that a room raises and catches itself, as the frames of `wire` do, live there.
"""


class ExtprocError(Exception):
    """The root of the tree: catch it and you have caught what was expected."""


class SettingsError(ExtprocError):
    """The configuration cannot be used; the message lists every fault and where it is."""


class MissingExtra(SettingsError):
    """A package is not installed; `user` is what needs it, `extra` brings it."""

    def __init__(self, user: str, extra: str) -> None:
        super().__init__(
            f"{user} needs the extra `{extra}`: in the checkout, pip install '.[{extra}]'"
            f", or for a container make image EXTRAS={extra},…"
        )


class AddressError(ExtprocError, ValueError):
    """A text is not an `ip:port`."""


class ProtocolError(ExtprocError):
    """The proxy sent a message that the ext_proc protocol does not allow at this point."""


class RequestError(ExtprocError):
    """A request cannot be routed; carries the answer to the client, in OpenAI's words.

    `status` is an HTTP status code; `kind`, `param` and `code` fill the fields `type`, `param` and
    `code` of OpenAI's error object. `retry_after_s` is for failures that pass by themselves. `pool`
    is the pool that refused it, empty if none was chosen yet. `dropped` says in llm-d's words why a
    request that was right was not served; `None`: it was wrong.
    """

    status = 400
    kind = "invalid_request_error"
    code: str | None = None
    retry_after_s: int | None = None
    dropped: str | None = None

    def __init__(self, message: str, *, param: str | None = None, pool: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.pool = pool


class PromptError(RequestError):
    """The body cannot be read as a request of the API its path names: the client's fault.

    `why` is a metric label, where the request is routed without its body.
    """

    why = "PromptError"


class NoRoomForBody(PromptError):
    """The body came when the process had no memory left for bodies: no fault of the client's."""

    status = 503
    kind = "service_unavailable"
    code = "no_room"
    retry_after_s = 1
    dropped = "rejected-saturated"
    why = "budget"


class PromptTooComplex(PromptError):
    """Reading the body would hold up other requests: it is routed by what was found until then."""

    why = "complexity"


class UnknownModel(RequestError):
    """No pool serves the model that the request names."""

    status = 404
    kind = "invalid_request_error"
    code = "model_not_found"


class BodyTooLarge(RequestError):
    """The body exceeds `server.max_body_bytes`."""

    status = 413
    code = "body_too_large"


class NoEndpoint(RequestError):
    """No endpoint can take the request now; the client may try again."""

    status = 503
    kind = "service_unavailable"
    code = "no_endpoint"
    retry_after_s = 1
    dropped = "rejected-no-endpoints"


class Overloaded(RequestError):
    """The request is refused on purpose: every endpoint has as much as it may get."""

    status = 429
    kind = "rate_limit_error"
    code = "overloaded"
    retry_after_s = 1
    dropped = "rejected-saturated"


class Sheddable(Overloaded):
    """Refused by a full pool because its objective's priority is negative."""

    code = "sheddable"


class OverShare(Overloaded):
    """Refused by a full pool because its client has its share of it; others may still be let in."""

    code = "over_share"


class Cold(Overloaded):
    """Refused because it begins a conversation while those that go on do not find theirs in the caches."""

    code = "shed_cold"
