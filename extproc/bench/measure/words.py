"""How figures are written for people: a missing one is a dash."""

DASH = "–"  # noqa: RUF001  (an en dash is what is meant)


def fixed(value: float | None, digits: int = 2) -> str:
    return DASH if value is None else f"{value:,.{digits}f}"


def percent(value: float | None) -> str:
    return DASH if value is None else f"{100 * value:.1f} %"


def milliseconds(value: float | None) -> str:
    """Three figures' worth: `0.42 ms`, `41.2 ms`, `1.31 s`."""
    if value is None:
        return DASH
    if value >= 1000:
        return f"{value / 1000:,.2f} s"
    return f"{value:.1f} ms" if value >= 10 else f"{value:.2f} ms"
