"""Celery's command line for a worker, which starts without garbage collections.

Loading the modules of a worker would otherwise trigger some, which take a quarter of its start. The
worker turns them on when it is ready.
"""

import gc
import warnings

from bonobot.processes.memory_arenas import limit_memory_arenas

# Celery warns in seven lines at every start; `bonobot check --deploy` reports it in one.
ROOT_WARNING = "You're running the worker with superuser privileges"

if __name__ == "__main__":
    gc.disable()
    limit_memory_arenas()
    warnings.filterwarnings("ignore", ROOT_WARNING)
    from celery.__main__ import main

    main()
