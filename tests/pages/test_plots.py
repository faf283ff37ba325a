import re
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.pages.plots import Axis, Bar, Dot, Series, bars, dotted, lines, number
from tests.tables import table

VALUES = st.floats(-1e9, 1e9).map(lambda value: round(value, 6)) | st.just(float("nan"))
POINTS = st.lists(st.tuples(VALUES, VALUES), max_size=30)


def parsed_plot(plot: str) -> ET.Element:
    return ET.fromstring(f"<figure>{plot}</figure>")


def coordinates(plot: str) -> list[float]:
    return [
        float(value)
        for points in re.findall(r'points="([^"]*)"', plot)
        for value in re.split("[ ,]", points)
    ]


@given(POINTS, st.booleans(), st.booleans())
def test_any_points_make_a_plot(
    points: list[tuple[float, float]], is_log_x: bool, is_log_y: bool
) -> None:
    series = [Series("a & <b>", [x for x, _ in points], [y for _, y in points])]
    plot = lines(series, x_label="x", y_label="y", is_log_x=is_log_x, is_log_y=is_log_y)

    assert parsed_plot(plot) is not None
    assert all(0 <= value <= 640 for value in coordinates(plot))


@given(
    st.lists(
        st.floats(0, 1e12).map(lambda value: round(value, 6)) | st.just(float("inf")), max_size=20
    )
)
def test_any_bars_make_a_plot(values: list[float]) -> None:
    assert (
        parsed_plot(bars([Bar(f"<{value}>", value) for value in values], y_label="y")) is not None
    )


@table(
    ("axis", "expected"),
    [
        (Axis(0, 100, 0, 1), [0, 20, 40, 60, 80, 100]),
        (Axis(0, 0.9, 0, 1), [0, 0.2, 0.4, 0.6, 0.8]),
        (Axis(7, 12, 0, 1), [7, 8, 9, 10, 11, 12]),
        (Axis(1, 100, 0, 1, is_log=True), [1, 2, 5, 10, 20, 50, 100]),
        (Axis(0.5, 2e4, 0, 1, is_log=True), [1, 10, 100, 1000, 10_000]),
    ],
)
def test_ticks_are_round_numbers_within_the_axis(axis: Axis, expected: list[float]) -> None:
    assert axis.ticks() == pytest.approx(expected)


def test_axis_maps_its_ends_to_its_pixels_and_numbers_are_short() -> None:
    labels = {0: "0", 0.25: "0.25", 999: "999", 1200: "1.2k", 5e6: "5M", 2e9: "2G"}

    assert [Axis(0, 10, 100, 200).px(value) for value in (0, 5, 10)] == [100, 150, 200]
    assert [Axis(1, 100, 200, 100, is_log=True).px(value) for value in (1, 10, 100)] == [
        200,
        150,
        100,
    ]
    assert {value: number(value) for value in labels} == labels


def test_long_labels_keep_their_ends_and_those_with_colours_of_their_own_stand_in_a_legend() -> (
    None
):
    plain = bars([Bar(f"10.0.0.{index}:8000", 1) for index in range(10)], y_label="y")
    ports = bars([Bar(f"127.0.0.1:{port}", 1) for port in (8001, 8002)], y_label="y")
    odd = bars([Bar("", 1), *[Bar("10.0.0.1:8000", 1)] * 9], y_label="y")
    names = [f"prefix_cache in_flight:target={number},min=4" for number in (15, 25)]
    coloured = bars([Bar(name, 1, place) for place, name in enumerate(names)], y_label="y")

    assert "<title>10.0.0.7:8000: 1</title>" in plain
    assert re.findall(r'class="x"[^>]*>([^<]*)<', plain) == [f"…{index}…" for index in range(10)]
    assert (">127.0.0.1:8001<" in ports, ">…:8000<" in odd) == (True, True)
    assert re.findall(r'class="key (s\d)">([^<]*)<', coloured) == [
        ("s0", names[0]),
        ("s1", names[1]),
    ]
    assert "…" not in coloured


def test_interval_becomes_a_whisker_and_bars_that_do_not_hold_are_hollow() -> None:
    plot = bars([Bar("a", 10, 0, 8, 12), Bar("b", 9, 1, is_hollow=True)], y_label="y")

    assert plot.count('class="whisker"') == 1
    assert 'class="bar s0"' in plot
    assert 'class="bar s1 hollow"' in plot


def test_a_telephone_leaves_out_the_names_that_would_run_into_each_other() -> None:
    plot = bars([Bar(str(turn), 1) for turn in range(10, 34)], y_label="y")
    few = bars([Bar(str(turn), 1) for turn in range(10, 14)], y_label="y")

    assert re.findall(r'class="x"[^>]*>(\d+)<', plot) == [str(turn) for turn in range(10, 34, 2)]
    assert re.findall(r'class="x spare"[^>]*>(\d+)<', plot) == [
        str(turn) for turn in range(11, 34, 2)
    ]
    assert "spare" not in few


