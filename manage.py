#!/usr/bin/env python
"""Run Bonobot's commands from a checkout; installed, the same is called `bonobot`."""

from bonobot.__main__ import main

if __name__ == "__main__":
    main()
