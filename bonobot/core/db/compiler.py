"""Django's SQL compiler, which compiles the columns of a model once instead of for each query.

Most queries select all columns of one model. To compile 30 columns takes longer than SQLite needs
to execute the query. A database backend names this module as its `compiler_module`.
"""

from typing import Any

from django.db.models import Model
from django.db.models.expressions import Col
from django.db.models.sql import compiler
from django.db.models.sql.compiler import (
    SQLAggregateCompiler,
    SQLDeleteCompiler,
    SQLInsertCompiler,
    SQLUpdateCompiler,
)

__all__ = [
    "SQLAggregateCompiler",
    "SQLCompiler",
    "SQLDeleteCompiler",
    "SQLInsertCompiler",
    "SQLUpdateCompiler",
]

# Of each model, its columns with their SQL, as `get_select` returns them.
_selections: dict[type[Model], tuple[Any, ...]] = {}


class SQLCompiler(compiler.SQLCompiler):
    """Compiles queries; the columns and converters of whole models are kept."""

    # The model whose columns the query selects, if it selects nothing else.
    _selected_model: type[Model] | None = None

    def compile(self, node: Any) -> Any:
        """Return the SQL of an expression and its parameters."""
        if type(node) is Col and node.alias:  # as `Col.as_sql`, which is found by several lookups
            quote, column = self.quote_name_unless_alias, str(node.target.column)
            return f"{quote(node.alias)}.{quote(column)}", []
        return super().compile(node)

    def get_select(self, with_col_aliases: bool = False) -> Any:
        """Return the columns, what the models are created from, and the annotations' positions."""
        model = None if with_col_aliases else self._find_selected_model()
        self._selected_model = model
        if model is None:
            return super().get_select(with_col_aliases=with_col_aliases)
        columns = _selections.get(model)
        if columns is None:
            selection, _model_info, _annotations = super().get_select()
            columns = _selections[model] = tuple(selection)
        return list(columns), {"model": model, "select_fields": list(range(len(columns)))}, {}

    def _find_selected_model(self) -> type[Model] | None:
        """Return the model if the query selects all of its columns and nothing else."""
        query: Any = self.query
        if not query.default_cols or query.selected is not None or query.select_related:
            return None
        if query.extra_select or query.annotation_select or query.deferred_loading[0]:
            return None
        model: type[Model] | None = query.model
        if model is None or model._meta.parents or model._meta.proxy:
            return None
        # Subqueries name their tables differently.
        return model if query.get_initial_alias() == model._meta.db_table else None

    def get_converters(self, expressions: Any) -> dict[int, Any]:
        """Return the functions that convert values of the database, by position."""
        model = self._selected_model
        if model is None or len(expressions) != self.col_count:
            return super().get_converters(expressions)
        # Converters belong to a connection, which may be another thread's.
        kept: dict[type[Model], dict[int, Any]] = self.connection.__dict__.setdefault(
            "_model_converters", {}
        )
        converters = kept.get(model)
        if converters is None:
            converters = kept[model] = super().get_converters(expressions)
        return converters
