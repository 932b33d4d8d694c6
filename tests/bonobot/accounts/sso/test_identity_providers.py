"""Identity providers in the admin, over REST and on the command line."""

from collections.abc import Iterator

import pytest
from django.core.management import call_command

from bonobot.accounts.models import Organization, Provider
from bonobot.accounts.principals import build_user_principal
from bonobot.accounts.roles import Role
from bonobot.accounts.sso import identity_providers as sso
from bonobot.core.http.egress import EgressDenied
from bonobot.core.problems import Conflict, Forbidden, InvalidInput
from bonobot.ledger.models import AuditRow
from tests import admin_client, factories, rest
from tests.bonobot.accounts.sso.provider_process import create_person, run_provider

pytestmark = pytest.mark.django_db


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with run_provider() as address:
        yield address


@pytest.fixture
def acme() -> Organization:
    return factories.create_organization()


def test_owners_manage_providers_and_secrets_stay_encrypted(acme: Organization, url: str) -> None:
    owner = build_user_principal(create_person(acme, Role.OWNER), acme)
    fields = {"name": "Login", "client_id": "bonobot", "client_secret": "s3cret"}
    for overrides, error in (
        ({"url": "http://127.0.0.1:1", "allow_private": True}, Forbidden),
        ({"url": "http://login.example.com"}, EgressDenied),
        ({"url": "https://login.example.com", "creates": True}, InvalidInput),
        ({"url": "https://login.example.com", "role": ""}, InvalidInput),
        ({"url": "https://login.example.com", "domains": ["no domain"]}, InvalidInput),
        ({"url": "https://login.example.com", "strange": 1}, InvalidInput),
    ):
        with pytest.raises(error):
            sso.create_provider(owner, **fields | overrides)
    provider = sso.create_provider(owner, url="https://login.example.com", **fields)
    assert provider.client_secret.open() == "s3cret"
    assert "s3cret" not in str(AuditRow.objects.get(action="identity_provider_created").__dict__)
    with pytest.raises(Conflict):
        sso.create_provider(owner, url="https://login.example.com", **fields)
    with pytest.raises(InvalidInput) as caught:
        sso.update_provider(owner, provider, url="https://other.example.com")
    assert caught.value.code == "credential_required"  # a secret is never sent to another provider
    provider.refresh_from_db()
    sso.update_provider(owner, provider, url="https://other.example.com", client_secret="")
    provider.refresh_from_db()
    assert not provider.client_secret
    operator = factories.create_member(acme, Role.OPERATOR, "otto")
    inner = factories.create_provider(acme, "http://127.0.0.1:1", "Inner", allow_private=True)
    sso.update_provider(owner, inner, name="Ours")
    with pytest.raises(Forbidden):
        sso.update_provider(owner, inner, url="http://127.0.0.1:2")
    with pytest.raises(Forbidden):
        sso.create_provider(operator, url="https://x.example.com", **fields)


def test_the_admin_creates_updates_and_deletes_a_provider(acme: Organization) -> None:
    admin = admin_client.sign_in(acme, Role.OWNER)
    fields = {"name": "Login", "url": "https://login.example.com", "client_id": "bonobot"}
    fields |= {"secret": "s3cret", "domains": "example.com b.example", "role": "member"}
    assert str(acme.pk) in admin.get("tenancy_provider_add")
    admin.post("tenancy_provider_add", **fields, enabled="on")
    row = Provider.objects.get()
    assert (row.domains, row.client_secret.open()) == (["example.com", "b.example"], "s3cret")
    admin.post("tenancy_provider_change", row.pk, **fields | {"secret": "********", "name": "Acme"})
    row.refresh_from_db()
    assert (row.name, row.enabled, row.client_secret.open()) == ("Acme", False, "s3cret")
    assert "s3cret" not in admin.get("tenancy_provider_change", row.pk)
    admin.post("tenancy_provider_delete", row.pk, post="yes")
    assert not Provider.objects.exists()


def test_rest_and_the_command_line_manage_providers_too(
    acme: Organization, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    organization = ("--org", acme.slug)
    arguments = ("--url", url, "--client-id", "bonobot", "--client-secret", "x", "--allow-private")
    call_command("sso", "add", "Login", *arguments, *organization)
    call_command("sso", "check", "Login", *organization)
    call_command(
        "sso", "set", "Login", "--domain", "example.com", "--role-for", "a=owner", *organization
    )
    call_command("sso", "list", "--json", *organization)
    output = capsys.readouterr().out
    assert '"client_secret": "********"' in output
    owner = rest.as_role(acme, Role.OWNER)
    (provider,) = owner.get("identity-providers").json["results"]
    assert (provider["client_secret"], provider["roles"]) == ("********", {"a": "owner"})
    path = f"identity-providers/{provider['id']}"
    assert owner.post(f"{path}/check").json == {"keys": 1}
    assert owner.patch(path, {"client_secret": "********", "enabled": False}).status == 200
    assert Provider.objects.get().client_secret.open() == "x"
    assert owner.delete(path).status == 204
    call_command("sso", "add", "Login", *arguments, *organization)
    call_command("sso", "remove", "Login", *organization)
    assert not Provider.objects.exists()
