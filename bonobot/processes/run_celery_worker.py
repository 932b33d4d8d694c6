"""Celery's command line for a worker, which starts without garbage collections.

Loading the modules of a worker would otherwise trigger some, which take a quarter of its start. The
worker turns them on when it is ready.
"""

import gc

if __name__ == "__main__":
    gc.disable()
    from celery.__main__ import main

    main()
