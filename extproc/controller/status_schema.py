"""The schema of a Benchmark's status. Pure."""

from typing import Any, Final

Schema = dict[str, Any]

_TEXT: Final[Schema] = {"type": "string"}
_TIME: Final[Schema] = {"type": "string", "format": "date-time"}
_TEXTS: Final[Schema] = {"type": "array", "items": _TEXT}
_COUNT: Final[Schema] = {"type": "integer", "format": "int64"}
_FIGURES: Final[Schema] = {
    "type": "object",
    "additionalProperties": {"type": "number"},
    "description": "Headline figures by name; `definitions` says what each is.",
}


def build_status_schema() -> Schema:
    return {
        "type": "object",
        "description": "What came of it; written by the operator alone.",
        "properties": {
            "observedGeneration": _COUNT,
            **_now(),
            "conditions": {
                "type": "array",
                "items": _condition(),
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["type"],
            },
            **_outcome(),
            "lastScheduledAt": _TIME,
            "nextRunAt": _TIME,
            "history": {
                "type": "array",
                "items": _run(),
                "description": "Runs that ended, the last one first.",
            },
        },
    }


def _now() -> Schema:
    return {
        "phase": {
            "type": "string",
            "description": "Refused, Waiting, Running, Valid, Invalid, Failed or Suspended.",
        },
        "verdict": {
            "type": "string",
            "description": "Whether the run measured the server at all, and if not, what else.",
        },
        "run": {"type": "string", "description": "The run that the figures are of, or that goes on."},
        "startedAt": _TIME,
        "finishedAt": _TIME,
        "progress": {
            "type": "string",
            "description": "How much of all planned requests, or of the planned time of users that ask "
            "again and again, is over; which run is at work where nobody knows how many there will be.",
        },
        "soFar": {
            "type": "object",
            "description": "What the run that goes on says of itself.",
            "properties": {
                "doing": {"type": "string", "description": "Which run of an experiment is at work."},
                "finished": {**_COUNT, "description": "Requests of it that are over, well or not."},
                "planned": {**_COUNT, "description": "Requests that it will make, where that is known."},
                "figures": {
                    **_FIGURES,
                    "description": "Figures of what is over, warm-up included.",
                },
            },
        },
    }


def _condition() -> Schema:
    return {
        "type": "object",
        "required": ["type", "status", "reason", "lastTransitionTime"],
        "properties": {
            "type": {"type": "string", "description": "Planned, Running, Valid or Failed."},
            "status": {"type": "string", "enum": ["True", "False", "Unknown"]},
            "reason": _TEXT,
            "message": _TEXT,
            "lastTransitionTime": _TIME,
            "observedGeneration": _COUNT,
        },
    }


def _outcome() -> Schema:
    return {
        "summary": {
            "type": "object",
            "description": "Two figures as text, for `kubectl get`: so far while a run goes.",
            "properties": {"requestsPerSecond": _TEXT, "ttftP95": _TEXT},
        },
        "figures": _FIGURES,
        "definitions": {"type": "object", "additionalProperties": _TEXT},
        "faults": {**_TEXTS, "description": "Why a run is invalid, or why a spec is refused."},
        "remarks": {**_TEXTS, "description": "How a valid run must be read."},
        "regressions": {
            **_TEXTS,
            "description": "Figures that got worse than those of the valid runs before this one.",
        },
        "report": {"type": "string", "description": "Where the reports are: claim/folder."},
    }


def _run() -> Schema:
    return {
        "type": "object",
        "properties": {
            "run": _TEXT,
            "digest": _TEXT,
            "startedAt": _TIME,
            "finishedAt": _TIME,
            "phase": _TEXT,
            "verdict": _TEXT,
            "figures": _FIGURES,
            "faults": _TEXTS,
            "remarks": _TEXTS,
        },
    }
