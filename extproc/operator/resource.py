"""The Benchmark resource: the spec file's fields, and beside them how it is run in a cluster. Pure."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal, Self

from cronsim import CronSim, CronSimError
from pydantic import Field, ValidationError, field_validator, model_validator

from extproc.bench.spec.section import SpecSection, list_faults
from extproc.bench.spec.tree import Spec
from extproc.errors import ExtprocError

GROUP, VERSION, KIND, PLURAL = "extproc.dev", "v1alpha1", "Benchmark", "benchmarks"
API_VERSION = f"{GROUP}/{VERSION}"
# A Pod's name adds the run, the part it plays, an index and five characters; a label holds 63.
LONGEST_NAME = 32


SWITCHED_MODES = frozenset({"ab", "sweep"})


class SpecRefused(ExtprocError):
    """A Benchmark cannot be run; the message lists every fault."""


class Toleration(SpecSection):
    """A taint of nodes that the Pods may run on all the same, in Kubernetes' words."""

    key: str | None = None
    operator: Literal["Equal", "Exists"] | None = None
    value: str | None = None
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None


class PodOptions(SpecSection):
    """What the Pods of a run get. The image is the operator's own.

    `cpu` and `memory` are requested for each Pod: a client that waits for CPU measures itself.
    `env_secret` names a Secret whose keys become environment variables, for `target.api-key-env`.
    `pull_secret` names the Secret by which nodes may pull the image. `node_selector` keeps load off
    the nodes that serve, `tolerations` let it onto nodes with taints.
    """

    cpu: str = Field(default="1", pattern=r"^[0-9]+(\.[0-9]+)?m?$")
    memory: str = Field(default="1Gi", pattern=r"^[0-9]+(\.[0-9]+)?(Mi|Gi|M|G)$")
    env_secret: str | None = None
    pull_secret: str | None = None
    node_selector: dict[str, str] = Field(default_factory=dict)
    tolerations: list[Toleration] = Field(default_factory=list)


class MountedFiles(SpecSection):
    """Files that the spec names, mounted at `/data`: one of a `config_map` or a volume `claim`."""

    config_map: str | None = None
    claim: str | None = None

    @model_validator(mode="after")
    def _names_one(self) -> Self:
        if (self.config_map is None) == (self.claim is None):
            raise ValueError("give config-map or claim")
        return self


class Router(SpecSection):
    """The router whose strategies `ab` and `sweep` compare, by the ConfigMap that its settings are in.

    The operator writes each arm into `key` of `config_map` in turn, and at the end, however that
    comes, what was there before. At `ab.admin` every replica must show the change, and `ab.pool` is
    what is changed of it.
    """

    config_map: str | None = None
    key: str = "extproc.yaml"


class Results(SpecSection):
    """Where reports stay: a folder for each run on a volume claim.

    `claim` names one of yours, which outlives the Benchmark. Without it one of `size` is made, and
    deleted with the Benchmark unless `keep`; `storage_class` and `access_mode` are that one's.
    Several workers write to it at once: unless all of them run on one node it must be
    `ReadWriteMany`, which is what they get.
    """

    claim: str | None = None
    size: str = Field(default="1Gi", pattern=r"^[0-9]+(Mi|Gi|Ti)$")
    storage_class: str | None = None
    access_mode: Literal["ReadWriteOnce", "ReadWriteMany"] | None = None
    keep: bool = False


class Operation(SpecSection):
    """How a Benchmark is run in a cluster.

    `mode`: `run` is one run, `ab` compares strategies, `sweep` does so by load and dataset,
    `saturate` looks for the highest rate. `workers` Pods offer the load of a `run`, an equal part
    each, and one more merges their journals; they begin together `start_within_seconds` after their
    Job was made. `schedule` runs it again and again, by the five fields of cron, in UTC; a run that
    is due while another one goes is left out. `history_limit` runs are kept in the status.
    `suspend` ends what is running and begins nothing. `deadline_seconds` ends a run that lasts too
    long. `router` says whose strategy `ab` and `sweep` change. `files` are mounted for the spec's
    paths; `results` says where reports stay; `pods` is what Pods get.
    """

    mode: Literal["run", "ab", "sweep", "saturate"] = "run"
    workers: int = Field(default=1, ge=1, le=100)
    start_within_seconds: int = Field(default=60, ge=1, le=86_400)
    schedule: str | None = None
    history_limit: int = Field(default=10, ge=1, le=100)
    suspend: bool = False
    deadline_seconds: int = Field(default=86400, ge=1, le=31_536_000)
    router: Router = Router()
    files: MountedFiles | None = None
    results: Results = Results()
    pods: PodOptions = PodOptions()

    @field_validator("schedule")
    @classmethod
    def _is_cron(cls, value: str | None) -> str | None:
        if value is not None:
            try:
                CronSim(value, datetime(2026, 1, 1))  # noqa: DTZ001  # only read, not kept
            except CronSimError as error:
                raise ValueError(
                    f"{value!r} is not a schedule such as 0 3 * * *: {error}"
                ) from None
            if len(value.split()) != 5:
                raise ValueError(f"{value!r} is not a schedule of five fields")
        return value


