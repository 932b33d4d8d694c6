"""Records are compared, hashed and replaced like frozen dataclasses."""

from dataclasses import field, replace

import pytest

from bonobot.core.records import record


@record()
class Point:
    x: int
    y: int = 0
    labels: tuple[str, ...] = field(default_factory=tuple)


@record(kw_only=True)
class Options:
    depth: int = 1


def test_records_with_the_same_fields_are_equal_and_have_the_same_hash() -> None:
    assert Point(1, 2) == Point(1, 2)
    assert hash(Point(1, 2)) == hash(Point(1, 2))
    assert len({Point(1), Point(1), Point(2)}) == 2


def test_a_changed_record_is_another_one() -> None:
    point = Point(1, 2, ("a",))
    assert replace(point, x=3) == Point(3, 2, ("a",))
    assert point.x == 1


def test_a_record_has_no_other_fields() -> None:
    with pytest.raises(AttributeError):
        Point(1).z = 1


def test_a_record_can_require_names() -> None:
    assert Options(depth=2).depth == 2
    with pytest.raises(TypeError):
        Options(2)  # type: ignore[misc]
