"""What tests leave running in this process: tasks of the runtime, and the ledger's writer.

Both belong to the process, not to a test: a heartbeat, a stream to a server or an entry that waits
to be written would go on during the tests of later modules, which may use no database.
"""

from bonobot.core import runtime
from bonobot.ledger.writer import writer_thread

# Canceled tasks end at once, child processes of servers within their grace period.
CLOSE_TIMEOUT_S = 5.0


def stop_background_work() -> bool:
    """Cancel the runtime's tasks, write what the ledger's queue has, and stop both.

    Returns whether the process had a runtime. The next use starts another.
    """
    had_runtime = runtime.find_runtime() is not None
    runtime.close_runtime(CLOSE_TIMEOUT_S)
    writer_thread.close_writer()
    return had_runtime
