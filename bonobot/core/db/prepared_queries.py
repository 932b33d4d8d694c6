"""Queries and updates that each connection compiles once, for those that most requests make.

Django builds and compiles a query again each time, which takes several times as long as SQLite
needs to execute it.
"""

from collections.abc import Callable, Mapping
from typing import Any

from django.db import connection
from django.db.models import Field, QuerySet, Value
from django.db.models import query as model_query
from django.db.models.sql import UpdateQuery


class QueryParameter(Value):
    """Represent a value that is filled in each time a compiled query is executed."""

    def as_sql(self, compiler: Any, connection: Any) -> Any:
        """Return a placeholder and, as its parameter, this object."""
        return "%s", [self]


def fill_parameters(parameters: Any, values: dict[str, Any]) -> list[Any]:
    """Return the parameters of a compiled query, with the values of those that have a name."""
    return [
        _prepare(parameter.output_field, values[parameter.value])
        if isinstance(parameter, QueryParameter)
        else parameter
        for parameter in parameters
    ]


def _prepare(field: "Field[Any, Any]", value: Any) -> Any:
    return field.get_db_prep_value(value, connection)


class PreparedQuery:
    """A query with parameters, for rows of one model or for tuples of their values.

    It has no annotations; related rows are those of `select_related`. `build` is called once for
    each connection.
    """

    def __init__(self, build: Callable[[], QuerySet[Any, Any]]) -> None:
        self._build = build

    def fetch(self, **values: Any) -> list[Any]:
        """Return the rows for these values of the parameters (one query)."""
        kept: dict[PreparedQuery, _CompiledQuery] = connection.__dict__.setdefault(
            "_prepared_queries", {}
        )
        compiled = kept.get(self)
        if compiled is None:
            compiled = kept[self] = _CompiledQuery(self._build())
        return compiled.fetch(values)

    def fetch_first(self, **values: Any) -> Any:
        """Return the first row, or None."""
        return next(iter(self.fetch(**values)), None)


class PreparedUpdate:
    """An update of one model's rows, with parameters in its conditions and its values.

    `build_values` returns the values by field name, as for `QuerySet.update`. Both functions are
    called once for each connection.
    """

    def __init__(
        self,
        build: Callable[[], QuerySet[Any, Any]],
        build_values: Callable[[], Mapping[str, Any]],
    ) -> None:
        self._build, self._build_values = build, build_values

    def execute(self, **values: Any) -> int:
        """Update with these values of the parameters; return how many rows (one query)."""
        kept: dict[PreparedUpdate, tuple[str, Any]] = connection.__dict__.setdefault(
            "_prepared_updates", {}
        )
        compiled = kept.get(self)
        if compiled is None:
            compiled = kept[self] = self._compile()
        sql, parameters = compiled
        with connection.cursor() as cursor:
            cursor.execute(sql, fill_parameters(parameters, values))
            return int(cursor.rowcount)

    def _compile(self) -> tuple[str, Any]:
        query: Any = self._build().order_by().query.chain(UpdateQuery)
        query.add_update_values(self._build_values())
        sql, parameters = query.get_compiler(connection=connection).as_sql()
        return sql, parameters


class _CompiledQuery:
    """A compiled query of one connection."""

    def __init__(self, rows: QuerySet[Any, Any]) -> None:
        self._compiler: Any = rows.query.get_compiler(connection=connection)
        self._sql, self._parameters = self._compiler.as_sql()
        columns = [selection[0] for selection in self._compiler.select]
        self._converters = self._compiler.get_converters(columns)
        self._model, self._names, self._related = None, [], []
        model_info = self._compiler.klass_info
        if model_info and rows.query.default_cols:
            self._model = rows.model
            self._names = [columns[index].target.attname for index in model_info["select_fields"]]
            # `Any`: the type stubs are those of a later Django.
            build_populators: Any = model_query.get_related_populators
            self._related = build_populators(model_info, self._compiler.select, connection.alias)

    def fetch(self, values: dict[str, Any]) -> list[Any]:
        """Execute the query and convert its rows."""
        with connection.cursor() as cursor:
            cursor.execute(self._sql, fill_parameters(self._parameters, values))
            rows = cursor.fetchall()
        if not rows:
            return []
        if self._converters:
            rows = self._compiler.apply_converters(rows, self._converters)
        if self._model is None:
            return [tuple(row) for row in rows]
        return [self._build_object(self._model, row) for row in rows]

    def _build_object(self, model: Any, row: Any) -> Any:
        if not self._related:
            return model.from_db(connection.alias, self._names, row)
        # As `ModelIterable` does; the model's own columns are the first ones.
        built = model.from_db(connection.alias, self._names, row[: len(self._names)])
        for populator in self._related:
            populator.populate(row, built)
        return built
