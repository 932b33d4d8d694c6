"""Abstract models of an organization's rows.

`OrganizationModel` keeps organizations apart. `GovernedModel` promises more:
each write that can change a decision bumps the organization's policy generation in the same
transaction, whichever way it is written (save, delete, update, bulk, cascade), so that snapshots
taken before it are refused at admission.
"""

import uuid
from collections.abc import Iterable
from typing import Any, ClassVar, Self

from django.core.exceptions import ObjectDoesNotExist, ValidationError
from django.db import models, transaction
from django.utils.translation import gettext_lazy as _

from bonobot.core.db.changed_fields import SavesChangedFields
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import NotFound
from bonobot.ledger.audit.admin_changes import increment_generation

# Where every page tells a number, counting must not cost more the more there is.
MOST_COUNTED = 1_000


class ScopedQuerySet(models.QuerySet):
    """Rows of one organization at a time."""

    def for_organization(self, organization_id: uuid.UUID) -> Self:
        """Keep the rows of one organization."""
        return self.filter(organization_id=organization_id)

    def some_counted(self, name: str) -> Any:
        """Return a query for a name and the number of rows, to be asked in a union with others.

        Counting stops behind `MOST_COUNTED`: a number above it means "more".
        """
        some = self.order_by().values("pk")[: MOST_COUNTED + 1]
        rows = self.model._base_manager.filter(pk__in=some).order_by()
        of_all = rows.values(counted=models.Value(name)).annotate(n=models.Count("pk"))
        return of_all.values_list("counted", "n")

    def get_or_404(self, organization_id: uuid.UUID, **lookup: Any) -> Any:
        """Return the one row of this organization, or raise `NotFound`.

        A row of another organization answers exactly like one that doesn't exist.
        """
        try:
            return self.for_organization(organization_id).get(**lookup)
        except (ObjectDoesNotExist, ValidationError, ValueError):
            name = self.model._meta.verbose_name
            shown = next(iter(lookup.values()), "")
            raise NotFound(
                format_message("There is no {name} {shown!r} here.", name=name, shown=str(shown)),
                field=next(iter(lookup), ""),
                remedy="Check the id or name, and the organization that you are working in.",
            ) from None


class GovernedQuerySet(ScopedQuerySet):
    """Set-based writes that bump the generation like single ones do."""

    def update(self, **values: Any) -> int:
        """Update the rows; bump unless only observed fields change."""
        model: Any = self.model
        if model.observed_fields.issuperset(values):
            return super().update(**values)
        with transaction.atomic(using=self.db):
            touched = model.organizations_of(self)
            count = super().update(**values)
            _increment_generations(touched)
            return count

    def delete(self) -> tuple[int, dict[str, int]]:
        """Delete the rows and bump their organizations."""
        with transaction.atomic(using=self.db):
            model: Any = self.model
            touched = model.organizations_of(self)
            outcome = super().delete()
            _increment_generations(touched)
            return outcome

    def bulk_create(self, objs: Iterable[Any], *args: Any, **kwargs: Any) -> list[Any]:
        """Insert the rows and bump their organizations."""
        objs = list(objs)
        with transaction.atomic(using=self.db):
            created = super().bulk_create(objs, *args, **kwargs)
            _increment_generations({one for obj in objs for one in obj.governed()})
            return created


def _increment_generations(organizations: Iterable[uuid.UUID]) -> None:
    """Bump in key order: heads are locked in the same order everywhere."""
    for organization_id in sorted(organizations):
        increment_generation(organization_id)


class OrganizationModel(models.Model):
    """A row that belongs to exactly one organization."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    organization = models.ForeignKey(
        "tenancy.Organization", on_delete=models.CASCADE, related_name="+"
    )
    created_at = models.DateTimeField(_("created"), auto_now_add=True)
    updated_at = models.DateTimeField(_("updated"), auto_now=True)

    objects: ClassVar = ScopedQuerySet.as_manager()

    class Meta:
        abstract = True


class Governed(SavesChangedFields):
    """A row that decisions depend on, of one organization or of several.

    `observed_fields` names the columns that are mere observations (health, last use): writing only
    those with `update` or `save(update_fields=…)` changes no decision and bumps nothing.
    """

    observed_fields: ClassVar[frozenset[str]] = frozenset()

    objects: ClassVar = GovernedQuerySet.as_manager()

    class Meta:
        abstract = True

    def save(self, *args: Any, **kwargs: Any) -> None:
        """Save, and bump unless `update_fields` names only observed fields."""
        fields = kwargs.get("update_fields")
        if fields is not None and self.observed_fields.issuperset(fields):
            super().save(*args, **kwargs)
            return
        with transaction.atomic():
            touched = self.governed()
            super().save(*args, **kwargs)
            _increment_generations(touched)

    def delete(self, *args: Any, **kwargs: Any) -> tuple[int, dict[str, int]]:
        """Delete, with what cascades, and bump."""
        with transaction.atomic():
            touched = self.governed()
            outcome = super().delete(*args, **kwargs)
            _increment_generations(touched)
            return outcome

    @classmethod
    def organizations_of(cls, rows: models.QuerySet) -> set[uuid.UUID]:
        """Return the organizations whose decisions depend on some rows (a query)."""
        return set(rows.order_by().values_list("organization_id", flat=True).distinct())

    def governed(self) -> set[uuid.UUID]:
        """Return the organizations whose decisions depend on this row."""
        organization_id: uuid.UUID = self.organization_id  # type: ignore[attr-defined]  # or overridden
        return {organization_id}


class GovernedModel(OrganizationModel, Governed):
    """A row that decisions depend on and that belongs to exactly one organization."""

    objects: ClassVar = GovernedQuerySet.as_manager()

    class Meta:
        abstract = True
