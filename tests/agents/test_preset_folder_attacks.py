"""Pairs of shipped presets that share a folder: programs in it, and links that replace parts of it.

The fixtures and the real programs are those of `test_preset_attacks`.
"""

import shutil
import socket
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from django.conf import settings as django_settings

from agents.calls.pipeline import CallOutcome
from agents.models import Agent
from bonobot.core.problems import Problem
from bonobot.core.runtime import get_runtime
from mcp_servers.client.errors import UpstreamError
from mcp_servers.client.pool import get_connection_pool
from mcp_servers.models import Server
from tests.agents.test_preset_attacks import CANARY, KUBECONFIG, Start, secrets, start, workspace
from tests.agents.test_preset_pairs import create_repository, repository, run_git

__all__ = ["repository", "secrets", "start", "workspace"]

pytestmark = [
    pytest.mark.whole,
    pytest.mark.sandbox,
    pytest.mark.npm,
    pytest.mark.sdk1,
    pytest.mark.django_db(transaction=True),
]
Call = Callable[..., CallOutcome]

# What a program in a shared folder tries; `{secret}` is a file with the canary. The folder `host`
# holds a copy of `cat` with the set-user-ID bit that the host's administrator left there.
ATTEMPTS = {
    "a symbolic link": "ln -s {secret} link; cat link",
    "a hard link": "ln {secret} hard; cat hard",
    "the root of another process": "cat /proc/1/root{secret} /proc/self/root{secret}",
    "folders of other processes": "for one in /proc/[0-9]*; do cat $one/root{secret}; done",
    "memory and environment of other processes": "cat /proc/[0-9]*/environ; cat /proc/1/mem",
    "inherited files": "for one in /proc/self/fd/*; do timeout 1 cat $one </dev/null; done",
    "another mount": "unshare --user --map-root-user --mount mount --bind / host; cat {secret}",
    "namespaces of the host": "nsenter --target 1 --all cat {secret}",
    "a new root": "unshare --user --map-root-user chroot /proc/1/root cat {secret}",
    "an own set-user-ID file": "cp /bin/cat own; chmod 4755 own; ./own {secret} /etc/shadow",
    "a set-group-ID folder": "mkdir group; chmod 2777 group; cp /bin/cat group/x; group/x {secret}",
    "a set-user-ID file of the host": "{folder}/host/cat {secret} /etc/shadow",
    "a device": "mknod disk b 8 0; cat disk; mknod memory c 1 1; cat memory; cat /dev/mem",
    "folders above": "ls {folder}/../..; cat {folder}/../../canary {folder}/../../others/canary",
    "a handler of core dumps": "echo '|{folder}/x' >/proc/sys/kernel/core_pattern; kill -SEGV $$",
    "a release agent": "mkdir c; mount -t cgroup none c; echo {folder}/x >c/release_agent",
    "jobs of the host": "echo '* * * * * root id' >/etc/cron.d/canary; touch /var/spool/cron/x",
    "the loopback": "exec 3<>/dev/tcp/127.0.0.1/{port}; cat <&3",
    "sockets of the host": "find /run /var/run /tmp -type s; cat /run/docker.sock",
    "signals": "kill -KILL -1",
}


