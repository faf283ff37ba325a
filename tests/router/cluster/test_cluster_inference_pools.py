"""What an InferencePool asks for."""

from tests.router.cluster.pool_objects import Object, parsed_pool, pool_object
from tests.tables import table


@table(
    ("pool", "selector", "ports"),
    [
        (pool_object(), "app=vllm,model=llama", (8000,)),
        (pool_object(ports=[8000, 8001, 8002]), "app=vllm,model=llama", (8000, 8001, 8002)),
        (pool_object(ports=[8000, 8000]), "app=vllm,model=llama", (8000,)),
        (pool_object(labels={"z": "1", "a.b/c": ""}), "a.b/c=,z=1", (8000,)),
    ],
)
def test_a_pool_is_a_selector_and_ports(pool: Object, selector: str, ports: tuple[int, ...]) -> None:
    terms = parsed_pool(pool).terms

    assert (terms.selector, terms.ports, terms.fault) == (selector, ports, None)


ours = pool_object()
NO_SELECTOR = ("no_selector", "has no labels in its selector")
NO_PORT = ("no_port", "has no target port")


@table(
    ("pool", "fault"),
    [
        (pool_object(labels={}), NO_SELECTOR),
        (ours | {"spec": {}}, NO_SELECTOR),
        (ours | {"spec": None}, NO_SELECTOR),
        (pool_object(ports=[]), NO_PORT),
        (ours | {"spec": {"selector": {"matchLabels": {"app": "x"}}}}, NO_PORT),
    ],
)
def test_a_pool_that_selects_nothing_is_at_fault_and_not_every_pod_of_its_namespace(
    pool: Object, fault: tuple[str, str]
) -> None:
    assert parsed_pool(pool).terms.fault == fault
