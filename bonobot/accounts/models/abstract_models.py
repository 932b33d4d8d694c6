"""Abstract models of an organization's rows.

`OrganizationModel` separates organizations. `GovernedModel` also increments the organization's
policy generation in the transaction of each write that can change a decision, however it is
written (save, delete, update, bulk, cascade), so that admission refuses older snapshots.
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

# The cost of a count that every page shows must not grow with the table.
MAX_COUNTED = 1_000


class ScopedQuerySet(models.QuerySet):
    """Rows of one organization at a time."""

    def for_organization(self, organization_id: uuid.UUID) -> Self:
        return self.filter(organization_id=organization_id)

    def build_capped_count(self, name: str) -> Any:
        """Return a query for (name, number of rows), for use in a union.

        Counting stops after `MAX_COUNTED`: a higher number means "more".
        """
        capped_rows = self.order_by().values("pk")[: MAX_COUNTED + 1]
        rows = self.model._base_manager.filter(pk__in=capped_rows).order_by()
        grouped = rows.values(counted=models.Value(name)).annotate(n=models.Count("pk"))
        return grouped.values_list("counted", "n")

    def get_or_404(self, organization_id: uuid.UUID, **lookup: Any) -> Any:
        """Return the one row of this organization; raises `NotFound`.

        Rows of other organizations are treated as missing.
        """
        try:
            return self.for_organization(organization_id).get(**lookup)
        except (ObjectDoesNotExist, ValidationError, ValueError):
            name = self.model._meta.verbose_name
            shown_id = next(iter(lookup.values()), "")
            raise NotFound(
                format_message("The {kind} {name!r} doesn't exist.", kind=name, name=str(shown_id)),
                field=next(iter(lookup), ""),
                remedy="Check the ID or name, and the organization you are working in.",
            ) from None


class GovernedQuerySet(ScopedQuerySet):
    """Set-based writes that increment the policy generation."""

    def update(self, **values: Any) -> int:
        """Update the rows; increment the generation unless only observed fields change."""
        model: Any = self.model
        if model.observed_fields.issuperset(values):
            return super().update(**values)
        with transaction.atomic(using=self.db):
            organization_ids = model.list_organizations_of_rows(self)
            count = super().update(**values)
            _increment_generations(organization_ids)
            return count

    def delete(self) -> tuple[int, dict[str, int]]:
        """Delete the rows and increment the generations of their organizations."""
        with transaction.atomic(using=self.db):
            model: Any = self.model
            organization_ids = model.list_organizations_of_rows(self)
            outcome = super().delete()
            _increment_generations(organization_ids)
            return outcome

    def bulk_create(self, objs: Iterable[Any], *args: Any, **kwargs: Any) -> list[Any]:
        """Insert the rows and increment the generations of their organizations."""
        objs = list(objs)
        with transaction.atomic(using=self.db):
            created = super().bulk_create(objs, *args, **kwargs)
            _increment_generations(
                {
                    organization_id
                    for obj in objs
                    for organization_id in obj.list_governed_organizations()
                }
            )
            return created


def _increment_generations(organizations: Iterable[uuid.UUID]) -> None:
    """Increment in key order, the order in which heads are locked everywhere."""
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

    `observed_fields` are columns that no decision depends on (health, last use): writing only those
    with `update` or `save(update_fields=…)` doesn't increment the generation.
    """

    observed_fields: ClassVar[frozenset[str]] = frozenset()

    objects: ClassVar = GovernedQuerySet.as_manager()

    class Meta:
        abstract = True

    def save(self, *args: Any, **kwargs: Any) -> None:
        """Save; increment the generation unless `update_fields` has only observed fields."""
        fields = kwargs.get("update_fields")
        if fields is not None and self.observed_fields.issuperset(fields):
            super().save(*args, **kwargs)
            return
        with transaction.atomic():
            organization_ids = self.list_governed_organizations()
            super().save(*args, **kwargs)
            _increment_generations(organization_ids)

    def delete(self, *args: Any, **kwargs: Any) -> tuple[int, dict[str, int]]:
        """Delete, including cascades, and increment the generation."""
        with transaction.atomic():
            organization_ids = self.list_governed_organizations()
            outcome = super().delete(*args, **kwargs)
            _increment_generations(organization_ids)
            return outcome

    @classmethod
    def list_organizations_of_rows(cls, rows: models.QuerySet) -> set[uuid.UUID]:
        """Return the organizations whose decisions depend on the rows (a query)."""
        return set(rows.order_by().values_list("organization_id", flat=True).distinct())

    def list_governed_organizations(self) -> set[uuid.UUID]:
        """Return the organizations whose decisions depend on this row."""
        organization_id: uuid.UUID = self.organization_id  # type: ignore[attr-defined]  # or overridden
        return {organization_id}


class GovernedModel(OrganizationModel, Governed):
    """A row that decisions depend on and that belongs to exactly one organization."""

    objects: ClassVar = GovernedQuerySet.as_manager()

    class Meta:
        abstract = True
