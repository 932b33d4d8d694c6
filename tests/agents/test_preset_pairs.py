"""Pairs of shipped presets: what one writes, the other reads or runs; nothing leaves the sandbox.

The fixtures and the real programs are those of `test_preset_attacks`.
"""

import json
import re
import stat
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from django.conf import settings as django_settings

from agents.calls.pipeline import CallOutcome
from agents.models import Agent
from bonobot.accounts.models import Organization
from bonobot.core.problems import Problem
from mcp_servers.client.errors import UpstreamError
from tests.agents.test_preset_attacks import CANARY, KUBECONFIG, Start, secrets, start, workspace

__all__ = ["secrets", "start", "workspace"]

pytestmark = [
    pytest.mark.whole,
    pytest.mark.sandbox,
    pytest.mark.npm,
    pytest.mark.sdk1,
    pytest.mark.django_db(transaction=True),
]
Call = Callable[..., CallOutcome]


@pytest.fixture
def repository(workspace: Path) -> Path:
    """A working copy in the workspace, with a commit."""
    return create_repository(workspace / "repository")


def create_repository(folder: Path) -> Path:
    """Create a working copy with a commit."""
    run_git("init", "--quiet", str(folder))
    (folder / "notes.txt").write_text("notes")
    run_git("-C", str(folder), "add", ".")
    identity = ("-c", "user.name=Ann", "-c", "user.email=ann@example.org")
    run_git("-C", str(folder), *identity, "commit", "--quiet", "--message", "First")
    return folder


@pytest.fixture
def other_repository(secrets: list[Path]) -> Iterator[Path]:
    """A repository of another organization whose file has the canary."""
    folder = secrets[1].parent / "repository"
    run_git("init", "--quiet", str(folder))
    (folder / "secret").write_text(CANARY)
    run_git("-C", str(folder), "add", ".")
    identity = ("-c", "user.name=Bea", "-c", "user.email=bea@example.org")
    run_git("-C", str(folder), *identity, "commit", "--quiet", "--message", CANARY)
    yield folder
    subprocess.run(["rm", "-r", str(folder)], check=True)


def run_git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], check=True, capture_output=True, text=True).stdout


