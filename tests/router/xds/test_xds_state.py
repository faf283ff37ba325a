"""The discovery protocol as tables: requests in, responses out. No server, no Envoy."""

from collections.abc import Sequence

from envoy_data_plane.google.protobuf import Any
from hypothesis import given
from hypothesis import strategies as st

from extproc.router.routing.endpoint import Endpoint
from extproc.router.xds.requests import Request, WireResponse
from extproc.router.xds.resources import ASSIGNMENTS, CLUSTERS, Catalog
from extproc.router.xds.state import Subscriber
from tests.tables import table

A = Endpoint("default/a", "10.0.0.1:8000")
B = Endpoint("default/b", "10.0.0.2:8000")


def resource_names(response: WireResponse | None) -> list[str]:
    """What a response is about: the names of its clusters, or of the clusters whose endpoints it has."""
    assert response is not None
    messages = [Any.parse(resource).unpack() for resource in response.resources]
    return [
        getattr(message, "name", "") or getattr(message, "cluster_name", "") for message in messages
    ]


def accept(
    subscriber: Subscriber, response: WireResponse | None, wanted: Sequence[str] = ()
) -> None:
    assert response is not None
    assert subscriber.on(Request(response.type_url, tuple(wanted), response.nonce))


def published(**pools: list[Endpoint]) -> Catalog:
    catalog = Catalog([*pools])
    for pool, endpoints in pools.items():
        catalog.replace(pool, endpoints)
    return catalog


def subscribed(catalog: Catalog, *pools: str) -> Subscriber:
    """A subscriber that has accepted all there is."""
    subscriber = Subscriber(catalog)
    subscriber.on(Request(CLUSTERS))
    accept(subscriber, subscriber.next())
    subscriber.on(Request(ASSIGNMENTS, pools))
    accept(subscriber, subscriber.next(), pools)
    assert subscriber.next() is None
    return subscriber


def subscribed_to_nothing_yet(catalog: Catalog) -> Subscriber:
    subscriber = Subscriber(catalog)
    subscriber.on(Request(ASSIGNMENTS, ("llama",)))
    return subscriber


def test_clusters_go_before_endpoints_whatever_was_asked_first() -> None:
    subscriber = subscribed_to_nothing_yet(published(llama=[A]))
    subscriber.on(Request(CLUSTERS))
    responses = [subscriber.next(), subscriber.next()]

    assert [response.type_url for response in responses if response] == [CLUSTERS, ASSIGNMENTS]


def test_an_accepted_version_is_not_sent_again() -> None:
    catalog = published(llama=[A, B])
    subscriber = subscribed(catalog, "llama")
    catalog.replace("llama", [B, A])

    assert subscriber.next() is None


def test_a_change_sends_only_the_pool_that_changed() -> None:
    catalog = published(llama=[A], qwen=[B])
    subscriber = subscribed(catalog, "llama", "qwen")
    catalog.replace("qwen", [])

    assert resource_names(subscriber.next()) == ["qwen"]
    assert subscriber.next() is None


def test_an_unanswered_response_holds_the_next_until_the_client_has_read_it() -> None:
    catalog = Catalog(["llama"])
    subscriber = subscribed_to_nothing_yet(catalog)
    catalog.replace("llama", [A])
    first = subscriber.next()
    for number in range(100):
        catalog.replace("llama", [Endpoint(f"n{number}", f"10.0.1.{number}:8000")])
        assert subscriber.next() is None
    accept(subscriber, first, ["llama"])
    second = subscriber.next()

    assert second is not None
    assert b"10.0.1.99" in second.resources[0]
    assert b"10.0.1.98" not in second.resources[0]


def test_a_refused_version_is_reported_and_not_sent_again_until_it_changes() -> None:
    catalog = published(llama=[A])
    subscriber = subscribed_to_nothing_yet(catalog)
    response = subscriber.next()
    assert response is not None

    assert subscriber.on(
        Request(ASSIGNMENTS, ("llama",), response.nonce, fault="malformed address")
    )
    assert subscriber.next() is None
    catalog.replace("llama", [B])
    assert resource_names(subscriber.next()) == ["llama"]


def test_a_request_about_an_older_response_changes_nothing() -> None:
    catalog = published(llama=[A])
    subscriber = subscribed_to_nothing_yet(catalog)
    first = subscriber.next()
    accept(subscriber, first, ["llama"])
    catalog.replace("llama", [B])
    second = subscriber.next()
    catalog.replace("llama", [A, B])
    assert first is not None

    assert not subscriber.on(Request(ASSIGNMENTS, (), first.nonce, fault="late"))

    assert subscriber.next() is None
    accept(subscriber, second, ["llama"])
    assert resource_names(subscriber.next()) == ["llama"]


