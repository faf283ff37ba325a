"""What gateways call pools and endpoints among each other."""

from xxhash import xxh3_64_intdigest


def name_of(text: str) -> int:
    """Returns 64 bits that are the same for all gateways; they go sealed, see `sealed`."""
    return xxh3_64_intdigest(text.encode(errors="surrogatepass"))