def write_collector(workspace: Path, secrets: list[Path]) -> tuple[Path, Path]:
    """Write a program that copies the secrets, and return it and the file with its findings."""
    output_file, program = workspace / "found", workspace / "collect.sh"
    tries = [
        *(f"cat {secret}" for secret in secrets),
        f"ls -la {django_settings.BONOBOT_VAR} /root /home",
        "cat /etc/shadow /etc/ssl/private/* /proc/1/environ /proc/*/environ",
        f"env; find / -xdev -name canary; cat /proc/*/root{secrets[0]} /proc/*/cwd/canary",
        "ls /run /var/run /etc/cron.d; cat /run/secrets/*",
    ]
    lines = [
        *(f"( {command} ) >>{output_file} 2>/dev/null" for command in tries),
        f"echo ran >>{output_file}",
        "cat",
    ]
    program.write_text("#!/bin/sh\n" + "\n".join(lines) + "\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return program, output_file


GIT_PROGRAMS: dict[str, tuple[str, dict[str, str], str, dict[str, object]]] = {
    "core.fsmonitor": ("[core]\nfsmonitor = {program}\n", {}, "git_status", {}),
    "core.hooksPath": (
        "[core]\nhooksPath = {folder}/hooks\n[user]\nname = A\nemail = a@b.c\n",
        {"hooks/pre-commit": "{script}"},
        "git_commit",
        {"message": "x"},
    ),
    "a clean filter": (
        '[filter "x"]\nclean = {program}\n',
        {"repository/.gitattributes": "* filter=x\n"},
        "git_add",
        {"files": ["notes.txt"]},
    ),
    "a process filter": (
        '[filter "x"]\nprocess = {program}\nrequired = true\n',
        {"repository/.gitattributes": "* filter=x\n"},
        "git_add",
        {"files": ["notes.txt"]},
    ),
    "textconv": (
        '[diff "x"]\ntextconv = {program}\n',
        {"repository/.gitattributes": "* diff=x\n", "repository/notes.txt": "other"},
        "git_diff_unstaged",
        {},
    ),
    "an external diff": (
        "[diff]\nexternal = {program}\n",
        {"repository/notes.txt": "other"},
        "git_diff_unstaged",
        {},
    ),
    "an included configuration": (
        "[include]\npath = {folder}/more\n",
        {"more": "[core]\nfsmonitor = {program}\n"},
        "git_status",
        {},
    ),
    "an included configuration by condition": (
        '[includeIf "gitdir:**"]\npath = {folder}/more\n',
        {"more": "[core]\nfsmonitor = {program}\n"},
        "git_status",
        {},
    ),
    "a signing program": (
        "[gpg]\nprogram = {program}\n[commit]\ngpgsign = true\n[user]\nname = A\nemail = a@b.c\n",
        {},
        "git_commit",
        {"message": "x"},
    ),
    "a hook after a checkout": (
        "[core]\nhooksPath = {folder}/hooks\n",
        {"hooks/post-checkout": "{script}", "hooks/reference-transaction": "{script}"},
        "git_create_branch",
        {"branch_name": "other"},
    ),
}


def test_git_runs_written_programs_in_the_sandbox(
    start: Start,
    call: Call,
    workspace: Path,
    repository: Path,
    secrets: list[Path],
    helper: Agent,
) -> None:
    """Both servers start once: each program has its own repository below the server's."""
    Agent.objects.filter(pk=helper.pk).update(calls_per_minute=1_000)
    start("filesystem", FOLDER=str(workspace))
    start("git", REPOSITORY=str(repository))
    ran, leaks = set[str](), dict[str, str]()
    for number, (name, (config, files, tool, arguments)) in enumerate(GIT_PROGRAMS.items()):
        folder = repository / str(number)
        own_repository = create_repository(folder / "repository")
        program, output_file = write_collector(folder, secrets)
        values = {"program": program, "folder": folder, "script": program.read_text()}
        config_path = own_repository / ".git" / "config"
        texts = {str(config_path): config_path.read_text() + config.format(**values)}
        texts |= {str(folder / path): text.format(**values) for path, text in files.items()}
        for path, text in texts.items():
            Path(path).parent.mkdir(exist_ok=True)
            call("mcp_filesystem_write_file", {"path": path, "content": text})
        for hook in folder.glob("hooks/*"):
            hook.chmod(0o755)
        call(f"mcp_git_{tool}", {"repo_path": str(own_repository), **arguments})
        text = output_file.read_text() if output_file.exists() else ""
        if "ran" in text:
            ran.add(name)
        if CANARY in text or re.search("^root:", text, re.MULTILINE):  # a line of /etc/shadow
            leaks[name] = text
    assert leaks == {}
    # Which of them this version of Git runs isn't the point, but some must, or nothing was tried.
    assert {"core.fsmonitor", "a clean filter"} <= ran


# Settings that name a file, whose lines Git could show in a result or an error.
FILE_SETTINGS = {
    "mailmap": "[mailmap]\nfile = {secret}\n[log]\nmailmap = true\n",
    "template": "[commit]\ntemplate = {secret}\n",
    "attributes": "[core]\nattributesFile = {secret}\n",
    "excludes": "[core]\nexcludesFile = {secret}\n",
    "ignored revisions": "[blame]\nignoreRevsFile = {secret}\n",
    "order of files": "[diff]\norderFile = {secret}\n",
}
REDIRECTIONS = ("gitdir", "commondir", "alternates", "worktree", "include", "head", *FILE_SETTINGS)
# They redirect the repository itself: a server may also be started with one.
REDIRECTED_REPOSITORIES = ("gitdir", "commondir", "worktree")
Write = Callable[[Path, str], None]


@pytest.fixture
def write(start: Start, call: Call, workspace: Path, helper: Agent) -> Write:
    """Return a function that writes a file of the workspace with the preset `filesystem`."""
    Agent.objects.filter(pk=helper.pk).update(calls_per_minute=1_000)
    start("filesystem", FOLDER=str(workspace))

    def write_file(path: Path, text: str) -> None:
        call("mcp_filesystem_write_file", {"path": str(path), "content": text})
        assert path.read_text() == text

    return write_file


def redirect(name: str, repository: Path, other_git: Path, secret: Path, write: Write) -> None:
    """Redirect a working copy to files of another organization."""
    git = repository / ".git"
    config = git / "config"
    if name == "gitdir":
        subprocess.run(["rm", "-r", str(git)], check=True)
        write(git, f"gitdir: {other_git}\n")
    elif name == "commondir":
        write(git / "commondir", f"{other_git}\n")
    elif name == "alternates":
        write(git / "objects" / "info" / "alternates", f"{other_git}/objects\n")
    elif name == "worktree":
        write(config, config.read_text() + f"[core]\nworktree = {secret.parent}\n")
    elif name == "head":
        write(git / "HEAD", f"ref: refs/heads/../../../../..{secret}\n")
    elif name in FILE_SETTINGS:
        write(config, config.read_text() + FILE_SETTINGS[name].format(secret=secret))
    else:
        write(config, config.read_text() + f"[include]\npath = {secret}\n")


def use_repository(call: Call, repository: Path, other_head: str) -> str:
    """Call what shows or commits files and commits; return all results."""
    calls: tuple[tuple[str, dict[str, object]], ...] = (
        ("log", {}),
        ("show", {"revision": other_head}),
        ("add", {"files": ["canary"]}),
        ("diff_staged", {}),
        ("commit", {"message": "x"}),
        ("status", {}),
    )
    where = {"repo_path": str(repository)}
    return "".join(call(f"mcp_git_git_{tool}", where | more).text for tool, more in calls)


def test_git_cant_be_redirected_to_files_of_others(
    start: Start,
    call: Call,
    write: Write,
    repository: Path,
    other_repository: Path,
    secrets: list[Path],
) -> None:
    """Both servers start once: each redirection has its own repository below the server's."""
    other_git = other_repository / ".git"
    head = run_git("-C", str(other_repository), "rev-parse", "HEAD").strip()
    start("git", REPOSITORY=str(repository))
    own_results = use_repository(call, create_repository(repository / "own"), head)
    assert "First" in own_results
    leaks = {}
    for name in REDIRECTIONS:
        redirected = create_repository(repository / name)
        redirect(name, redirected, other_git, secrets[0], write)
        if CANARY in (results := use_repository(call, redirected, head)):
            leaks[name] = results
    assert leaks == {}


@pytest.mark.parametrize("name", REDIRECTED_REPOSITORIES)
def test_git_cant_be_started_with_a_repository_of_others(
    start: Start,
    call: Call,
    write: Write,
    repository: Path,
    other_repository: Path,
    secrets: list[Path],
    name: str,
) -> None:
    redirect(name, repository, other_repository / ".git", secrets[0], write)
    head = run_git("-C", str(other_repository), "rev-parse", "HEAD").strip()
    try:
        start("git", REPOSITORY=str(repository))
    except Problem:
        return  # refused at the start
    assert CANARY not in use_repository(call, repository, head)


def test_a_link_in_a_checkout_leads_nowhere(
    start: Start,
    call: Call,
    acme: Organization,
    workspace: Path,
    repository: Path,
    secrets: list[Path],
) -> None:
    """Git creates the link, and another preset gets it as its folder or file."""
    run_git("-C", str(repository), "switch", "--quiet", "--create", "linked")
    (repository / "link").symlink_to(secrets[0].parent)
    (repository / "data.db").symlink_to(secrets[0])
    run_git("-C", str(repository), "add", ".")
    identity = ("-c", "user.name=Ann", "-c", "user.email=ann@example.org")
    run_git("-C", str(repository), *identity, "commit", "--quiet", "--message", "Links")
    run_git("-C", str(repository), "switch", "--quiet", "-")
    assert not (repository / "link").exists()
    start("git", REPOSITORY=str(repository))
    where = {"repo_path": str(repository), "branch_name": "linked"}
    call("mcp_git_git_checkout", where)
    assert (repository / "link").is_symlink()
    for slug, values in (
        ("filesystem", {"FOLDER": str(repository / "link")}),
        ("sqlite", {"DATABASE": str(repository / "data.db")}),
        ("sqlite", {"DATABASE": str(repository / "link" / "x.db")}),
        ("memory", {"MEMORY_FILE": str(repository / "link" / "canary")}),
        ("kubernetes", {"KUBECONFIG": str(repository / "data.db")}),
        ("git", {"REPOSITORY": str(repository / "link")}),
    ):
        with pytest.raises(Problem) as caught:
            start(slug, **values)
        assert caught.value.code == "folder_not_allowed", slug
    start("filesystem", FOLDER=str(workspace))
    for path in (repository / "link" / "canary", repository / "data.db"):
        assert CANARY not in call("mcp_filesystem_read_text_file", {"path": str(path)}).text


def test_a_database_that_is_also_a_configuration_runs_nothing_outside(
    start: Start, call: Call, workspace: Path, repository: Path, secrets: list[Path]
) -> None:
    """sqlite writes files with text of the caller that git and kubernetes read."""
    program, output_file = write_collector(workspace, secrets)
    start("sqlite", DATABASE=str(workspace / "x.db"))
    call("mcp_sqlite_create_table", {"query": "CREATE TABLE t (text TEXT)"})
    config = f"\n[core]\nfsmonitor = {program}\n"
    call("mcp_sqlite_write_query", {"query": f"INSERT INTO t VALUES ('{config}')"})  # noqa: S608
    for target in (
        repository / ".git" / "config.worktree",
        repository / ".git" / "hooks" / "pre-commit",
        workspace / "kubeconfig",
        secrets[0].parent / "written",
        Path("/home/server/.gitconfig"),
        Path("/etc/gitconfig"),
    ):
        call("mcp_sqlite_write_query", {"query": f"VACUUM INTO '{target}'"})
        call("mcp_sqlite_write_query", {"query": f"ATTACH '{target}' AS x; CREATE TABLE x.t (a)"})
    assert not (secrets[0].parent / "written").exists()
    # Each server has a home of its own, so it doesn't read the other's `.gitconfig`.
    start("git", REPOSITORY=str(repository))
    assert call("mcp_git_git_status", {"repo_path": str(repository)}).outcome == "ok"
    with suppress(UpstreamError):  # it isn't a kubeconfig
        start("kubernetes", KUBECONFIG=str(workspace / "kubeconfig"))
        call("mcp_kubernetes_namespaces_list", {})
    assert CANARY not in (output_file.read_text() if output_file.exists() else "")


def test_a_kubeconfig_of_a_checkout_runs_its_program_in_the_sandbox(
    start: Start, call: Call, repository: Path, secrets: list[Path]
) -> None:
    """Git writes the file and the program, with its mode, and kubernetes runs it."""
    program, output_file = write_collector(repository, secrets)
    kubeconfig = repository / "kubeconfig"
    kubeconfig.write_text(KUBECONFIG.format(script=program))
    run_git("-C", str(repository), "switch", "--quiet", "--create", "cluster")
    run_git("-C", str(repository), "add", ".")
    identity = ("-c", "user.name=Ann", "-c", "user.email=ann@example.org")
    run_git("-C", str(repository), *identity, "commit", "--quiet", "--message", "Cluster")
    run_git("-C", str(repository), "switch", "--quiet", "-")
    start("git", REPOSITORY=str(repository))
    call("mcp_git_git_checkout", {"repo_path": str(repository), "branch_name": "cluster"})
    assert kubeconfig.exists()
    assert program.stat().st_mode & stat.S_IXUSR
    with suppress(UpstreamError):
        start("kubernetes", KUBECONFIG=str(kubeconfig))
        call("mcp_kubernetes_namespaces_list", {})
    text = output_file.read_text() if output_file.exists() else ""
    assert "ran" in text
    assert CANARY not in text


KUBERNETES_FILES = {
    "a token file": "  user: {{tokenFile: {secret}}}\n",
    "a client certificate": "  user: {{client-certificate: {secret}, client-key: {secret}}}\n",
    "an auth provider": (
        "  user: {{auth-provider: {{name: gcp, config: "
        "{{cmd-path: /bin/cat, cmd-args: {secret}}}}}}}\n"
    ),
}


@pytest.mark.parametrize("name", KUBERNETES_FILES)
def test_a_kubeconfig_cant_name_files_of_the_host(
    start: Start, call: Call, workspace: Path, secrets: list[Path], name: str
) -> None:
    head = KUBECONFIG.format(script="x").partition("  user:\n")[0]
    text = head + KUBERNETES_FILES[name].format(secret=secrets[0])
    (workspace / "kubeconfig").write_text(text)
    outputs = []
    try:
        start("kubernetes", KUBECONFIG=str(workspace / "kubeconfig"))
        outputs.append(call("mcp_kubernetes_namespaces_list", {}).text)
        outputs.append(call("mcp_kubernetes_configuration_view", {}).text)
    except UpstreamError as problem:  # it ends if a file doesn't exist
        outputs.append(str(problem))
    assert outputs
    assert CANARY not in "".join(outputs)


def test_a_memory_file_cant_be_a_program_of_another_server(
    start: Start, call: Call, workspace: Path, repository: Path, secrets: list[Path]
) -> None:
    program, output_file = write_collector(workspace, secrets)
    hook = repository / ".git" / "hooks" / "pre-commit"
    start("memory", MEMORY_FILE=str(hook))
    name = f"#!/bin/sh\n{program}\n"
    entity = {"name": name, "entityType": name, "observations": [name]}
    call("mcp_memory_create_entities", {"entities": [entity]})
    start("git", REPOSITORY=str(repository))
    call("mcp_git_git_commit", {"repo_path": str(repository), "message": "x"})
    assert json.loads(hook.read_text().splitlines()[0])["name"] == name
    assert not output_file.exists() or CANARY not in output_file.read_text()


def test_the_environment_of_a_server_has_no_secrets(
    start: Start, call: Call, secrets: list[Path]
) -> None:
    server = start("everything")
    tool = server.definitions.get(name__icontains="env").name
    text = call(f"mcp_everything_{tool.replace('-', '_')}", {}).text
    assert "HOME" in text
    for word in ("BONOBOT", "DATABASE_URL", "REDIS_URL", "SECRET", str(secrets[0].parent)):
        assert word not in text
