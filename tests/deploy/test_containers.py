"""The image, the compose file and the manifests: linted by their own linters, and read by us."""

import os
import re
import stat
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from bonobot.core.crypto import key_files
from tests.parts import ROOT

DEPLOY = ROOT / "deploy"
BIN = Path(sys.executable).parent
BASE = DEPLOY / "kubernetes" / "kustomization.yaml"
MANIFESTS = sorted({*BASE.parent.glob("*.yaml")} - {BASE})
PINNED = re.compile(r"^([A-Za-z0-9._-]+)==(\S+)", re.MULTILINE)


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=ROOT, capture_output=True, check=False, text=True)


def passes(*command: str | Path) -> bool:
    ended = run(*command)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return True


def documents() -> list[dict[str, Any]]:
    texts = [path.read_text(encoding="utf-8") for path in MANIFESTS]
    return [found for text in texts for found in yaml.safe_load_all(text)]


def compose() -> dict[str, Any]:
    text = (DEPLOY / "compose.yaml").read_text(encoding="utf-8")
    found: dict[str, Any] = yaml.safe_load(text)
    return found


def pod(document: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = document["spec"]["template"]["spec"]
    return found


def pods() -> dict[str, dict[str, Any]]:
    kinds = ("Deployment", "Job")
    return {
        document["metadata"]["name"]: pod(document)
        for document in documents()
        if document["kind"] in kinds
    }


def pins(name: str) -> dict[str, str]:
    text = (ROOT / name).read_text(encoding="utf-8")
    return {canonicalize_name(name): version for name, version in PINNED.findall(text)}


def test_hadolint_reports_nothing() -> None:
    assert passes(BIN / "hadolint", "deploy/Containerfile")


def test_yamllint_reports_nothing() -> None:
    assert passes(BIN / "yamllint", "--strict", "-c", "deploy/yamllint.yaml", "deploy")


def test_the_compose_file_follows_the_specification() -> None:
    schema = ("--builtin-schema", "vendor.compose-spec")
    assert passes(BIN / "check-jsonschema", *schema, "deploy/compose.yaml")


def test_the_manifests_match_the_schemas_of_kubernetes() -> None:
    assert passes(BIN / "kubernetes-validate", "--strict", "--quiet", *MANIFESTS)


def test_the_kustomization_lists_every_manifest() -> None:
    listed = yaml.safe_load(BASE.read_text(encoding="utf-8"))["resources"]
    assert sorted(listed) == [path.name for path in MANIFESTS]


def test_pods_run_unprivileged_and_write_only_to_their_volumes() -> None:
    assert sorted(pods()) == ["bonobot-beat", "bonobot-migrate", "bonobot-web", "bonobot-worker"]
    for found in pods().values():
        assert found["securityContext"]["runAsNonRoot"] is True
        assert found["automountServiceAccountToken"] is False
        (container,) = found["containers"]
        rights = container["securityContext"]
        assert rights["readOnlyRootFilesystem"] is True
        assert rights["allowPrivilegeEscalation"] is False
        assert rights["capabilities"] == {"drop": ["ALL"]}
        mounted = {mount["name"] for mount in container["volumeMounts"]}
        assert mounted == {volume["name"] for volume in found["volumes"]}


def test_a_second_scheduler_stands_by() -> None:
    (beat,) = (
        document for document in documents() if document["metadata"]["name"] == "bonobot-beat"
    )
    assert beat["spec"]["replicas"] == 2
    assert compose()["services"]["beat"]["deploy"]["replicas"] == 2


def test_the_referenced_secrets_are_created(tmp_path: Path) -> None:
    assert passes("sh", DEPLOY / "secrets", tmp_path)
    made = {path.name for path in tmp_path.iterdir()}
    named = {name: secret["file"] for name, secret in compose()["secrets"].items()}
    assert {Path(file).name for file in named.values()} == set(named) == made
    (configuration,) = (document for document in documents() if document["kind"] == "ConfigMap")
    files = {name: Path(value) for name, value in configuration["data"].items() if "FILE" in name}
    assert {path.name for path in files.values()} <= made
    wanted = {name.removesuffix("_FILE").removeprefix("BONOBOT_").lower() for name in files}
    assert wanted == {path.name for path in files.values()}


def test_created_secrets_are_used_and_kept(tmp_path: Path) -> None:
    folder = tmp_path / "secrets"
    assert passes("sh", DEPLOY / "secrets", folder)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    texts = {path.name: path.read_text(encoding="utf-8").strip() for path in folder.iterdir()}
    assert key_files.parse_field_keys(texts["field_keys"], name="x")
    assert key_files.parse_signing_keys(texts["audit_keys"], name="x")
    assert key_files.parse_peppers(texts["token_peppers"], name="x")
    assert len(texts["secret_key"]) >= 50
    assert texts["postgres_password"] in texts["database_url"]
    assert passes("sh", DEPLOY / "secrets", folder)
    assert texts == {
        path.name: path.read_text(encoding="utf-8").strip() for path in folder.iterdir()
    }


def test_the_settings_of_the_examples_exist() -> None:
    example = (ROOT / ".env.example").read_text(encoding="utf-8")
    known = set(re.findall(r"^#?([A-Z_]+)=", example, re.MULTILINE))
    named = {
        name
        for path in DEPLOY.rglob("*")
        if path.is_file() and path.suffix != ".lock"
        for name in re.findall(
            r"\b(BONOBOT_[A-Z_]+|DATABASE_URL\w*|REDIS_URL\w*)\b", path.read_text(encoding="utf-8")
        )
    }
    named = {name.removesuffix("_FILE") for name in named}
    assert named - known - {"BONOBOT_VAR"} == set()


def test_the_image_installs_the_locked_packages() -> None:
    described = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    [extras] = re.findall(r"^IMAGE_EXTRAS := (.+)$", (ROOT / "Makefile").read_text("utf-8"), re.M)
    lines = list(described["dependencies"])
    for extra in extras.split():
        lines += described["optional-dependencies"][extra]
    image, everything = pins("deploy/requirements.lock"), pins("requirements.lock")
    assert {canonicalize_name(Requirement(line).name) for line in lines} <= set(image)
    assert image.items() <= everything.items()
    assert pins("deploy/build.lock").items() <= everything.items()


def test_the_image_is_built_from_the_copied_files() -> None:
    ignored = (ROOT / ".containerignore").read_text(encoding="utf-8")
    assert ignored == (ROOT / ".dockerignore").read_text(encoding="utf-8")
    text = (DEPLOY / "Containerfile").read_text(encoding="utf-8")
    copied = re.findall(r"^COPY ((?!--).+) \S+$", text, re.MULTILINE)
    sources = {name.split("/")[0] for line in copied for name in line.split()}
    assert {f"!{name}" for name in sources if name != "deploy"} <= set(ignored.splitlines())
    assert all((ROOT / name).exists() for line in copied for name in line.split())
    assert os.access(DEPLOY / "secrets", os.X_OK)


@pytest.mark.parametrize("part", ["web", "worker", "beat", "migrate"])
def test_every_deployment_uses_existing_commands(part: str) -> None:
    from django.core.management import get_commands

    name = "bonobot-web@" if part == "web" else f"bonobot-{part}"
    unit = (DEPLOY / "systemd" / f"{name}.service").read_text(encoding="utf-8")
    assert f"ExecStart=/opt/bonobot/bin/bonobot {part}" in unit
    assert compose()["services"][part]["command"][0] == part
    assert pods()[f"bonobot-{part}"]["containers"][0]["args"][0] == part
    assert part in get_commands()
