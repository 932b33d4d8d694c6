"""Exporting and deleting an organization, without data of others."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from django.apps import apps
from pytest_django import Settings

from agents import organization_offboarding
from agents.models import Inbox, ModelEndpoint, Session
from agents.services import AgentSpec, create_agent
from bonobot.accounts.models import Membership, Organization, User
from bonobot.accounts.organizations import save_organization
from bonobot.accounts.principals import Principal, build_cli_principal
from bonobot.accounts.roles import Role
from bonobot.core.problems import Forbidden
from bonobot.ledger.audit.export import parse_lines
from bonobot.ledger.audit.prune_chain import list_organization_rows
from bonobot.ledger.audit.verify_chain import verify_exported
from bonobot.ledger.models import AuditRow
from bonobot.maintenance import backups
from tests.ledger_chain import verify_whole_chain

pytestmark = pytest.mark.django_db(transaction=True)
SECRET = "sk-very-secret-123"


def create_organization(slug: str) -> Organization:
    organization = Organization.objects.create(name=slug.title(), slug=slug)
    user = User.objects.create_user(f"ana-{slug}", password="x")
    Membership.objects.create(organization=organization, user=user, role=Role.OWNER)
    second = ModelEndpoint.objects.create(
        organization=organization, name="b", slug="b", model="m", api_key=SECRET
    )
    first = ModelEndpoint.objects.create(
        organization=organization, name="a", slug="a", model="m", fallback=second
    )
    spec = AgentSpec(name="A", slug="a", model_endpoint=first)
    agent = create_agent(build_cli_principal(organization), spec)
    started_by = {"started_by_kind": "user", "started_by_id": "1", "started_by": "x"}
    session = Session.objects.create(
        organization=organization, agent=agent, status="done", **started_by
    )
    actor = {"actor_kind": "user", "actor_id": "1", "actor": "x"}
    Inbox.objects.create(session=session, kind="message", payload={"text": slug}, **actor)
    save_organization(build_cli_principal(organization), organization, adding=False)
    return organization


@pytest.fixture
def var(tmp_path: Path, settings: Settings) -> Path:
    settings.BONOBOT_VAR = tmp_path / "var"
    for slug in ("acme", "other"):
        folder = tmp_path / "var" / "workspaces" / slug
        folder.mkdir(parents=True)
        (folder / "a.txt").write_text(slug, encoding="utf-8")
    return tmp_path / "var"


def test_an_export_has_everything_except_secrets_and_other_organizations(
    tmp_path: Path, var: Path
) -> None:
    acme, _ = create_organization("acme"), create_organization("other")
    folder = tmp_path / "left"
    export = organization_offboarding.export_organization(build_cli_principal(acme), acme, folder)
    assert sorted(path.name for path in folder.iterdir()) == [
        *("audit.jsonl", "configuration.yaml", "manifest.json", "people.jsonl", "rows.jsonl"),
        "workspaces.tar.gz",
    ]
    lines = (folder / "rows.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    assert len(rows) == export.rows
    assert {"agents.agent", "agents.session", "agents.inbox"} <= {row["model"] for row in rows}
    for path in folder.glob("*.*l"):
        assert SECRET not in path.read_text(encoding="utf-8")
        assert "ana-other" not in path.read_text(encoding="utf-8")
    audit = (folder / "audit.jsonl").read_text(encoding="utf-8").splitlines()
    assert json.loads(json.loads(audit[-1])["opened"])["action"] == "organization_exported"
    assert verify_exported(parse_lines(audit)).ok
    backups.read_backup(folder)


def test_a_deletion_leaves_only_the_export_and_other_organizations(
    tmp_path: Path, var: Path
) -> None:
    acme, other_organization = create_organization("acme"), create_organization("other")
    organization_id, before = (
        acme.pk,
        organization_offboarding.count_organization_rows(other_organization),
    )
    folder = tmp_path / "left"
    organization_offboarding.delete_organization(build_cli_principal(acme), acme, folder)
    assert not Organization.objects.filter(pk=organization_id).exists()
    for model in apps.get_models():
        if any(field.attname == "organization_id" for field in model._meta.local_fields):
            assert not model._base_manager.filter(organization_id=organization_id).exists(), model
    assert not any(rows.exists() for rows in list_organization_rows(organization_id))
    assert Inbox.objects.count() == 1
    assert sorted(path.name for path in (var / "workspaces").iterdir()) == ["other"]
    assert organization_offboarding.count_organization_rows(other_organization) == before
    assert verify_whole_chain(other_organization.pk).ok
    audit = (folder / "audit.jsonl").read_text(encoding="utf-8").splitlines()
    assert json.loads(json.loads(audit[-1])["opened"])["action"] == "organization_deleted"
    assert User.objects.filter(username="ana-acme").exists()


def test_only_a_platform_administrator_can_export_or_delete_an_organization(
    tmp_path: Path, var: Path
) -> None:
    acme = create_organization("acme")
    principal: Principal = replace(build_cli_principal(acme), platform_admin=False)
    with pytest.raises(Forbidden):
        organization_offboarding.delete_organization(principal, acme, None)
    with pytest.raises(Forbidden):
        organization_offboarding.export_organization(principal, acme, tmp_path / "left")
    assert not AuditRow.objects.filter(action="organization_deleted").exists()
    assert not (tmp_path / "left").exists()
