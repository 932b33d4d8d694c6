"""Get and set the effective flow labels of definitions.

Labels that a person set override the suggested ones.
"""

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from threading import Lock
from typing import Any, Generic, TypeVar

from django.utils.translation import gettext_lazy as _

from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Action
from bonobot.core.db.transactions import lock_rows
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import InvalidInput
from mcp_servers.audit import record_server_change
from mcp_servers.flow_labels import FlowLabel
from mcp_servers.flow_labels.store_use import StoreUse, infer_store_use
from mcp_servers.flow_labels.suggested_labels import (
    LabelContext,
    Labels,
    build_label_context,
    infer_labels,
)
from mcp_servers.flow_labels.token_labels import require_no_held_labels
from mcp_servers.models import Definition, Server

# Inferring labels takes longer than the rest of a snapshot's row, so results are cached.
MAX_CACHED_RESULTS = 20_000


Inferred = TypeVar("Inferred")
LABEL_NAMES = {
    FlowLabel.PRIVATE_DATA: _("private data"),
    FlowLabel.UNTRUSTED_CONTENT: _("untrusted content"),
    FlowLabel.SENDS_OUT: _("external effect"),
    FlowLabel.REPEATABLE: _("idempotent"),
}


class _InferenceCache(Generic[Inferred]):
    """A thread-safe LRU cache of inference results by definition and context."""

    def __init__(self, infer: Callable[[str, Mapping[str, Any], LabelContext], Inferred]) -> None:
        self._infer = infer
        self._entries: OrderedDict[tuple[str, str, str, LabelContext], Inferred] = OrderedDict()
        self._lock = Lock()

    def get_or_infer(self, row: Definition, context: LabelContext) -> Inferred:
        """Return the result for a definition, inferred once per digest and context."""
        key = (row.kind, row.name, row.digest, context)
        inferred = self._entries.get(key)
        if inferred is None:
            inferred = self._infer(row.kind, row.payload, context)
            with self._lock:
                self._entries[key] = inferred
                while len(self._entries) > MAX_CACHED_RESULTS:
                    self._entries.popitem(last=False)
        return inferred


_SUGGESTED_LABELS: _InferenceCache[Labels] = _InferenceCache(infer_labels)
_STORE_USES: _InferenceCache[StoreUse] = _InferenceCache(infer_store_use)


def load_label_context(server: Server) -> LabelContext:
    """Return the context of a server for label inference; loads its `preset`."""
    preset = server.preset.labels if server.preset else None
    return build_label_context(
        server.transport_type, preset, declared="declared" in server.endpoint_config
    )


def suggest_labels(row: Definition, context: LabelContext) -> Labels:
    """Return the suggested labels for a definition as currently declared."""
    return _SUGGESTED_LABELS.get_or_infer(row, context)


def get_effective_labels(row: Definition, context: LabelContext) -> Labels:
    """Return the labels in effect for a definition: set ones, else the suggested ones."""
    if row.labels is None:
        return suggest_labels(row, context)
    return tuple(label for label in FlowLabel if label in row.labels)


def get_store_use(row: Definition, context: LabelContext) -> StoreUse:
    """Return whether a call of a definition reads or writes its server's store."""
    return _STORE_USES.get_or_infer(row, context).with_labels(get_effective_labels(row, context))


def set_labels(
    principal: Principal,
    server: Server,
    rows: Sequence[Definition],
    labels: Collection[str] | None,
) -> Labels | None:
    """Set the labels of definitions of `server`; None restores the suggested ones.

    Effective immediately. Raises `Forbidden` without the permission to approve definitions,
    `LabeledCaller`, and `InvalidInput` (`unknown_label`).
    """
    principal.require(Action.APPROVE_DEFINITIONS)
    require_no_held_labels(principal)
    new_labels = None if labels is None else _parse_labels(labels)
    changed_rows = [
        row for row in rows if row.labels != (None if new_labels is None else [*new_labels])
    ]
    if changed_rows:
        with record_server_change(
            server,
            principal.actor,
            "definitions_labeled",
            {
                "labels": None if new_labels is None else [*new_labels],
                "definitions": [
                    {"kind": row.kind, "name": row.name, "before": row.labels}
                    for row in changed_rows
                ],
            },
        ):
            lock_rows(Server.objects.filter(pk=server.pk))
            keys = [row.pk for row in changed_rows]
            changed_definitions = Definition.objects.filter(server=server, pk__in=keys)
            changed_definitions.update(labels=None if new_labels is None else [*new_labels])
    return new_labels


def _parse_labels(labels: Iterable[str]) -> Labels:
    names = {str(label).replace("-", "_") for label in labels}
    if unknown := sorted(names - {*FlowLabel}):
        raise InvalidInput(
            format_message("Unknown label {unknown!r}.", unknown=unknown[0]),
            code="unknown_label",
            field="labels",
            remedy=format_message("Use one of: {values}.", values=", ".join(FlowLabel)),
        )
    return tuple(label for label in FlowLabel if label in names)
