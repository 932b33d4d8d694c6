"""Deleted objects that can be restored for ten minutes.

Keep the rows of a deleted object, restore them, or delete them for good. The apps of the objects
register what can be restored.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypedDict
from uuid import UUID

from django.apps import apps
from django.db import IntegrityError, router, transaction
from django.db.models import SET_NULL, Field, ForeignKey, JSONField, Model
from django.db.models.deletion import Collector
from django.utils import timezone
from django.utils.functional import Promise

from bonobot.accounts.models import Deletion
from bonobot.accounts.models.deletions import RESTORE_PERIOD, DeletionQuerySet
from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Action
from bonobot.core.crypto.encrypted_fields import SealedFieldMixin, SealedValue
from bonobot.core.extension_points import ExtensionList
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import Conflict, NotFound
from bonobot.ledger.audit.admin_changes import record_change

# Restoring more would take too long for a request.
MAX_ROWS = 5_000


@dataclass(frozen=True, slots=True)
class RestorableKind:
    """A kind of object that can be restored after its deletion.

    `name` is the type of the object in the audit log, `label` its name on screens, `model` its
    model (`app.model`), `needs` what a principal must be allowed to do, `action` the audit action
    of a restoration, `ignored_models` the models of rows that aren't restored because they are
    observed again. `after_restore` is called in the transaction that restores the object, with its
    ID; `finish` when it can't be restored anymore, with the IDs of the organization and the object.
    `build_path` returns the path of an object's page from its ID, if it isn't that of its model.
    """

    name: str
    label: str | Promise
    model: str
    required_action: Action
    action: str
    ignored_models: frozenset[str] = frozenset()
    after_restore: Callable[[Principal, str], Any] | None = None
    finish: Callable[[UUID, str], Any] | None = None
    build_path: Callable[[str], str] | None = None


restorable_kinds: ExtensionList[RestorableKind] = ExtensionList()


def keep_deleted_rows(
    principal: Principal, kind_name: str, item: Any, *others: Model
) -> Deletion | None:
    """Keep the rows of an object that is about to be deleted, in the same transaction.

    `others` are objects that are deleted with it and that no foreign key connects. Returns None if
    there are too many rows to restore them; the object's `finish` is then called at once.
    """
    kind = get_restorable_kind(kind_name)
    rows = collect_rows([item, *others], kind.ignored_models)
    if rows is None:
        transaction.on_commit(partial(_finish, kind, item.organization_id, str(item.pk)))
        return None
    return Deletion.objects.create(
        organization_id=item.organization_id,
        kind=kind_name,
        object_id=str(item.pk),
        name=str(item)[:255],
        deleted_by=principal.label[:255],
        expires_at=timezone.now() + RESTORE_PERIOD,
        rows=rows,
    )


def can_restore_later(kind_name: str, item: Any, *others: Model) -> bool:
    """Return whether the object could be restored if it were deleted now."""
    return can_collect_rows([item, *others], get_restorable_kind(kind_name).ignored_models)


def list_deletions(principal: Principal) -> DeletionQuerySet:
    """Return what the principal may restore now, newest first."""
    kinds = [kind.name for kind in restorable_kinds if principal.may(kind.required_action)]
    rows: DeletionQuerySet = Deletion.objects.for_organization(principal.organization_id)
    return rows.restorable().filter(kind__in=kinds)


def get_deletion(principal: Principal, deletion_id: str) -> Deletion:
    """Return a deletion that the principal may restore; raises `NotFound`."""
    deletion: Deletion = list_deletions(principal).get_or_404(
        principal.organization_id, pk=deletion_id
    )
    return deletion


def restore_deletion(principal: Principal, deletion: Deletion) -> None:
    """Restore a deleted object with its rows; raises `Conflict`, `Forbidden`, `NotFound`."""
    kind = get_restorable_kind(deletion.kind)
    principal.require(kind.required_action)
    with record_change(
        organization_id=deletion.organization_id,
        actor=principal.actor,
        action=kind.action,
        resource_type=kind.name,
        resource_id=deletion.object_id,
        resource_name=deletion.name,
    ):
        rows = _take_rows(deletion)
        try:
            with transaction.atomic():
                insert_rows(rows)
        except IntegrityError:
            raise Conflict(
                format_message("Another object uses a name of {name!r} now.", name=deletion.name),
                code="name_taken",
                remedy="Rename the other object, then restore this one.",
            ) from None
        if kind.after_restore is not None:
            kind.after_restore(principal, deletion.object_id)


def finish_expired_deletions() -> int:
    """Delete for good what can't be restored anymore; return how many objects that were."""
    expired = list(Deletion.objects.expired().defer("rows"))
    for deletion in expired:
        kind = get_restorable_kind(deletion.kind)
        _finish(kind, deletion.organization_id, deletion.object_id)
        deletion.delete()
    return len(expired)


