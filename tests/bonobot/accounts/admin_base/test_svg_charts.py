"""The geometry of charts."""

from bonobot.accounts.admin_base import svg_charts


def test_bars_are_stacked_on_the_axis() -> None:
    first, second = svg_charts.build_bars([[("", 3), ("bad", 1)], [("", 0), ("bad", 2)]], 4)
    assert [(part.y, part.height) for part in first.parts] == [(25.0, 75.0), (0.0, 25.0)]
    assert [(part.tone, part.height) for part in second.parts] == [("bad", 50.0)]
    assert first.x + first.width < second.x


def test_an_axis_has_round_numbers_that_fit_the_highest() -> None:
    assert svg_charts.choose_axis(0) == [4, 3, 2, 1, 0]
    assert svg_charts.choose_axis(18) == [20, 15, 10, 5, 0]
    assert svg_charts.choose_axis(802) == [1_000, 750, 500, 250, 0]
    assert svg_charts.choose_axis(1_000_110)[0] == 2_000_000


def test_a_sparkline_is_straight_where_nothing_was_measured() -> None:
    spark = svg_charts.build_sparkline([None, 1.0, 2.0, None, 2.0])
    assert spark
    assert spark.line == "25.0,14.0 50.0,2.0 100.0,2.0"
    assert spark.area == f"25.0,28 {spark.line} 100.0,28"
    assert svg_charts.build_sparkline([None, 1.0]) is None


def test_labels_of_a_time_axis_fit_and_none_is_cut_off() -> None:
    labels = svg_charts.place_labels([str(day) for day in range(1, 31)])
    assert [label.text for label in labels] == ["1", "5", "9", "13", "17", "21", "25", "29"]
    assert [label.text for label in svg_charts.place_labels(["Mon", "Tue"])] == ["Mon", "Tue"]
    assert svg_charts.place_labels([]) == []
