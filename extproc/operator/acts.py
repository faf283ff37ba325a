"""What is done about a Benchmark, one act at a time: each may be cut off, and each may be done again."""

from typing import Final

from extproc.operator.calls import ApiRefusal, KubeCalls
from extproc.operator.objects import Object
from extproc.operator.observe import is_owned
from extproc.operator.state import Action, Create, Delete, Replace, WriteStatus

# The spec makes an object that cannot be; a quota, or the namespace's end: only somebody's doing helps.
_LASTING: Final = frozenset({400, 403, 422})


async def act(action: Action, body: Object, calls: KubeCalls) -> None:
    """Does one thing; raises `ApiRefusal`."""
    match action:
        case WriteStatus(status):
            written = await calls.replace({**body, "status": status}, "status")
            body["metadata"]["resourceVersion"] = written["metadata"]["resourceVersion"]
        case Replace(changed):
            await calls.replace(changed)
        case Delete(name, uid):
            await calls.delete("Job", body["metadata"]["namespace"], name, uid)
        case Create(made):
            await _create(made, calls)


async def _create(made: Object, calls: KubeCalls) -> None:
    """Creates an object; one of that name is as good, unless it belongs to somebody who is gone."""
    try:
        await calls.create(made)
    except ApiRefusal as refusal:
        if refusal.status != 409:
            raise
        metadata = made["metadata"]
        there = await calls.get(made["kind"], metadata["namespace"], metadata["name"])
        owners = metadata.get("ownerReferences", ())
        if there is None or (owners and not is_owned(there, owners[0]["uid"])):
            raise ApiRefusal(409, f"{made['kind']} {metadata['name']} is somebody else's, or going") from None


def describe_refusal(action: Action, refusal: ApiRefusal) -> str | None:
    """What the status shall say of an object that may not be made or written; of what passes nothing."""
    if not isinstance(action, Create | Replace) or refusal.status not in _LASTING:
        return None
    kind, name = action.body["kind"], action.body["metadata"]["name"]
    if isinstance(action, Replace) and refusal.status == 403:
        return f"router: {kind} {name}: the operator's Role does not name it, so that it cannot write it"
    return f"{kind} {name}: {refusal}"


def describe_action(action: Action) -> str:
    match action:
        case Create(made):
            return f"creates {made['kind']} {made['metadata']['name']}"
        case Replace(changed):
            return f"writes {changed['kind']} {changed['metadata']['name']}"
        case Delete(name):
            return f"deletes Job {name}"
        case WriteStatus(status):
            return f"is {status['phase']}"