def _finish(kind: RestorableKind, organization_id: UUID, object_id: str) -> None:
    if kind.finish is not None:
        kind.finish(organization_id, object_id)


def _take_rows(deletion: Deletion) -> Any:
    """Delete the row and return the rows it keeps; raises `NotFound` if that isn't possible."""
    # Each process registers kinds at its start, before it needs transactions.
    from bonobot.core.db.transactions import lock_rows

    locked = Deletion.objects.restorable().filter(pk=deletion.pk)
    lock_rows(locked)
    current = locked.first()
    if current is None:
        raise NotFound(
            format_message("{name!r} can't be restored anymore.", name=deletion.name),
            remedy="Deleted objects can be restored for ten minutes. Create it again.",
        )
    rows = current.rows.open()
    current.delete()
    return rows


class StoredRow(TypedDict):
    """A deleted row: its model (`app.model`) and its values by attribute."""

    model: str
    values: dict[str, Any]


class StoredLink(TypedDict):
    """A foreign key that the deletion sets to null, with the rows that had it."""

    model: str
    attribute: str
    value: Any
    keys: list[Any]


class StoredRows(TypedDict):
    """All that a deletion deletes or changes."""

    rows: list[StoredRow]
    links: list[StoredLink]


def collect_rows(
    objects: Sequence[Model], ignored_models: frozenset[str] = frozenset()
) -> StoredRows | None:
    """Return the rows that deleting the objects deletes or changes; None if they are too many.

    Rows of the ignored models are left out.
    """
    collector = _collect(objects)
    keys_by_model = _list_keys(collector, ignored_models)
    if _is_too_long(keys_by_model):
        return None
    rows = [
        StoredRow(model=model._meta.label_lower, values=_dump_values(row))
        for model, keys in keys_by_model.items()
        for row in model._base_manager.filter(pk__in=keys)
    ]
    return StoredRows(rows=rows, links=_list_links(collector))


def can_collect_rows(
    objects: Sequence[Model], ignored_models: frozenset[str] = frozenset()
) -> bool:
    """Return whether `collect_rows` would return rows."""
    return not _is_too_long(_list_keys(_collect(objects), ignored_models))


def insert_rows(stored: StoredRows) -> None:
    """Insert the rows again and restore the links to them, in the caller's transaction.

    Rows that refer to something that was deleted meanwhile are left out, as if they had been
    deleted with it; the first row is the object itself and must not be one of them. Raises
    `Conflict`, and `IntegrityError` if a unique value is taken.
    """
    rows = [_load_row(row) for row in stored["rows"]]
    for row in _leave_out_orphans(rows):
        row.save_base(raw=True, force_insert=True)
    for link in stored["links"]:
        model = apps.get_model(link["model"])
        unset = {f"{link['attribute']}__isnull": True}
        model._base_manager.filter(pk__in=link["keys"], **unset).update(
            **{link["attribute"]: link["value"]}
        )


def _collect(objects: Sequence[Model]) -> Collector:
    collector = Collector(using=router.db_for_write(type(objects[0])), origin=objects[0])
    for item in objects:
        collector.collect([item])
    return collector


def _is_too_long(keys_by_model: Mapping[type[Model], Sequence[Any]]) -> bool:
    return sum(map(len, keys_by_model.values())) > MAX_ROWS


def _list_keys(
    collector: Collector, ignored_models: frozenset[str]
) -> dict[type[Model], list[Any]]:
    """Return the keys of the collected rows, at most a few more than are allowed."""
    keys: dict[type[Model], list[Any]] = defaultdict(list)
    for model, instances in collector.data.items():
        keys[model] += [instance.pk for instance in instances]
    for queryset in collector.fast_deletes:
        keys[queryset.model] += queryset.values_list("pk", flat=True)[: MAX_ROWS + 1]
    return {model: rows for model, rows in keys.items() if _get_label(model) not in ignored_models}


