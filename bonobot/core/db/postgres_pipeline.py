"""Send many statements to PostgreSQL in one round trip, directly through libpq.

Psycopg's own pipelines do the same, but take three times the CPU time: for each statement, they
create a cursor, convert the query, find adapters for its values, and run a generator.

Every statement is prepared the first time. Values are sent as text and converted by the types that
PostgreSQL infers, which a cast in the statement can set. Without BEGIN, the statements of a
pipeline are one transaction: all are committed, or none is.
"""

import select
from collections.abc import Iterable, Sequence
from itertools import count
from types import TracebackType
from typing import Any

import psycopg
from psycopg.pq import ConnStatus, ExecStatus
from psycopg.pq.abc import PGconn, PGresult

# Statements that stay prepared; there are fewer, unless batches of many sizes are locked.
MAX_PREPARED = 200

_INTEGER_TYPES = (20, 21, 23)  # bigint, smallint, integer
_ROW_STATUS, _SYNC_STATUS = ExecStatus.TUPLES_OK, ExecStatus.PIPELINE_SYNC
_SUCCESSES = (ExecStatus.COMMAND_OK, _ROW_STATUS)


class PipelineResult:
    """The result of a statement; available after its pipeline."""

    def __init__(self) -> None:
        self.result: PGresult | None = None

    def fetchall(self) -> list[tuple[Any, ...]]:
        """Return its rows: integers, None, and the text of all other types."""
        result = self.result
        if result is None:
            raise psycopg.InterfaceError("the pipeline hasn't ended")
        columns = range(result.nfields)
        is_integer = [result.ftype(column) in _INTEGER_TYPES for column in columns]
        return [
            tuple(
                _parse_value(result.get_value(row, column), is_integer[column])
                for column in columns
            )
            for row in range(result.ntuples)
        ]


class StatementPipeline:
    """The pipelines of one connection: a context manager whose statements are sent at its end.

    Raises the driver's errors. The connection is closed if the block raises, because what was sent
    until then isn't a whole transaction.
    """

    def __init__(self, connection: "psycopg.Connection[Any]") -> None:
        self._pgconn: PGconn = connection.pgconn
        self._socket = select.poll()
        self._socket.register(self._pgconn.socket, select.POLLIN)
        self._prepared: dict[str, bytes] = {}
        self._numbers = count(1)
        # Results in the order in which they arrive; None for those of preparations.
        self._expected: list[PipelineResult | None] = []
        self.is_open = False

    def __enter__(self) -> "StatementPipeline":
        self._pgconn.enter_pipeline_mode()
        self.is_open = True
        return self

    def __exit__(
        self,
        error_class: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.is_open = False
        expected, self._expected = self._expected, []
        try:
            if error is not None:
                return
            self._pgconn.pipeline_sync()
            self._flush()
            results = self._receive_results()
            self._pgconn.exit_pipeline_mode()
        except BaseException as failure:
            error = failure
            raise
        finally:
            if error is not None:
                self._pgconn.finish()
        for result in results:
            if result.status not in _SUCCESSES:
                self._prepared.clear()  # what followed the failed statement wasn't prepared
                raise _build_error(result)
        for pipeline_result, result in zip(expected, results, strict=True):
            if pipeline_result is not None:
                pipeline_result.result = result

    def execute(self, sql: str, values: Iterable[object] = ()) -> PipelineResult:
        """Send a statement whose values are `%s`."""
        pipeline_result = PipelineResult()
        name = self._prepared.get(sql) or self._prepare(sql)
        self._pgconn.send_query_prepared(name, [_encode_value(value) for value in values])
        self._expected.append(pipeline_result)
        return pipeline_result

    def _prepare(self, sql: str) -> bytes:
        if len(self._prepared) >= MAX_PREPARED:
            oldest = next(iter(self._prepared))
            self._pgconn.send_query_params(b"DEALLOCATE " + self._prepared.pop(oldest), None)
            self._expected.append(None)
        name = self._prepared[sql] = b"pipeline_%d" % next(self._numbers)
        parts = sql.split("%s")
        numbered = "".join(f"{part}${number}" for number, part in enumerate(parts[:-1], 1))
        self._pgconn.send_prepare(name, (numbered + parts[-1]).encode())
        self._expected.append(None)
        return name

    def _flush(self) -> None:
        """Send everything; read meanwhile, so that neither side waits for the other."""
        while self._pgconn.flush():
            self._socket.modify(self._pgconn.socket, select.POLLIN | select.POLLOUT)
            self._socket.poll()
            self._pgconn.consume_input()
            self._socket.modify(self._pgconn.socket, select.POLLIN)

    def _receive_results(self) -> Sequence[PGresult]:
        """Receive the results of all statements; those after a failed one are in error, too."""
        pgconn = self._pgconn
        results: list[PGresult] = []
        while True:
            while pgconn.is_busy():
                self._socket.poll()
                pgconn.consume_input()
            result = pgconn.get_result()
            if result is None:  # the end of a statement
                if pgconn.status != ConnStatus.OK:
                    raise psycopg.OperationalError("the connection is lost")
            elif result.status == _SYNC_STATUS:
                return results
            else:
                results.append(result)


def _encode_value(value: object) -> bytes | None:
    if value is None:
        return None
    encoded = str(value).encode()
    if 0 in encoded:  # libpq would silently send only what is before it
        raise psycopg.DataError("PostgreSQL's texts can't contain NUL")
    return encoded


def _parse_value(value: bytes | None, is_integer: bool) -> int | str | None:
    if value is None:
        return None
    return int(value) if is_integer else value.decode()


def _build_error(result: PGresult) -> psycopg.Error:
    error = psycopg.errors.error_from_result(result)
    # Without a code, it's libpq's own: the server didn't answer.
    return error if error.sqlstate else psycopg.OperationalError(str(error))
