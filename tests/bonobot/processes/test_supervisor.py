import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from bonobot.processes.process_status import ProcessStatus
from bonobot.processes.supervisor import (
    ProcessSpec,
    ProcessSupervisor,
    RestartPolicy,
    build_python_command,
    format_exit_status,
    format_process_names,
)
from tests.processes import ROOT, start_process
from tests.wait import eventually

STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True);"
FOREVER = "import threading; threading.Event().wait()"


def program(name: str, code: str, *, grace_s: float = 10.0) -> ProcessSpec:
    return ProcessSpec(name, (sys.executable, "-u", "-c", code), grace_s)


def build_supervisor(
    lines: list[str], *programs: ProcessSpec, use_color: bool = False
) -> ProcessSupervisor:
    return ProcessSupervisor(
        programs, environment=dict(os.environ), write_line=lines.append, use_color=use_color
    )


def check_after_output(
    running: ProcessSupervisor, condition: Callable[[], object]
) -> Callable[[], object]:
    def check() -> object:
        running.copy_output(0.05)
        return condition()

    return check


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return b") Z " not in Path(f"/proc/{pid}/stat").read_bytes()


def test_lines_are_complete_and_prefixed_with_their_process() -> None:
    lines: list[str] = []
    halves = "import sys; sys.stdout.write('one'); sys.stdout.flush(); " + FOREVER
    other = "print('two'); print('three'); " + FOREVER
    with build_supervisor(lines, program("web", halves), program("worker", other)) as running:
        eventually(check_after_output(running, lambda: "worker │ three" in lines))
        assert "worker │ two" in lines
        assert not [line for line in lines if "one" in line]
    assert "web    │ one" in lines, "what was written last is shown at the end"


def test_bytes_that_arent_text_dont_stop_the_logs() -> None:
    lines: list[str] = []
    code = "import os; os.write(1, b'\\xff\\xfe!\\n'); " + FOREVER
    with build_supervisor(lines, program("web", code)) as running:
        eventually(check_after_output(running, lambda: "web │ ��!" in lines))


def test_an_endless_line_is_truncated() -> None:
    lines: list[str] = []
    code = "import sys; sys.stdout.write('x' * 200_000 + '\\n'); " + FOREVER
    with build_supervisor(lines, program("web", code)) as running:
        eventually(
            check_after_output(running, lambda: sum(line.count("x") for line in lines) == 200_000)
        )
    assert len(lines) == 4


def test_prefixes_are_colored_on_a_terminal() -> None:
    lines: list[str] = []
    with build_supervisor(
        lines, program("web", "print('hi'); " + FOREVER), use_color=True
    ) as running:
        eventually(check_after_output(running, lambda: "\x1b[36mweb │\x1b[0m hi" in lines))


def test_a_process_that_ends_is_described_and_its_last_output_is_shown() -> None:
    lines: list[str] = []
    programs = program("web", FOREVER), program("beat", "raise SystemExit('no schedule')")
    with build_supervisor(lines, *programs) as running:
        eventually(check_after_output(running, lambda: running.describe_ended_process("beat")))
        assert running.describe_ended_process("beat") == "`beat` ended (exit status 1)"
        assert running.describe_ended_process("web") == ""
    assert "beat │ no schedule" in lines


def check_after_restart(
    running: ProcessSupervisor, condition: Callable[[], object]
) -> Callable[[], object]:
    def check() -> object:
        running.restart_ended_processes()
        running.copy_output(0.01)
        return condition()

    return check


def test_a_killed_process_is_restarted_and_the_others_continue() -> None:
    lines: list[str] = []
    reports: list[list[ProcessStatus]] = []
    greeting = "import os; print('I am', os.getpid()); " + FOREVER
    programs = program("web", greeting), program("worker", greeting)
    supervisor = ProcessSupervisor(
        programs,
        environment=dict(os.environ),
        write_line=lines.append,
        restarts=RestartPolicy(first_delay_s=0.01),
        report=lambda statuses: reports.append(list(statuses)),
    )
    with supervisor as running:
        eventually(check_after_restart(running, lambda: len(lines) == 2))
        web, worker = (child.popen.pid for child in running._children)
        os.kill(worker, signal.SIGKILL)
        eventually(check_after_restart(running, lambda: len(lines) == 4))
        assert running._children[0].popen.pid == web
        pid = running._children[1].popen.pid
        assert f"worker │ I am {pid}" in lines
        assert pid != worker
        assert "bonobot │ `worker` ended (killed by SIGKILL). It is restarted now." in lines
    assert not is_alive(pid)
    assert [statuses[1].state for statuses in reports] == ["running", "restarting", "running"]
    assert reports[-1][1] == ProcessStatus("worker", "running", 1, "killed by SIGKILL")


def test_a_process_that_ends_too_often_isnt_restarted_and_is_reported() -> None:
    lines: list[str] = []
    reports: list[list[ProcessStatus]] = []
    supervisor = ProcessSupervisor(
        (program("web", FOREVER), program("beat", "raise SystemExit('no schedule')")),
        environment=dict(os.environ),
        write_line=lines.append,
        restarts=RestartPolicy(first_delay_s=0.01, max_restarts=2),
        report=lambda statuses: reports.append(list(statuses)),
    )
    with supervisor as running:
        eventually(check_after_restart(running, lambda: reports[-1][1].state == "stopped"))
        assert not running.has_given_up, "web still runs"
        assert running.describe_ended_process("web") == ""
        assert running.describe_ended_process("beat") == "`beat` ended (exit status 1)"
    assert sum(line.endswith("│ no schedule") for line in lines) == 3
    assert reports[-1][1] == ProcessStatus("beat", "stopped", 2, "exit status 1")
    [error] = [line for line in lines if "isn't started again" in line]
    assert "`beat` ended 3 times in a row (exit status 1)" in error


