"""UUIDs of version 7: ordered by time and unique."""

from datetime import UTC, datetime
from uuid import RFC_4122

import time_machine

from bonobot.core.db.fields import generate_uuid7


def test_a_later_id_is_larger() -> None:
    ids = []
    for year in (1999, 2026, 2027, 4000):
        with time_machine.travel(datetime(year, 1, 1, tzinfo=UTC), tick=False):
            ids.append(generate_uuid7())
    assert ids == sorted(ids)
    assert [str(id) for id in ids] == sorted(map(str, ids))


def test_an_id_has_its_millisecond_version_and_variant() -> None:
    with time_machine.travel(datetime(2026, 11, 22, tzinfo=UTC), tick=False):
        identifier = generate_uuid7()
    assert identifier.int >> 80 == int(datetime(2026, 11, 22, tzinfo=UTC).timestamp() * 1000)
    assert (identifier.version, identifier.variant) == (7, RFC_4122)


def test_ids_of_one_millisecond_differ_in_all_random_bits() -> None:
    with time_machine.travel(datetime(2026, 11, 22, tzinfo=UTC), tick=False):
        ids = [generate_uuid7().int for _ in range(2000)]
    assert len(set(ids)) == 2000
    ever_set, always_set = 0, -1
    for id in ids:
        ever_set, always_set = ever_set | id, always_set & id
    assert (ever_set & ~always_set).bit_count() == 74
