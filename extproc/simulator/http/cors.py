"""What a browser asks before it sends: answered as vLLM's server does, for all or for no origin."""

from aiohttp import web

METHODS = ("DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "QUERY")
ASKED_BY = (
    "Access-Control-Request-Method, Access-Control-Request-Headers, Access-Control-Request-Private-Network"
)


def answer_preflight(request: web.Request, allowed_origins: frozenset[str]) -> web.Response | None:
    """Returns the answer to a preflight; None for any other request."""
    origin = request.headers.get("origin")
    method = request.headers.get("access-control-request-method")
    if request.method != "OPTIONS" or origin is None or method is None:
        return None
    headers = {
        "Vary": f"Origin, {ASKED_BY}",
        "Access-Control-Allow-Methods": ", ".join(METHODS),
        "Access-Control-Max-Age": "600",
    }
    if allowed := _find_allowed(origin, allowed_origins):
        headers["Access-Control-Allow-Origin"] = allowed
    if wanted := request.headers.get("access-control-request-headers"):
        headers["Access-Control-Allow-Headers"] = wanted
    faults = [] if allowed else ["origin"]
    faults += [] if method in METHODS else ["method"]
    faults += ["private-network"] if "access-control-request-private-network" in request.headers else []
    text = f"Disallowed CORS {', '.join(faults)}" if faults else "OK"
    return web.Response(text=text, status=400 if faults else 200, headers=headers)


def allow(request: web.Request, response: web.StreamResponse, allowed_origins: frozenset[str]) -> None:
    """Adds to an answer what lets a browser hand it to a page of an allowed origin."""
    allowed = _find_allowed(request.headers.get("origin"), allowed_origins)
    if allowed is not None:
        response.headers["Access-Control-Allow-Origin"] = allowed
    if allowed != "*":
        response.headers.setdefault("Vary", "Origin")


def _find_allowed(origin: str | None, allowed_origins: frozenset[str]) -> str | None:
    if origin is None:
        return None
    if "*" in allowed_origins:
        return "*"
    return origin if origin in allowed_origins else None
