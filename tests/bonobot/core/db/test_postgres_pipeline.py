"""Statements are sent to PostgreSQL in one round trip, and are one transaction."""

from collections.abc import Iterator
from contextlib import suppress

import psycopg
import pytest
from django.db import connection as django_connection
from django.db import connections

from bonobot.core.db import postgres_pipeline
from bonobot.core.db.postgres_pipeline import StatementPipeline

pytestmark = [pytest.mark.postgres, pytest.mark.django_db(transaction=True)]


@pytest.fixture
def connection(transactional_db: None) -> Iterator["psycopg.Connection[tuple[object, ...]]"]:
    """A connection of its own, with a table that ends with it."""
    copy = connections.create_connection(django_connection.alias)
    copy.settings_dict = copy.settings_dict | {
        "OPTIONS": {
            name: option for name, option in copy.settings_dict["OPTIONS"].items() if name != "pool"
        }
    }
    copy.connect()
    driver = copy.connection
    driver.execute("CREATE TEMPORARY TABLE sample (id bigint PRIMARY KEY, words text)")
    yield driver
    with suppress(psycopg.Error):
        copy.close()


def _load_ids(connection: "psycopg.Connection[tuple[object, ...]]") -> list[object]:
    return [row[0] for row in connection.execute("SELECT id FROM sample ORDER BY id").fetchall()]


def test_rows_are_read_when_the_pipeline_has_ended(
    connection: "psycopg.Connection[tuple[object, ...]]",
) -> None:
    with StatementPipeline(connection) as pipeline:
        pipeline.execute("INSERT INTO sample VALUES (%s, %s)", (1, 'ä "\\'))
        pipeline.execute("INSERT INTO sample VALUES (%s, %s)", (2, None))
        rows = pipeline.execute("SELECT id, id::int, words, words = %s FROM sample", ("x",))
        with pytest.raises(psycopg.InterfaceError):
            rows.fetchall()
    assert rows.fetchall() == [(1, 1, 'ä "\\', "f"), (2, 2, None, None)]
    assert _load_ids(connection) == [1, 2]  # psycopg uses the connection as before


def test_nothing_is_stored_when_one_statement_fails(
    connection: "psycopg.Connection[tuple[object, ...]]",
) -> None:
    pipeline = StatementPipeline(connection)
    with pytest.raises(psycopg.errors.UniqueViolation), pipeline:  # noqa: PT012
        pipeline.execute("INSERT INTO sample VALUES (%s)", (1,))
        pipeline.execute("INSERT INTO sample VALUES (%s)", (1,))
        pipeline.execute("INSERT INTO sample VALUES (%s, 'later')", (2,))
    assert _load_ids(connection) == []
    with pipeline:
        pipeline.execute("INSERT INTO sample VALUES (%s, 'later')", (2,))
    assert _load_ids(connection) == [2]


def test_a_begun_transaction_continues_in_the_next_pipeline(
    connection: "psycopg.Connection[tuple[object, ...]]",
) -> None:
    pipeline = StatementPipeline(connection)
    with pipeline:
        pipeline.execute("BEGIN")
        pipeline.execute("INSERT INTO sample VALUES (%s)", (1,))
    with pipeline:
        pipeline.execute("INSERT INTO sample VALUES (%s)", (2,))
        pipeline.execute("ROLLBACK")
    assert _load_ids(connection) == []


def test_the_connection_is_closed_when_a_value_cant_be_sent(
    connection: "psycopg.Connection[tuple[object, ...]]",
) -> None:
    pipeline = StatementPipeline(connection)
    with pytest.raises(psycopg.DataError), pipeline:
        pipeline.execute("INSERT INTO sample VALUES (%s, %s)", (1, "a\x00b"))
    assert connection.closed


def test_large_statements_and_results_dont_wait_for_each_other(
    connection: "psycopg.Connection[tuple[object, ...]]",
) -> None:
    text = "x" * 1_000_000
    with StatementPipeline(connection) as pipeline:
        results = [pipeline.execute("SELECT %s::text", (text,)) for _ in range(30)]
    assert all(result.fetchall() == [(text,)] for result in results)


def test_statements_are_prepared_again_when_too_many_are(
    connection: "psycopg.Connection[tuple[object, ...]]", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_pipeline, "MAX_PREPARED", 2)
    pipeline = StatementPipeline(connection)
    for _ in range(2):
        with pipeline:
            results = [
                pipeline.execute(f"SELECT {number} + %s::bigint", (1,)) for number in range(5)
            ]
        assert [result.fetchall() for result in results] == [[(number + 1,)] for number in range(5)]
    prepared = connection.execute("SELECT count(*) FROM pg_prepared_statements").fetchall()
    assert prepared == [(2,)]


@pytest.mark.parametrize("when", ["before", "within"])
def test_an_operational_error_is_raised_when_the_connection_is_lost(
    connection: "psycopg.Connection[tuple[object, ...]]", when: str
) -> None:
    pipeline = StatementPipeline(connection)
    if when == "before":
        with django_connection.cursor() as cursor:
            cursor.execute("SELECT pg_terminate_backend(%s, 5000)", [connection.info.backend_pid])
    with pytest.raises(psycopg.OperationalError), pipeline:  # noqa: PT012
        pipeline.execute("INSERT INTO sample VALUES (%s)", (1,))
        if when == "within":
            pipeline.execute("SELECT pg_terminate_backend(pg_backend_pid())")
        pipeline.execute("SELECT 1")
