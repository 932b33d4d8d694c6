"""The kinds of objects that can be restored; the apps of the objects register them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import UUID

from django.utils.functional import Promise

from bonobot.accounts.roles import Action
from bonobot.core.extension_points import ExtensionList

if TYPE_CHECKING:
    from bonobot.accounts.principals import Principal


@dataclass(frozen=True, slots=True)
class RestorableKind:
    """A kind of object that can be restored after its deletion.

    `name` is the type of the object in the audit log, `label` its name on screens, `model` its
    model (`app.model`), `needs` what a principal must be allowed to do, `action` the audit action
    of a restoration, `ignored_models` the models of rows that aren't restored because they are
    observed again. `after_restore` is called in the transaction that restores the object, with its
    ID; `finish` when it can't be restored anymore, with the IDs of the organization and the object.
    """

    name: str
    label: str | Promise
    model: str
    required_action: Action
    action: str
    ignored_models: frozenset[str] = frozenset()
    after_restore: Callable[["Principal", str], Any] | None = None
    finish: Callable[[UUID, str], Any] | None = None


_kinds: ExtensionList[RestorableKind] = ExtensionList()


def register_restorable_kind(kind: RestorableKind) -> None:
    """Add a kind of object."""
    _kinds.register(kind)


def list_restorable_kinds() -> list[RestorableKind]:
    return list(_kinds)


def get_restorable_kind(name: str) -> RestorableKind:
    """Return a kind by its name; raises `LookupError`."""
    for kind in _kinds:
        if kind.name == name:
            return kind
    raise LookupError(f"No kind of restorable object is named {name!r}.")