def test_an_unsubscribed_pool_is_sent_no_more_and_again_when_asked_for_again() -> None:
    catalog = published(llama=[A], qwen=[B])
    subscriber = subscribed(catalog, "llama", "qwen")
    catalog.replace("qwen", [A])
    response = subscriber.next()
    accept(subscriber, response, ["llama"])
    catalog.replace("qwen", [A, B])
    assert subscriber.next() is None

    accept(subscriber, response, ["llama", "qwen"])
    assert resource_names(subscriber.next()) == ["qwen"]


def test_a_new_pool_is_a_new_cluster_and_endpoints_are_sent_again() -> None:
    catalog = published(llama=[A])
    subscriber = subscribed(catalog, "llama")
    catalog.replace("qwen", [B])
    clusters = subscriber.next()
    endpoints = subscriber.next()
    assert resource_names(clusters) == ["llama", "qwen"]
    assert resource_names(endpoints) == ["llama"]
    accept(subscriber, clusters)
    accept(subscriber, endpoints, ["llama", "qwen"])
    assert resource_names(subscriber.next()) == ["qwen"]


def test_a_removed_pool_is_left_out_of_the_clusters_but_no_empty_list_is_sent() -> None:
    catalog = Catalog(["llama", "qwen"])
    subscriber = Subscriber(catalog)
    subscriber.on(Request(CLUSTERS))
    accept(subscriber, subscriber.next())
    catalog.remove("llama")
    response = subscriber.next()
    assert response is not None
    assert resource_names(response) == ["qwen"]
    assert b"llama" not in b"".join(response.resources)
    accept(subscriber, response)
    catalog.remove("qwen")
    assert subscriber.next() is None


@table(
    ("wanted", "sent"),
    [((), ["llama", "qwen"]), (("*",), ["llama", "qwen"]), (("qwen", "nobody"), ["qwen"])],
)
def test_clusters_can_be_asked_for_by_name_before_any_endpoints_are_known(
    wanted: tuple[str, ...], sent: list[str]
) -> None:
    subscriber = Subscriber(Catalog(["llama", "qwen"]))
    assert subscriber.next() is None

    subscriber.on(Request(CLUSTERS, wanted))

    assert resource_names(subscriber.next()) == sent


def test_a_type_that_is_not_served_gets_no_answer() -> None:
    subscriber = Subscriber(Catalog(["llama"]))

    assert not subscriber.on(Request("type.googleapis.com/envoy.config.listener.v3.Listener"))

    assert subscriber.next() is None


def test_the_same_endpoints_have_the_same_version_in_another_process_and_order() -> None:
    versions = set()
    for endpoints in ([A, B], [B, A]):
        response = subscribed_to_nothing_yet(published(llama=endpoints)).next()
        versions.add(response and response.version_info)

    assert len(versions) == 1
    assert None not in versions


STEPS = st.tuples(
    st.sampled_from(["publish", "remove", "read"]),
    st.sampled_from("qr"),
    st.frozensets(st.integers(1, 4)),
)


@given(st.lists(STEPS, max_size=12))
def test_a_client_that_answers_ends_with_what_is_published(
    steps: list[tuple[str, str, frozenset[int]]],
) -> None:
    """Whatever the pace of the client: in the end it has the catalog's clusters and their endpoints."""
    catalog = Catalog(["p"])
    client = EnvoyClient(catalog)
    for step, pool, numbers in steps:
        if step == "publish":
            catalog.replace(pool, [Endpoint(f"n{n}", f"10.0.0.{n}:8000") for n in numbers])
        elif step == "remove":
            catalog.remove(pool)
        else:
            client.read()
    while client.read():
        pass

    assert client.clusters == {name: resource.body for name, resource in catalog[CLUSTERS].items()}
    assert client.endpoints == {
        name: resource.body for name, resource in catalog[ASSIGNMENTS].items()
    }


class EnvoyClient:
    """What Envoy does: replaces all clusters, asks for the endpoints of those it has."""

    def __init__(self, catalog: Catalog) -> None:
        self.clusters: dict[str, bytes] = {}
        self.endpoints: dict[str, bytes] = {}
        self._subscriber = Subscriber(catalog)
        self._subscriber.on(Request(CLUSTERS))
        self._nonce = ""

    def read(self) -> bool:
        response = self._subscriber.next()
        if response is None:
            return False
        found = dict(zip(resource_names(response), response.resources, strict=True))
        if response.type_url == CLUSTERS:
            # A cluster that is new starts without endpoints, one that is gone takes its own along.
            self.endpoints = {
                n: body for n, body in self.endpoints.items() if n in self.clusters and n in found
            }
            self.clusters = found
            accept(self._subscriber, response)
        else:
            self.endpoints |= {name: body for name, body in found.items() if name in self.clusters}
            self._nonce = response.nonce
        wanted = tuple(sorted(self.clusters.keys() - {"_default"}))
        self._subscriber.on(Request(ASSIGNMENTS, wanted, self._nonce))
        return True