@pytest.fixture
def listener() -> Iterator[int]:
    """Listen on the loopback and return the port."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield int(server.getsockname()[1])


def write_program(folder: Path, command: str, output_file: Path) -> Path:
    """Write a program that runs a command in a folder and reports that it ran."""
    program = folder / "attempt.sh"
    program.write_text(
        f"#!/bin/bash\ncd {folder}\necho ran >{output_file}\n({command}) >>{output_file} 2>&1\n"
    )
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return program


def test_no_program_in_a_shared_folder_reaches_the_host(
    start: Start,
    call: Call,
    workspace: Path,
    repository: Path,
    secrets: list[Path],
    listener: int,
    helper: Agent,
) -> None:
    """One server writes the programs, and Git runs each in a repository of its own."""
    Agent.objects.filter(pk=helper.pk).update(calls_per_minute=1_000)
    start("filesystem", FOLDER=str(workspace))
    start("git", REPOSITORY=str(repository))
    ran, leaks = set[str](), dict[str, str]()
    for number, (name, command) in enumerate(ATTEMPTS.items()):
        folder = repository / str(number)
        own_repository = create_repository(folder / "repository")
        (folder / "host").mkdir()
        shutil.copy("/bin/cat", folder / "host" / "cat")
        (folder / "host" / "cat").chmod(0o4755)
        output_file = folder / "found"
        values = {"secret": secrets[0], "folder": folder, "port": listener}
        program = write_program(folder, command.format(**values), output_file)
        config = own_repository / ".git" / "config"
        text = f"{config.read_text()}[core]\nfsmonitor = {program}\n"
        call("mcp_filesystem_write_file", {"path": str(config), "content": text})
        with suppress(Problem):  # a server that was killed is started again
            call("mcp_git_git_status", {"repo_path": str(own_repository)})
        output = output_file.read_text(errors="replace") if output_file.exists() else ""
        if output.startswith("ran"):
            ran.add(name)
        is_root_entry = any(line.startswith("root:") for line in output.splitlines())
        if CANARY in output or "BONOBOT_" in output or is_root_entry:
            leaks[name] = output
    assert leaks == {}
    assert ran == {*ATTEMPTS}
    assert not Path("/etc/cron.d/canary").exists()
    assert not Path("/var/spool/cron/x").exists()


# Ways to set a bit, to create a file with one, and to copy one. Folders keep `0770`.
SET_ID_COMMANDS = (
    *("cp /bin/sh own1; chmod 4755 own1", "cp /bin/sh own2; chmod 2755 own2"),
    *(
        "cp host/cat own3; cp -p host/cat own4",
        "cat host/cat >own5; chmod --reference=host/cat own5",
    ),
    *("install -m 6755 /bin/sh own6", "tar cf x.tar host/cat; mkdir own7; tar xpf x.tar -C own7"),
    "python3 -c 'import os; os.open(\"own8\", os.O_CREAT | os.O_WRONLY, 0o4755)'",
    "python3 -c 'import os; os.mknod(\"own9\", 0o104755)'",
)


def test_no_program_of_a_sandbox_sets_a_set_user_id_bit(
    start: Start, call: Call, repository: Path
) -> None:
    """Such a file would have the owner of Bonobot's files."""
    data_folder = Path(django_settings.BONOBOT_VAR)
    (repository / "host").mkdir()
    shutil.copy("/bin/cat", repository / "host" / "cat")
    (repository / "host" / "cat").chmod(0o4755)
    commands = "; ".join(SET_ID_COMMANDS)
    program = write_program(repository, f"{commands}; chmod 755 own1", repository / "found")
    config = repository / ".git" / "config"
    config.write_text(f"{config.read_text()}[core]\nfsmonitor = {program}\n")
    start("git", REPOSITORY=str(repository))
    call("mcp_git_git_status", {"repo_path": str(repository)})
    assert (repository / "found").read_text().startswith("ran")
    assert (repository / "own1").stat().st_mode & stat.S_IXOTH
    own_files = [path for path in repository.rglob("own*") if path.is_file()]
    own_files += (repository / "own7").rglob("*")
    assert len(own_files) > 5
    set_bits = stat.S_ISUID | stat.S_ISGID
    assert [path for path in own_files if path.stat().st_mode & set_bits] == []
    assert stat.S_IMODE(data_folder.stat().st_mode) == 0o700


# A parameter of each preset, the folder or file below the repository that it gets, and calls that
# would read the canary if the link that replaces it led to the folder of the other organization.
REPLACED: dict[str, tuple[str, str, dict[str, Callable[[Path], dict[str, object]]]]] = {
    "filesystem": (
        "FOLDER",
        "part",
        {
            "read_text_file": lambda path: {"path": str(path / "canary")},
            "list_directory": lambda path: {"path": str(path)},
        },
    ),
    "git": ("REPOSITORY", "part", {"git_log": lambda path: {"repo_path": str(path)}}),
    "sqlite": (
        "DATABASE",
        "part/canary",
        {"read_query": lambda path: {"query": "SELECT * FROM sqlite_master"}},
    ),
    "memory": ("MEMORY_FILE", "part/canary", {"read_graph": lambda path: {}}),
    "kubernetes": ("KUBECONFIG", "part/canary", {"configuration_view": lambda path: {}}),
}


@pytest.mark.parametrize("slug", REPLACED)
def test_a_link_that_replaces_a_folder_after_the_server_was_added_leads_nowhere(
    start: Start, call: Call, repository: Path, secrets: list[Path], slug: str
) -> None:
    parameter, path, calls = REPLACED[slug]
    part, target = repository / "part", secrets[1].parent
    part.mkdir()
    if slug == "kubernetes":
        (part / "canary").write_text(KUBECONFIG.format(script="x"))
    if slug == "git":
        create_repository(part)
    server = start(slug, **{parameter: str(repository / path)})
    replace_by_link(repository, part, target)
    outputs = []
    for _ in range(2):  # in the running server, and after its next start
        for tool, build_arguments in calls.items():
            try:
                outputs.append(call(f"mcp_{slug}_{tool}", build_arguments(repository / path)).text)
            except (Problem, UpstreamError) as problem:
                outputs.append(str(problem))
        get_runtime().call(get_connection_pool().forget_server, server.pk)
    assert CANARY not in "".join(outputs)
    assert not has_new_files(target)
    assert Server.objects.filter(pk=server.pk).exists()


def replace_by_link(repository: Path, part: Path, target: Path) -> None:
    """Replace a folder by a link, as a checkout does."""
    shutil.rmtree(part)
    part.symlink_to(target)
    run_git("-C", str(repository), "add", "part")


def has_new_files(target: Path) -> bool:
    return [file.name for file in target.iterdir()] != ["canary"]