def test_the_delay_grows_with_each_end_up_to_a_limit() -> None:
    policy = RestartPolicy()
    assert [policy.compute_delay_s(ends) for ends in range(1, 8)] == [0, 1, 2, 4, 8, 16, 30]


def test_the_restart_delay_is_reset_after_a_long_run() -> None:
    lines: list[str] = []
    supervisor = ProcessSupervisor(
        (program("beat", "raise SystemExit(3)"),),
        environment=dict(os.environ),
        write_line=lines.append,
        restarts=RestartPolicy(first_delay_s=0.01, max_restarts=1, stable_s=0),
    )
    with supervisor as running:
        eventually(check_after_restart(running, lambda: running.statuses[0].restarts > 2))
    assert not [line for line in lines if "isn't started again" in line]


def test_processes_are_stopped_in_reverse_order(tmp_path: Path) -> None:
    order = tmp_path / "order"
    note = (
        "import signal, sys, threading\n"
        "def note(*_):\n"
        "    open({path!r}, 'a').write({name!r})\n"
        "    sys.exit()\n"
        "signal.signal(signal.SIGTERM, note)\n"
        "print('up')\n"
        "threading.Event().wait()\n"
    )
    lines: list[str] = []
    programs = [program(name, note.format(path=str(order), name=name)) for name in "abc"]
    with build_supervisor(lines, *programs) as running:
        eventually(check_after_output(running, lambda: len(lines) == 3))
    assert order.read_text(encoding="utf-8") == "cba"


def test_a_process_that_ignores_the_signal_is_killed_after_the_grace_period() -> None:
    lines: list[str] = []
    with build_supervisor(lines, program("web", STUBBORN + FOREVER, grace_s=0.2)) as running:
        eventually(check_after_output(running, lambda: "web │ up" in lines))
        pid = running._children[0].popen.pid
    assert not is_alive(pid)
    assert "bonobot │ web doesn't end: killing it" in lines


def test_a_second_ctrl_c_kills_the_processes() -> None:
    lines: list[str] = []
    with build_supervisor(lines, program("web", STUBBORN + FOREVER, grace_s=60)) as running:
        eventually(check_after_output(running, lambda: "web │ up" in lines))
        os.kill(os.getpid(), signal.SIGINT)
        assert running.stop_requested
        timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
    timer.join()
    assert "bonobot │ web doesn't end: killing it" in lines


def test_signal_handlers_are_restored() -> None:
    before = signal.getsignal(signal.SIGINT)
    with build_supervisor([], program("web", FOREVER)):
        assert signal.getsignal(signal.SIGINT) != before
    assert signal.getsignal(signal.SIGINT) == before


def test_leftovers_in_a_process_group_end_with_it() -> None:
    lines: list[str] = []
    code = (
        "import subprocess, sys\n"
        f"child = subprocess.Popen([sys.executable, '-c', {FOREVER!r}])\n"
        "print(child.pid)\n" + FOREVER
    )
    with build_supervisor(lines, program("web", code)) as running:
        eventually(check_after_output(running, lambda: lines))
    grandchild = int(lines[0].split()[-1])
    eventually(lambda: not is_alive(grandchild))


def test_a_closed_output_stops_all_processes() -> None:
    def raise_broken_pipe(text: str) -> None:
        raise BrokenPipeError

    programs = (program("web", "print('hi'); " + FOREVER),)
    with ProcessSupervisor(
        programs, environment=dict(os.environ), write_line=raise_broken_pipe
    ) as running:
        eventually(check_after_output(running, lambda: running.stop_requested))


def test_processes_die_when_the_supervisor_is_killed(tmp_path: Path) -> None:
    code = f"""
import os
from bonobot.processes.supervisor import ProcessSupervisor, ProcessSpec
import sys
program = ProcessSpec("web", (sys.executable, "-c", {(STUBBORN + FOREVER)!r}))
with ProcessSupervisor((program,), environment=dict(os.environ), write_line=print) as running:
    print("child", running._children[0].popen.pid, flush=True)
    while True:
        running.copy_output(1)
"""
    owner = start_process(
        "owner", (sys.executable, "-c", code), folder=tmp_path, env=dict(os.environ)
    )
    eventually(lambda: "child" in owner.log())
    child = int(owner.log().split()[1])
    assert is_alive(child)
    os.kill(owner.pid, signal.SIGKILL)
    owner.popen.wait(5)
    eventually(lambda: not is_alive(child))


def test_commands_run_with_the_same_interpreter() -> None:
    assert build_python_command("uvicorn", "x:y") == (sys.executable, "-m", "uvicorn", "x:y")
    assert (ROOT / "pyproject.toml").is_file()


def test_an_exit_is_described_in_words() -> None:
    assert format_exit_status(3) == "exit status 3"
    assert format_exit_status(-9) == "killed by SIGKILL"


def test_names_are_joined_with_commas_and_and() -> None:
    web, worker, beat = (program(name, "") for name in ("web", "worker", "beat"))
    assert format_process_names([web]) == "web"
    assert format_process_names([web, worker, beat]) == "web, worker and beat"
