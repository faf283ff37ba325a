"""The operator's Role against the calls that it makes: none is refused, none is allowed that is not made."""

import pytest

from tests.operator.cluster import JOBS, Served
from tests.operator.comparing import comparing, write_settings
from tests.operator.operating import operating
from tests.operator.roles import read_rules

pytestmark = pytest.mark.timeout(600)

# Asked of the API server by an admission plugin, where there is one, not by the operator.
_FOR_ADMISSION = {("extproc.dev", "benchmarks/finalizers", "update")}


@pytest.mark.slow
async def test_role_allows_what_the_operator_does_and_nothing_else(served: Served, null_server: int) -> None:
    """A story that needs all of it; the server of every other test refuses what the Role does not allow.

    1. A comparison takes the router and is asked for an arm. 2. Somebody deletes the run's
    Job: what a run needs is found to be there. 3. It is suspended.
    """
    cluster = served.cluster
    text, data = write_settings(null_server), {"name": "extproc"}
    cluster.add({"apiVersion": "v1", "kind": "ConfigMap", "metadata": data, "data": {"extproc.yaml": text}})
    spec = comparing(null_server, "127.0.0.1:1")
    # As after a crash between making a Job and noting it: what is there is looked at.
    cluster.faults = {("POST", "jobs"): [409]}
    async with operating(served):
        cluster.apply("b", spec)
        await served.wait(
            lambda: cluster.of("v1/configmaps").objects["extproc"]["data"]["extproc.yaml"] != text
        )
        run = served.benchmark("b")["status"]["run"]
        await cluster.remove(JOBS, run)
        await served.wait(lambda: cluster.asked.count("POST jobs") == 3)
        cluster.apply("b", {**spec, "suspend": True})
        await served.wait(lambda: not cluster.of(JOBS).objects)

    assert cluster.used == cluster.rules.keys() - _FOR_ADMISSION
    assert cluster.of("v1/configmaps").objects["extproc"]["data"]["extproc.yaml"] == text


@pytest.mark.slow
async def test_router_that_the_role_does_not_name_is_refused(served: Served, null_server: int) -> None:
    data, text = {"name": "second"}, write_settings(null_server)
    served.cluster.add(
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": data, "data": {"extproc.yaml": text}}
    )
    async with operating(served):
        served.cluster.apply("b", comparing(null_server, "r:1", router={"config-map": "second"}))
        status = await served.until("b", "Refused")

    assert "Role does not name it" in status["faults"][0]
    assert served.cluster.denied == {("", "configmaps", "update")}
    served.cluster.denied.clear()
    assert not served.cluster.of(JOBS).objects


def test_only_the_router_that_is_named_may_be_written() -> None:
    """Who may write Benchmarks is not to change whatever ConfigMap there is by the operator's hand."""
    assert read_rules()["", "configmaps", "update"] == {"extproc"}
