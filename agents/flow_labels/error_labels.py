"""Flow labels of the texts that errors and responses to writes quote.

An error may name any object of the organization ("It is still used by: …"), and a conflict shows
what changed. Which objects a message is made of isn't known where it is sent, so the texts of the
organization's labeled objects are searched in it. Most organizations have none: two queries.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import chain
from typing import Any
from uuid import UUID

from django.db.models import CharField, F, JSONField, Model, Q, TextField, UUIDField

from agents.flow_labels.session_labels import LabelOrigin, add_session_labels
from agents.flow_labels.text_labels import LABELED_MODELS, add_token_labels
from agents.models import Approval, Budget, Note, Recording, Session, ToolPolicy, ToolRule
from bonobot.accounts.models import Organization
from bonobot.accounts.principals import Principal
from bonobot.core.db.prepared_queries import PreparedQuery, QueryParameter
from bonobot.core.problems import Problem
from bonobot.ledger.models import FlowCell
from bonobot.ledger.types import Actor
from mcp_servers.flow_labels import build_flow_key
from mcp_servers.flow_labels.token_labels import HELD_LABELS
from mcp_servers.models import Definition

# Messages may shorten a text, but not to less than this.
MAX_COMPARED_LETTERS = 40
MIN_LETTERS = 2
_TEXT_FIELDS = (CharField, TextField, JSONField)
# Of these, only what a token wrote has labels, not what a server declared or a call contains.
_LABELED_FIELDS: dict[type[Model], tuple[str, ...]] = {
    Definition: ("rejection_reason",),
    Approval: ("message",),
    Budget: ("limit",),
    Recording: ("title",),
}
# Rows whose texts have the labels of an agent or of the organization's policy, and their agent.
_PARTS: dict[type[Model], str] = {ToolPolicy: "agent", ToolRule: "policy__agent", Budget: "agent"}


def label_response_reader(principal: Principal, response: Any) -> None:
    """Add the labels of the texts that a response quotes to the token that reads it."""
    if principal.kind != "token" or not response:
        return
    if labels := _find_quoted_labels(principal.organization_id, response):
        add_token_labels(principal, labels, LabelOrigin("response", "", ""))


def label_session_with_error(actor: Actor, session: Session, problem: Problem) -> None:
    """Add the labels of the texts that an error quotes to the session whose model reads it."""
    quoted = _find_quoted_labels(session.organization_id, [str(problem), str(problem.remedy)])
    add_session_labels(actor, session, quoted)


_ORGANIZATION = QueryParameter("organization", output_field=UUIDField())
_PREFIX = QueryParameter("prefix", output_field=CharField())
_LABELED_TEXTS = PreparedQuery(
    lambda: (
        FlowCell.objects.filter(organization_id=_ORGANIZATION, pk__startswith=_PREFIX)
        .exclude(labels=0)
        .values_list("pk", "labels")
    )
)
_LABELED_NOTES = PreparedQuery(
    lambda: (
        Note.objects.filter(organization=_ORGANIZATION)
        .exclude(labels=0)
        .values_list("labels", "title")
    )
)


def _find_quoted_labels(organization_id: UUID, response: Any) -> int:
    """Return the labels of the texts that a response quotes.

    Two queries, and one for each kind of labeled object if the organization has any.
    """
    prefix = build_flow_key(organization_id, "text", "")
    labeled = _LABELED_TEXTS.fetch(organization=organization_id, prefix=prefix)
    labels_by_id = {key.removeprefix(prefix): bits & HELD_LABELS for key, bits in labeled}
    notes = list(_query_labeled_notes(organization_id))
    if not labels_by_id and not notes:
        return 0
    text = _fold("\n".join(_iterate_strings(response)))
    labels = 0
    for row_labels, quoted in chain(_iterate_texts(organization_id, labels_by_id), notes):
        if row_labels & ~labels and _is_quoted(quoted, text):
            labels |= row_labels
    return labels


def _query_labeled_notes(organization_id: UUID) -> Iterator[tuple[int, str]]:
    for labels, title in _LABELED_NOTES.fetch(organization=organization_id):
        yield labels & HELD_LABELS, title


def _iterate_texts(
    organization_id: UUID, labels_by_id: Mapping[str, int]
) -> Iterator[tuple[int, str]]:
    """Yield the texts of labeled objects, each with its labels."""
    if not labels_by_id:
        return
    policy_ids = {text_id for text_id in labels_by_id if text_id.endswith(":policy")}
    row_ids = {UUID(text_id) for text_id in labels_by_id.keys() - policy_ids}
    for model in LABELED_MODELS:
        rows = model._base_manager.filter(pk__in=row_ids).only(*_LABELED_FIELDS.get(model, ()))
        for row in rows if model is Organization else rows.filter(organization=organization_id):
            yield from ((labels_by_id[str(row.pk)], text) for text in _iterate_row(row))
    policy_labels = labels_by_id.get(f"{organization_id}:policy", 0)
    for model, agent in _PARTS.items():
        is_labeled = Q(**{f"{agent}__in": row_ids})
        is_labeled |= Q(**{agent: None}) if policy_labels else Q(pk__in=())
        rows = model._base_manager.filter(is_labeled, organization=organization_id)
        for row in rows.annotate(labeled_agent=F(agent)):
            labels = labels_by_id.get(str(row.labeled_agent), policy_labels)
            yield from ((labels, text) for text in _iterate_row(row))


def _iterate_row(row: Model) -> Iterator[str]:
    names: Collection[str] | None = _LABELED_FIELDS.get(type(row))
    for field in row._meta.concrete_fields:
        if names is not None and field.name not in names:
            continue
        if names is None and (field.choices or not isinstance(field, _TEXT_FIELDS)):
            continue
        yield from _iterate_strings(getattr(row, field.attname))
    if isinstance(row, Budget) and row.unit == Budget.Unit.MONEY:
        yield f"{row.limit / 1e6:.2f}"


def _iterate_strings(value: Any) -> Iterator[str]:
    """Yield the strings and numbers in a JSON value; sealed values aren't opened."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from _iterate_all(value.keys())
        yield from _iterate_all(value.values())
    elif isinstance(value, list | tuple | set | frozenset):
        yield from _iterate_all(value)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield str(value)


def _iterate_all(values: Iterable[Any]) -> Iterator[str]:
    for value in values:
        yield from _iterate_strings(value)


def _is_quoted(quoted: str, folded_text: str) -> bool:
    folded = _fold(quoted[: 4 * MAX_COMPARED_LETTERS])[:MAX_COMPARED_LETTERS]
    return len(folded) >= MIN_LETTERS and folded in folded_text


def _fold(text: str) -> str:
    """Return the letters and digits: messages escape and quote the others."""
    return "".join(filter(str.isalnum, text.casefold()))
