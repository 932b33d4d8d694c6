"""Results are cached by object identity and never returned for another object."""

from typing import Any

from bonobot.core.process_cache import ObjectIdentityCache


def test_each_object_is_computed_once() -> None:
    computed: list[Any] = []

    def length(value: list[int]) -> int:
        computed.append(value)
        return len(value)

    lengths = ObjectIdentityCache(length)
    first, equal = [1, 2], [1, 2]
    assert [lengths.get(first), lengths.get(first), lengths.get(equal)] == [2, 2, 2]
    assert [id(item) for item in computed] == [id(first), id(equal)]


def test_short_lived_objects_are_never_confused() -> None:
    lengths = ObjectIdentityCache(len, max_size=8)
    for number in range(1_000):
        assert lengths.get([0] * (number % 7)) == number % 7
