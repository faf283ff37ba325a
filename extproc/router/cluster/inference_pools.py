"""InferencePools as the Kubernetes API sends them, and what one says. Pure.

Fields follow the reference of `inference.networking.k8s.io/v1` (Gateway API Inference Extension 1.0).
"""

from dataclasses import dataclass
from typing import Final

from msgspec import Struct

from extproc.router.cluster.kube_api import ObjectMeta

V1: Final = "inference.networking.k8s.io/v1"


class Condition(Struct):
    type: str = ""
    status: str = ""
    reason: str = ""


class ParentRef(Struct):
    name: str = ""
    namespace: str = ""


class Parent(Struct, rename="camel"):
    parent_ref: ParentRef | None = None
    conditions: list[Condition] | None = None


class Selector(Struct, rename="camel"):
    match_labels: dict[str, str] | None = None


class TargetPort(Struct):
    number: int = 0


class PoolSpec(Struct, rename="camel"):
    selector: Selector | None = None
    target_ports: list[TargetPort] | None = None


class PoolStatus(Struct):
    parents: list[Parent] | None = None


class InferencePool(Struct):
    metadata: ObjectMeta
    spec: PoolSpec | None = None
    status: PoolStatus | None = None

    @property
    def terms(self) -> "PoolTerms":
        spec = self.spec or PoolSpec()
        labels = (spec.selector or Selector()).match_labels or {}
        ports = tuple(dict.fromkeys(port.number for port in spec.target_ports or ()))
        return PoolTerms(_select(labels), ports, _refusals((self.status or PoolStatus()).parents))


@dataclass(frozen=True, slots=True)
class PoolTerms:
    """What an InferencePool asks for: the pods of a label selector, each at all of these ports.

    `refusals` are what gateways have against it, one line each. They are the gateways' affair, and the
    pool is served all the same: another gateway may use it, or the same one in a moment.
    """

    selector: str
    ports: tuple[int, ...]
    refusals: tuple[str, ...] = ()

    @property
    def fault(self) -> tuple[str, str] | None:
        """Why there can be no endpoints: a fixed word, and the rest of a sentence about the pool."""
        if not self.selector:
            # An empty selector would be every pod of the namespace, ours too.
            return "no_selector", "has no labels in its selector"
        return None if self.ports else ("no_port", "has no target port")


def _select(labels: dict[str, str]) -> str:
    """The labels as the API's `labelSelector` has them."""
    return ",".join(f"{key}={labels[key]}" for key in sorted(labels))


def _refusals(parents: list[Parent] | None) -> tuple[str, ...]:
    """Conditions that are False; Unknown is what they are before a controller has looked."""
    return tuple(
        f"{_name(parent.parent_ref)}: {condition.type} is False ({condition.reason})"
        for parent in parents or ()
        for condition in parent.conditions or ()
        if condition.status == "False"
    )


def _name(parent: ParentRef | None) -> str:
    if parent is None:
        return "a gateway"
    return f"{parent.namespace}/{parent.name}" if parent.namespace else parent.name
