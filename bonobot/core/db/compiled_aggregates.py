"""Aggregates of a model whose SQL is written once for each kind of database.

Django resolves and compiles each aggregate again for each query. With the thirty conditional sums
of a report, that takes several times as long as the database.
"""

from collections.abc import Mapping
from typing import Any

from django.db.models import Expression, Model


class CompiledAggregate(Expression):
    """An aggregate over columns of the queried table, without joins.

    Queries share it, so it must not be part of a subquery, whose tables get other names.
    """

    contains_aggregate = True
    contains_over_clause = False
    contains_subquery = False

    def __init__(self, model: type[Model], aggregate: Expression) -> None:
        self._query = model._base_manager.order_by().values("pk").annotate(value=aggregate).query
        self._sql: dict[str, tuple[str, tuple[Any, ...]]] = {}  # by database vendor
        super().__init__(output_field=self._query.annotations["value"].output_field)

    def resolve_expression(self, *args: Any, **kwargs: Any) -> "CompiledAggregate":
        """Return itself: its columns don't depend on the query."""
        return self

    def as_sql(self, compiler: Any, connection: Any) -> tuple[str, tuple[Any, ...]]:
        """Return the SQL and its parameters; compile them if no query needed them yet."""
        if connection.vendor not in self._sql:
            own_compiler = self._query.clone().get_compiler(connection=connection)
            own_compiler.setup_query()
            sql, parameters = own_compiler.compile(own_compiler.query.annotations["value"])
            self._sql[connection.vendor] = sql, tuple(parameters)
        return self._sql[connection.vendor]

    def get_group_by_cols(self) -> list[Any]:
        """Return no columns: rows aren't grouped by an aggregate."""
        return []


def compile_aggregates(
    model: type[Model], aggregates: Mapping[str, Expression]
) -> dict[str, CompiledAggregate]:
    """Return aggregates of a model, by name, for queries of its table."""
    return {name: CompiledAggregate(model, aggregate) for name, aggregate in aggregates.items()}
