"""Labelled: the flow labels that count for a definition, and who sets them (FEATURES X9).

Set ones count; before anybody has set any, the suggestion does.
"""

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from threading import Lock
from typing import Any, Generic, TypeVar

from bonobot.lib.problems import Invalid
from bonobot.lib.row_locks import lock
from bonobot.lib.sayings import say
from bonobot.tenancy.principals import Principal
from bonobot.tenancy.roles import Action
from mcp_servers.labelling import Labels, Origin, origin, suggested
from mcp_servers.labels import Label
from mcp_servers.models import Definition, Server
from mcp_servers.recording import changing
from mcp_servers.store_use import StoreUse, infer_store_use

# Suggestions that are kept: reading one takes longer than the rest of a row of a snapshot.
KEPT = 20_000


Reading = TypeVar("Reading")


class _Readings(Generic[Reading]):
    """What was read in declarations, by what it was made of; safe from several threads."""

    def __init__(self, read: Callable[[str, Mapping[str, Any], Origin], Reading]) -> None:
        self._read = read
        self._kept: OrderedDict[tuple[str, str, str, Origin], Reading] = OrderedDict()
        self._lock = Lock()

    def of(self, row: Definition, known: Origin) -> Reading:
        """Return what a definition's declaration tells, read once for each declaration."""
        key = (row.kind, row.name, row.digest, known)
        found = self._kept.get(key)
        if found is None:
            found = self._read(row.kind, row.payload, known)
            with self._lock:
                self._kept[key] = found
                while len(self._kept) > KEPT:
                    self._kept.popitem(last=False)
        return found


_SUGGESTIONS: _Readings[Labels] = _Readings(suggested)
_USES: _Readings[StoreUse] = _Readings(infer_store_use)


def origin_of(server: Server) -> Origin:
    """Return what labelling knows of a server; its `preset` is read."""
    preset = server.preset.labels if server.preset else None
    return origin(server.transport_type, preset, declared="declared" in server.endpoint_config)


def suggestion(row: Definition, known: Origin) -> Labels:
    """Return the labels that are suggested for a definition as it is declared now."""
    return _SUGGESTIONS.of(row, known)


def labels_of(row: Definition, known: Origin) -> Labels:
    """Return the labels that count for a definition: set ones, else the suggestion."""
    if row.labels is None:
        return suggestion(row, known)
    return tuple(label for label in Label if label in row.labels)


def store_use_of(row: Definition, known: Origin) -> StoreUse:
    """Return what a call of a definition does with what its server keeps."""
    return _USES.of(row, known).with_labels(labels_of(row, known))


def set_labels(
    principal: Principal,
    server: Server,
    rows: Sequence[Definition],
    labels: Collection[str] | None,
) -> Labels | None:
    """Set the labels of definitions of `server`; None goes back to the suggestion.

    Governed: it holds for the very next call. Raises `Forbidden` without the right to approve
    definitions, and `Invalid` (code `unknown_label`).
    """
    principal.require(Action.APPROVE_DEFINITIONS)
    wanted = None if labels is None else _checked(labels)
    changed = [row for row in rows if row.labels != (None if wanted is None else [*wanted])]
    if changed:
        with changing(
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


def _checked(labels: Iterable[str]) -> Labels:
    found = {str(label).replace("-", "_") for label in labels}
    if unknown := sorted(found - {*Label}):
        raise Invalid(
            say("There is no label {unknown!r}.", unknown=unknown[0]),
            code="unknown_label",
            field="labels",
            remedy=say("The labels are {label}.", label=", ".join(Label)),
        )
    return tuple(label for label in Label if label in found)
