"""The schema of a Benchmark's status. Pure."""

from typing import Any, Final

Schema = dict[str, Any]

_TEXTS: Final[Schema] = {"type": "array", "items": {"type": "string"}}
# Of what RFC 3339 allows, what is written here: no leap second, no year 0, no zone.
_TIME: Final = r"^[1-9]\d{3}-\d\d-\d\dT\d\d:\d\d:[0-5]\dZ$"
_COUNT: Final[Schema] = {"type": "integer", "format": "int64"}
_FIGURES: Final[Schema] = {
    "type": "object",
    "additionalProperties": {"type": "number"},
    "description": "Headline figures by name; `definitions` says what each is.",
}


def _text(about: str) -> Schema:
    return {"type": "string", "description": about}


def _time(about: str) -> Schema:
    return {"type": "string", "format": "date-time", "pattern": _TIME, "description": about}


def build_status_schema() -> Schema:
    return {
        "type": "object",
        "description": "What came of it; written by the operator alone.",
        "properties": {
            "observedGeneration": {**_COUNT, "description": "The generation of the spec that this is about."},
            **_now(),
            "conditions": {
                "type": "array",
                "description": "Whether it can be run, runs, gave a measurement, or failed.",
                "items": _condition(),
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["type"],
            },
            **_outcome(),
            "lastScheduledAt": _time("When the schedule was last due, run or left out."),
            "nextRunAt": _time("When the schedule is due next."),
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
            "description": "Refused, Waiting, Starting, Running, Valid, Invalid, Failed or Suspended.",
        },
        "message": {
            "type": "string",
            "description": "Why it waits, does not start, was refused, or failed.",
        },
        "verdict": {
            "type": "string",
            "description": "Whether the run measured the server at all, and if not, what else.",
        },
        "run": {"type": "string", "description": "The run that the figures are of, or that goes on."},
        "startedAt": _time("When its first Job began."),
        "finishedAt": _time("When it ended."),
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
            "status": {**_text("Whether it is so."), "enum": ["True", "False", "Unknown"]},
            "reason": _text("Why, in one word."),
            "message": _text("Why, in full."),
            "lastTransitionTime": _time("Since when it has been so."),
            "observedGeneration": {**_COUNT, "description": "The generation of the spec that this is about."},
        },
    }


def _outcome() -> Schema:
    return {
        "summary": {
            "type": "object",
            "description": "Two figures as text, for `kubectl get`: so far while a run goes.",
            "properties": {
                "requestsPerSecond": _text("Requests served per second."),
                "ttftP95": _text("95 of 100 first tokens came sooner."),
            },
        },
        "figures": _FIGURES,
        "definitions": {
            "type": "object",
            "additionalProperties": {"type": "string"},
            "description": "What the figures mean, by name.",
        },
        "faults": {**_TEXTS, "description": "Why a run is invalid, or why a spec is refused."},
        "remarks": {**_TEXTS, "description": "How a valid run must be read."},
        "regressions": {
            **_TEXTS,
            "description": "Figures that got worse than those of the valid runs before this one.",
        },
        "report": {"type": "string", "description": "Where the reports are: claim/folder."},
        "dataset": {
            "type": "string",
            "description": "Where the prompts are kept that every run asks: a ConfigMap, or claim/folder.",
        },
    }


def _run() -> Schema:
    return {
        "type": "object",
        # Whoever edits a status: what is no run does not get into it.
        "required": ["run", "digest", "finishedAt", "phase", "verdict"],
        "properties": {
            "run": _text("Its name, and its folder's."),
            "digest": _text("Of what was asked: equal ones asked the same."),
            "startedAt": _time("When its first Job began."),
            "finishedAt": _time("When it ended."),
            "phase": {**_text("Valid, Invalid or Failed."), "enum": ["Valid", "Invalid", "Failed"]},
            "verdict": _text("As that of the last run, above."),
            "figures": _FIGURES,
            "faults": {**_TEXTS, "description": "Why it is invalid, or how it failed."},
            "remarks": {**_TEXTS, "description": "How it must be read."},
        },
    }
