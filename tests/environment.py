"""The environment of a test run, set before Django reads its settings.

Loaded by `-p tests.environment`: pytest-django imports the settings before any conftest. A run
never reads the developer's `BONOBOT_*` variables and never touches their `var/`; `DATABASE_URL`
and `REDIS_URL` choose what the run is about, so they stay.

Each process of a parallel run (`pytest -n 3`) loads this again: it has a folder, with that a
filesystem broker, and a prefix in Redis for itself. `RUN_FOLDER` is the folder of the process that
was started first, which the others inherit: what is prepared once for all of them is there.
"""

import atexit
import gc
import os
import shutil
import signal
import tempfile
from pathlib import Path

VAR = Path(tempfile.mkdtemp(prefix="bonobot-test-"))
RUN_FOLDER = Path(os.environ.setdefault("TEST_RUN_FOLDER", str(VAR)))


def isolate() -> None:
    """Forget the developer's settings and give the run a folder of its own."""
    for name in [name for name in os.environ if name.startswith("BONOBOT_")]:
        del os.environ[name]
    os.environ["BONOBOT_VAR"] = str(VAR)
    os.environ["BONOBOT_REDIS_PREFIX"] = f"bonobot-{os.environ.get('PYTEST_XDIST_WORKER', 'test')}"
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "bonobot.settings")
    os.environ["BONOBOT_OAUTH"] = "on"  # its tables are there, and its addresses are looked at
    # The programs of most tests lie in this checkout, which no sandbox shows.
    os.environ["BONOBOT_STDIO_SANDBOX"] = "none"
    owner = os.getpid()

    def forget() -> None:
        if os.getpid() == owner:  # a forked child must not take the folder away
            shutil.rmtree(VAR, ignore_errors=True)

    atexit.register(forget)


isolate()
# A shell that starts a run beside itself has it ignore Ctrl-C, which some tests press.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# Imports and collection leave hundreds of thousands of objects that live as long as the run. They
# aren't looked through for cycles, and new ones less often than usual.
gc.disable()


def pytest_collection_finish() -> None:
    """Exclude all objects that exist by now from garbage collection, and begin it."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
    gc.enable()
