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
from bonobot.core.db.transactions import lock
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import InvalidInput
from mcp_servers.audit import record_server_change
from mcp_servers.flow_labels import FlowLabel
from mcp_servers.flow_labels.inference import (
    LabelContext,
    Labels,
    build_label_context,
    infer_labels,
)
from mcp_servers.flow_labels.store_use import StoreUse, infer_store_use
from mcp_servers.models import Definition, Server

# Inferring labels takes longer than the rest of a snapshot's row, so results are cached.
KEPT = 20_000


Reading = TypeVar("Reading")


class _Readings(Generic[Reading]):
    """A thread-safe LRU cache of inference results by definition and context."""

    def __init__(self, read: Callable[[str, Mapping[str, Any], LabelContext], Reading]) -> None:
        self._read = read
        self._kept: OrderedDict[tuple[str, str, str, LabelContext], Reading] = OrderedDict()
        self._lock = Lock()

    def of(self, row: Definition, known: LabelContext) -> Reading:
        """Return the result for a definition, inferred once per digest and context."""
        key = (row.kind, row.name, row.digest, known)
        found = self._kept.get(key)
        if found is None:
            found = self._read(row.kind, row.payload, known)
            with self._lock:
                self._kept[key] = found
                while len(self._kept) > KEPT:
                    self._kept.popitem(last=False)
        return found


_SUGGESTIONS: _Readings[Labels] = _Readings(infer_labels)
_USES: _Readings[StoreUse] = _Readings(infer_store_use)


def load_label_context(server: Server) -> LabelContext:
    """Return the context of a server for label inference; loads its `preset`."""
    preset = server.preset.labels if server.preset else None
    return build_label_context(
        server.transport_type, preset, declared="declared" in server.endpoint_config
    )


def suggest_labels(row: Definition, known: LabelContext) -> Labels:
    """Return the suggested labels for a definition as currently declared."""
    return _SUGGESTIONS.of(row, known)


def get_effective_labels(row: Definition, known: LabelContext) -> Labels:
    """Return the labels in effect for a definition: set ones, else the suggested ones."""
    if row.labels is None:
        return suggest_labels(row, known)
    return tuple(label for label in FlowLabel if label in row.labels)


def store_use_of(row: Definition, known: LabelContext) -> StoreUse:
    """Return whether a call of a definition reads or writes its server's store."""
    return _USES.of(row, known).with_labels(get_effective_labels(row, known))


def set_labels(
    principal: Principal,
    server: Server,
    rows: Sequence[Definition],
    labels: Collection[str] | None,
) -> Labels | None:
    """Set the labels of definitions of `server`; None restores the suggested ones.

    Effective immediately. Raises `Forbidden` without the permission to approve definitions, and
    `InvalidInput` (`unknown_label`).
    """
    principal.require(Action.APPROVE_DEFINITIONS)
    wanted = None if labels is None else _parse_labels(labels)
    changed = [row for row in rows if row.labels != (None if wanted is None else [*wanted])]
    if changed:
        with record_server_change(
            server,
            principal.actor,
            "definitions_labelled",
            {
                "labels": None if wanted is None else [*wanted],
                "definitions": [
                    {"kind": row.kind, "name": row.name, "before": row.labels} for row in changed
                ],
            },
        ):
            lock(Server.objects.filter(pk=server.pk))
            keys = [row.pk for row in changed]
            mine = Definition.objects.filter(server=server, pk__in=keys)
            mine.update(labels=None if wanted is None else [*wanted])
    return wanted


def _parse_labels(labels: Iterable[str]) -> Labels:
    found = {str(label).replace("-", "_") for label in labels}
    if unknown := sorted(found - {*FlowLabel}):
        raise InvalidInput(
            format_message("There is no label {unknown!r}.", unknown=unknown[0]),
            code="unknown_label",
            field="labels",
            remedy=format_message("The labels are {label}.", label=", ".join(FlowLabel)),
        )
    return tuple(label for label in FlowLabel if label in found)


WORDS = {
    FlowLabel.PRIVATE_DATA: _("reads private data"),
    FlowLabel.UNTRUSTED_CONTENT: _("brings in text that anybody may have written"),
    FlowLabel.SENDS_OUT: _("can send something out"),
    FlowLabel.REPEATABLE: _("may be repeated: a second call does no more than the first"),
}