def _list_links(collector: Collector) -> list[StoredLink]:
    """Return the foreign keys that are set to null, grouped by their value."""
    keys: dict[tuple[str, str, Any], list[Any]] = defaultdict(list)
    field_updates: Any = collector.field_updates  # lists of querysets, unlike in the stubs
    for (field, _new_value), groups in field_updates.items():
        for instance in (instance for group in groups for instance in group):
            value = field.value_to_string(instance)
            keys[_get_label(field.model), field.attname, value].append(instance.pk)
    return [
        StoredLink(model=model, attribute=attribute, value=value, keys=[str(key) for key in rows])
        for (model, attribute, value), rows in keys.items()
    ]


def _get_label(model: type[Model]) -> str:
    return model._meta.label_lower


def _dump_values(row: Model) -> dict[str, Any]:
    return {field.attname: _dump_value(field, row) for field in row._meta.concrete_fields}


def _dump_value(field: "Field[Any, Any]", row: Model) -> Any:
    value = field.value_from_object(row)
    if isinstance(value, SealedValue):
        return value.mark
    if value is None or isinstance(field, JSONField) or isinstance(value, bool | int | str):
        return value
    return field.value_to_string(row)


def _load_row(stored: StoredRow) -> Model:
    """Return an unsaved row; raises `Conflict` if its table changed since."""
    model = apps.get_model(stored["model"])
    fields = {field.attname: field for field in model._meta.concrete_fields}
    if fields.keys() != stored["values"].keys():
        raise Conflict(
            "Bonobot was updated since the object was deleted.",
            remedy="Create the object again.",
        )
    values = {name: _load_value(fields[name], value) for name, value in stored["values"].items()}
    return model(**values)


def _load_value(field: Any, value: Any) -> Any:
    if isinstance(field, SealedFieldMixin):
        return SealedValue(field.codec, token=value) if value else value
    return field.to_python(value)


def _leave_out_orphans(rows: list[Model]) -> list[Model]:
    """Return the rows whose foreign keys refer to rows that exist or are restored, too.

    Foreign keys with `SET_NULL` are set to null instead. Raises `Conflict` if the first row, the
    object itself, refers to a row that is gone.
    """
    remaining = rows
    while True:
        missing = _find_missing_targets(remaining)
        restorable_rows = [row for row in remaining if not _is_orphan(row, missing)]
        if len(restorable_rows) == len(remaining):
            return restorable_rows
        if restorable_rows[:1] != rows[:1]:
            raise Conflict(
                "Something that the object needs was deleted, too.",
                remedy="Restore that first, or create the object again.",
            )
        remaining = restorable_rows


def _find_missing_targets(rows: Iterable[Model]) -> dict[type[Model], set[Any]]:
    """Return the keys that foreign keys of the rows refer to and that don't exist, by model."""
    expected_keys: dict[type[Model], set[Any]] = defaultdict(set)
    restored: dict[type[Model], set[Any]] = defaultdict(set)
    for row in rows:
        restored[type(row)].add(row.pk)
        for field in _list_foreign_keys(row):
            if (key := getattr(row, field.attname)) is not None:
                expected_keys[field.related_model].add(key)
    missing = {}
    for model, keys in expected_keys.items():
        keys -= restored[model]
        missing[model] = keys - set(
            model._base_manager.filter(pk__in=keys).values_list("pk", flat=True)
        )
    return missing


def _is_orphan(row: Model, missing: dict[type[Model], set[Any]]) -> bool:
    """Return whether the row would have been deleted with a missing one; else set its key to null.

    A key that may be null isn't enough: a rule without a server is a rule for all servers.
    """
    for field in _list_foreign_keys(row):
        if getattr(row, field.attname) in missing.get(field.related_model, ()):
            if field.remote_field.on_delete is not SET_NULL:
                return True
            setattr(row, field.attname, None)
    return False


def _list_foreign_keys(row: Model) -> list[Any]:
    return [field for field in row._meta.concrete_fields if isinstance(field, ForeignKey)]


def get_restorable_kind(name: str) -> RestorableKind:
    """Return a kind by its name; raises `LookupError`."""
    for kind in restorable_kinds:
        if kind.name == name:
            return kind
    raise LookupError(f"No kind of restorable object is named {name!r}.")
