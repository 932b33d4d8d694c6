"""Stdio servers can't start in system folders or those of other organizations."""

from pathlib import Path

import pytest

from mcp_servers.client.folder_rules import FolderRule, list_mounted_folders

SYSTEM = (
    *("/", "/etc", "/etc/ssl", "/proc", "/proc/self", "/sys", "/dev", "/dev/shm", "/usr"),
    *(
        "/usr/share",
        "/bin",
        "/sbin",
        "/lib",
        "/boot",
        "/root",
        "/root/.ssh",
        "/home/a/.aws/x",
        "/run",
        "/home",
    ),
    *("/var", "/var/lib/postgresql", "/tmp", "//etc", "/usr/../etc", "/srv/../etc/./ssl"),
)


@pytest.fixture
def var(tmp_path: Path) -> Path:
    for name in ("keys", "workspaces/acme/docs", "workspaces/others"):
        (tmp_path / "var" / name).mkdir(parents=True)
    return tmp_path / "var"


@pytest.fixture
def rule(var: Path) -> FolderRule:
    return FolderRule(denied=(str(var),), allowed=(str(var / "workspaces" / "acme"),))


@pytest.mark.parametrize("folder", SYSTEM)
def test_folders_of_the_system_are_refused(rule: FolderRule, folder: str) -> None:
    assert rule.find_refusal(folder)


@pytest.mark.parametrize("folder", ["docs", ".", "", "~", "/srv/a\x00b"])
def test_a_relative_path_is_refused(rule: FolderRule, folder: str) -> None:
    assert rule.find_refusal(folder)


def test_all_folders_of_bonobot_except_the_own_workspace_are_refused(
    rule: FolderRule, var: Path
) -> None:
    workspace = var / "workspaces" / "acme"
    assert rule.find_refusal(str(workspace)) is None
    assert rule.find_refusal(str(workspace / "docs" / "new")) is None
    for folder in (var, var / "keys", var / "workspaces", var / "workspaces" / "others"):
        assert rule.find_refusal(str(folder)), folder
    assert rule.find_refusal(f"{workspace}/../others")
    assert rule.find_refusal(f"{workspace}-2")


def test_symlinks_are_resolved(rule: FolderRule, var: Path, tmp_path: Path) -> None:
    workspace = var / "workspaces" / "acme"
    for number, target in enumerate((var / "keys", Path("/etc"), Path("/"))):
        link = workspace / f"link-{number}"
        link.symlink_to(target)
        assert rule.find_refusal(str(link)), target
    elsewhere = tmp_path / "elsewhere"
    elsewhere.symlink_to(workspace)
    assert rule.find_refusal(str(elsewhere)) is None


def test_a_folder_elsewhere_is_allowed(rule: FolderRule, tmp_path: Path) -> None:
    assert rule.find_refusal(str(tmp_path / "project")) is None
    for folder in ("/srv/files", "/home/anna/project", "/root/project", "/home/anna"):
        assert rule.find_refusal(folder) is None, folder


@pytest.mark.parametrize(
    ("args", "folders"),
    [
        (("run", "-v", "/etc:/x:ro", "image"), ("/etc",)),
        (("run", "--volume=/proc:/x", "image"), ("/proc",)),
        (("run", "-v/root:/x", "image"), ("/root",)),
        (("run", "--mount", "type=bind,source=/usr,target=/x", "image"), ("/usr",)),
        (("run", "--mount=type=bind,src=/boot,dst=/x", "image"), ("/boot",)),
        (("run", "-v", "named:/x", "-i", "image"), ()),
    ],
)
def test_folders_that_docker_mounts_are_checked(
    args: tuple[str, ...], folders: tuple[str, ...]
) -> None:
    assert list_mounted_folders("docker", args) == folders
    assert list_mounted_folders("/usr/bin/podman", args) == folders
    assert list_mounted_folders("npx", args) == ()