# These do not make it another run.
_NOT_OF_A_RUN = frozenset({"suspend", "schedule", "history-limit"})
_OWN = {field.alias or name for name, field in Operation.model_fields.items()}


@dataclass(frozen=True, slots=True)
class Benchmark:
    """One Benchmark, as the API server has it, with its spec parsed."""

    name: str
    namespace: str
    uid: str
    generation: int
    created: datetime
    spec: Spec
    operation: Operation
    tree: Mapping[str, Any]
    status: Mapping[str, Any]

    @property
    def digest(self) -> str:
        """A hash of the spec's measured part: Benchmarks of equal digests measure the same."""
        fields = {name: value for name, value in self.tree.items() if name not in _NOT_OF_A_RUN}
        return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()[:8]

    @property
    def stem(self) -> str:
        """What the names of its runs begin with, as long as the digest is the same."""
        return f"{self.name}-{self.digest}"


# No field of a spec is so deep but a body that is given as it is; what walks a tree must return.
_MOST_DEEP = 64


def _is_deeper(tree: object, most: int) -> bool:
    inner = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ()
    return any(most == 0 or _is_deeper(each, most - 1) for each in inner)


def parse_benchmark(body: Mapping[str, Any]) -> Benchmark:
    """Reads an object; raises `SpecRefused` with every fault of its spec."""
    metadata, tree = body["metadata"], body.get("spec") or {}
    name = metadata["name"]
    if _is_deeper(tree, _MOST_DEEP):
        raise SpecRefused(f"spec: nested deeper than {_MOST_DEEP}")
    faults = []
    if len(name) > LONGEST_NAME:
        faults.append(
            f"metadata.name: {len(name)} characters; {LONGEST_NAME} leave room for a Pod's name"
        )
    own = {key: value for key, value in tree.items() if key in _OWN}
    rest = {key: value for key, value in tree.items() if key not in _OWN}
    operation, spec = None, None
    try:
        operation = Operation.model_validate(own)
    except ValidationError as error:
        faults.append(list_faults(error))
    try:
        spec = Spec.model_validate({**rest, "name": name})
    except ValidationError as error:
        faults.append(list_faults(error))
    if operation is not None and spec is not None:
        faults += _find_contradictions(operation, spec)
    if faults or operation is None or spec is None:
        raise SpecRefused("\n".join(faults))
    return Benchmark(
        name=name,
        namespace=metadata["namespace"],
        uid=metadata["uid"],
        generation=metadata.get("generation", 1),
        created=read_time(metadata["creationTimestamp"]),
        spec=spec,
        operation=operation,
        tree=tree,
        status=body.get("status") or {},
    )


def _find_contradictions(operation: Operation, spec: Spec) -> Iterator[str]:
    """What is wrong with both together: how load is split, and how strategies are changed."""
    if operation.workers > 1 and operation.mode != "run":
        yield f"workers: only mode run can be split over Pods; in {operation.mode} one Pod has processes"
    if operation.mode not in SWITCHED_MODES:
        return
    if spec.ab.settings_file is not None:
        yield "ab.settings-file: a Pod of a run has no router's file; give router.config-map"
    if operation.router.config_map is None and not spec.ab.command:
        yield f"router: {operation.mode} changes strategies; give router.config-map, or ab.command"
    if operation.router.config_map is not None and spec.ab.command:
        yield "router: give router.config-map or ab.command, not both"
    if operation.router.config_map is not None and spec.ab.admin is None:
        yield "ab.admin: give the router's admin host:port, so that no arm is measured before it is in force"


def read_time(text: str) -> datetime:
    """Reads a time as the API server writes it; raises `ValueError`."""
    at = datetime.fromisoformat(text)
    return at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)


def write_time(at: datetime) -> str:
    return at.strftime("%Y-%m-%dT%H:%M:%SZ")