def test_values_stand_above_all_bars_or_none() -> None:
    values = [87, *[88.25] * 19]

    assert 'class="value' not in bars([Bar("t", value) for value in values], y_label="y")
    assert bars([Bar("t", value) for value in values[:4]], y_label="y").count('class="value') == 4


def test_a_screen_reader_gets_what_a_plot_shows_and_that_there_is_nothing_to_plot() -> None:
    zeros = lines([Series("a", range(5), [0] * 5)], x_label="<load>", y_label="ms")
    empty = [lines([], x_label="x", y_label="y"), bars([], y_label="y")]
    empty.append(dotted({"a": [Dot(1, float("nan"))]}, x_label="x", y_label="y"))

    assert 'aria-label="ms by &lt;load&gt;"' in zeros
    assert ">-" not in zeros  # nothing but zeros lies on the axis
    assert 'aria-label="tokens/s"' in bars([Bar("a", 1)], y_label="tokens/s")
    assert all("Nothing to plot." in plot for plot in empty)


def test_whiskers_at_one_place_stand_side_by_side_and_end_with_the_plot() -> None:
    two = dotted({name: [Dot(8, 2, 1, 3)] for name in "ab"}, x_label="x", y_label="y")
    wide = dotted({"a": [Dot(1, 10, -500, 900), Dot(2, 12, 11, 13)]}, x_label="x", y_label="y")
    [left, right] = re.findall(r'class="spread[^>]*? x1="([^"]*)"', two)

    assert float(right) - float(left) == pytest.approx(6)
    assert wide.count('class="spread s0"') == 2
    # The axis begins at zero.
    assert ">-" not in wide
    assert ">0<" in wide


def test_few_points_are_marked_with_their_values_and_many_are_not() -> None:
    few, many = (
        lines([Series("a", range(count), range(count))], x_label="x", y_label="y")
        for count in (5, 100)
    )
    single = lines([Series("a", [0.75], [3])], x_label="s", y_label="ms")

    assert few.count("<circle") == 5
    assert "a: 2 at 2" in few
    assert "<circle" not in many
    # Four rates of a search and one bin of a short run are pictures, too: a table stands elsewhere.
    assert (single.count("<circle"), "<td>" in single) == (1, False)


def test_a_line_begins_at_zero_and_a_narrow_logarithmic_axis_has_ticks_and_says_so() -> None:
    plain = lines([Series("a", range(6), [65, 70, 75, 80, 82, 85])], x_label="s", y_label="%")
    narrow = lines(
        [Series("a", range(6), [410, 430, 500, 520, 560, 600])],
        x_label="s",
        y_label="ms",
        is_log_y=True,
    )

    assert ">0</text>" in plain
    assert "log scale" not in plain
    assert ">ms, log scale<" in narrow
    assert all(f">{tick}</text>" in narrow for tick in (450, 500, 550, 600))


def test_seventh_line_has_the_first_ones_colour_and_dashes() -> None:
    plot = lines(
        [Series(str(place), range(5), range(5)) for place in range(7)], x_label="x", y_label="y"
    )

    assert 'class="line s0"' in plot
    assert 'class="line s0 d1"' in plot


DOTS = st.lists(
    st.builds(Dot, st.integers(1, 9000), VALUES, VALUES, VALUES, st.booleans()), max_size=12
)


@given(st.dictionaries(st.sampled_from("abc"), DOTS), st.booleans(), st.booleans())
def test_any_dots_stay_within_the_frame(
    dots: dict[str, list[Dot]], is_log_x: bool, is_log_y: bool
) -> None:
    upright = {
        label: [
            Dot(d.x, abs(d.y), d.low, d.high) for d in some if d.low == d.low and d.high == d.high
        ]
        for label, some in dots.items()
    }
    plot = dotted(upright, x_label="x", y_label="y", is_log_x=is_log_x, is_log_y=is_log_y)
    ends = [float(value) for value in re.findall(r'class="spread[^>]*? [xy][12]="([^"]*)"', plot)]

    assert parsed_plot(plot) is not None
    assert all(0 <= value <= 640 for value in [*coordinates(plot), *ends])


def test_every_dot_has_a_tick_and_its_own_words() -> None:
    dots = {"a": [Dot(800, 1, title="eight hundred"), Dot(8000, 2)]}
    plot = dotted(dots, x_label="x", y_label="y", is_log_x=True)

    assert all(part in plot for part in (">800<", ">8k<", "<title>eight hundred</title>"))
