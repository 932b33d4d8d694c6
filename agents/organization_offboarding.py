"""Export and deletion of an organization.

An export folder has the configuration for `apply`, the audit log in a verifiable form, every row
as JSON Lines, and the workspaces. It never contains secrets.
"""

import json
import shutil
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from django.apps import apps
from django.conf import settings
from django.core import serializers
from django.db import transaction
from django.db.models import Model, QuerySet

from agents.config_file.export_config import as_yaml, export_config
from agents.kill_switch import halt_organization
from agents.models import Agent, ModelEndpoint
from bonobot.accounts.models import Membership, Organization
from bonobot.accounts.principals import Principal
from bonobot.core.problems import Conflict, Forbidden
from bonobot.ledger.audit.admin_changes import record_change
from bonobot.ledger.audit.export import export_pages
from bonobot.ledger.audit.retention import forget
from bonobot.ledger.models import AuditRow
from bonobot.maintenance import backups
from mcp_servers.build_endpoint import sandboxes
from mcp_servers.models import Server
from mcp_servers.services import lock_whole

# Lookups of models without an `organization` column.
THROUGH = {"agents.Step": "session__organization", "agents.Inbox": "session__organization"}
AT_ONCE = 500


@dataclass(frozen=True)
class OrganizationCounts:
    """Row counts of an organization."""

    organization: str
    rows: int
    audit_rows: int
    people: int


def measure(organization: Organization) -> OrganizationCounts:
    """Count the rows that would be exported or deleted."""
    rows = sum(found.count() for _, found in list_organization_tables(organization))
    audit = AuditRow.objects.of(organization.pk).count()
    people = Membership.objects.filter(organization=organization).count()
    return OrganizationCounts(organization.slug, rows, audit, people)


def list_organization_tables(
    organization: Organization,
) -> Iterator[tuple[type[Model], QuerySet[Any]]]:
    """Yield each model that has rows of an organization, with those rows."""
    for model in apps.get_models():
        if model._meta.app_label == "ledger":
            continue  # the audit log is exported separately
        column = THROUGH.get(model._meta.label)
        if column is None and any(f.name == "organization" for f in model._meta.local_fields):
            column = "organization"
        if column is not None:
            yield model, model._base_manager.filter(**{column: organization})


def export(principal: Principal, organization: Organization, folder: Path) -> OrganizationCounts:
    """Export everything to a new or empty folder, audited; raises `Conflict`, `Forbidden`."""
    _require_platform(principal)
    with record_change(
        **_build_audit_fields(principal, organization, "organization_exported"), governed=False
    ):
        pass
    _write(principal, organization, folder)
    return measure(organization)


def delete(
    principal: Principal, organization: Organization, folder: Path | None
) -> OrganizationCounts:
    """Halt an organization, export it to a folder (unless it is None), and delete it.

    The deletion is the last entry of its audit log, which then only the folder has. User accounts
    stay: they may be members elsewhere. Raises `Conflict`, `Forbidden`.
    """
    _require_platform(principal)
    if folder is not None:
        _require_empty(folder)
    halt_organization(principal, "The organization is being deleted.")
    found = measure(organization)
    told = {"rows": found.rows, "audit_rows": found.audit_rows}
    what = _build_audit_fields(principal, organization, "organization_deleted") | {"details": told}
    with record_change(**what, governed=False):
        pass
    if folder is not None:
        _write(principal, organization, folder)
        backups.read(folder)
    number, folders = (
        organization.pk,
        [*_list_workspace_folders(organization), sandboxes(organization.pk)],
    )
    with transaction.atomic():
        lock_whole(Server.objects.for_organization(organization.pk))
        # Foreign keys protect endpoints and servers while agents use them: delete the agents first.
        Agent.objects.for_organization(organization.pk).delete()
        ModelEndpoint.objects.for_organization(organization.pk).update(fallback=None)
        organization.delete()
        forget(number)
    for path in folders:
        shutil.rmtree(path, ignore_errors=True)
    return found


def _write(principal: Principal, organization: Organization, folder: Path) -> None:
    _require_empty(folder)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    text = as_yaml(export_config(principal))
    (folder / "configuration.yaml").write_text(text, encoding="utf-8")
    with (folder / "audit.jsonl").open("w", encoding="utf-8") as file:
        file.writelines(
            export_pages(AuditRow.objects.filter(organization_id=organization.pk), "jsonl")
        )
    with (folder / "people.jsonl").open("w", encoding="utf-8") as file:
        for member in Membership.objects.filter(organization=organization).select_related("user"):
            told = {"username": member.user.username, "email": member.user.email}
            file.write(f"{json.dumps(told | {'role': member.role})}\n")
    with (folder / "rows.jsonl").open("w", encoding="utf-8") as file:
        for _, rows in list_organization_tables(organization):
            serializers.serialize("jsonl", rows.order_by("pk").iterator(AT_ONCE), stream=file)
    with tarfile.open(folder / "workspaces.tar.gz", "w:gz") as archive:
        for workspaces in _list_workspace_folders(organization):
            archive.add(workspaces, arcname=f"workspaces/{workspaces.name}")
    backups.describe(folder)


def _list_workspace_folders(organization: Organization) -> list[Path]:
    """Return the existing workspace folders of its agents and servers."""
    above = Path(settings.BONOBOT_VAR) / "workspaces"
    names = (str(organization.pk), organization.slug)
    return [above / name for name in names if (above / name).is_dir()]


def _require_empty(folder: Path) -> None:
    if folder.exists() and any(folder.iterdir()):
        raise Conflict(
            f"{str(folder)!r} isn't empty.",
            code="folder_not_empty",
            field="FOLDER",
            remedy="Name a new folder.",
        )


def _require_platform(principal: Principal) -> None:
    if not principal.platform_admin:
        raise Forbidden(
            "Only a platform administrator may take a whole organization along, or away.",
            rule="platform_admin",
            remedy="Ask a platform administrator.",
        )


def _build_audit_fields(
    principal: Principal, organization: Organization, action: str
) -> dict[str, Any]:
    return {
        "organization_id": organization.pk,
        "actor": principal.actor,
        "action": action,
        "resource_type": "organization",
        "resource_id": str(organization.pk),
        "resource_name": organization.name,
    }
