"""Bytecode of the test files: written once, by all cores, before a run needs it.

Each process of a run collects all files. In a new checkout each of them would rewrite the asserts
of every file itself, which takes as long as all else of the collection. The same is done with the
table of characters from which Hypothesis draws text.
"""

import os
import sys
import warnings
from multiprocessing import get_context
from pathlib import Path

import pytest
from _pytest.assertion.rewrite import (
    PYC_TAIL,
    _read_pyc,
    _rewrite_test,
    _write_pyc,
    assertstate_key,
    get_cache_dir,
)
from hypothesis.errors import HypothesisSideeffectWarning
from hypothesis.internal.charmap import intervals_from_codec

FOLDER = Path(__file__).parent
MANY = 50  # fewer take less time than to start processes for them


def pytest_configure(config: pytest.Config) -> None:
    """Write what is missing, in the process that distributes the tests."""
    distributes = not hasattr(config, "workerinput") and config.getoption("numprocesses", None)
    if not distributes or sys.dont_write_bytecode or config.getoption("assertmode") != "rewrite":
        return
    stale = [file for file in FOLDER.rglob("test_*.py") if _read_pyc(file, _find_pyc(file)) is None]
    if len(stale) < MANY:
        return
    context = get_context("fork")  # it inherits the configuration, which can't be pickled
    processes = [
        context.Process(target=_write_bytecode, args=(stale[part :: os.cpu_count()], config))
        for part in range(os.cpu_count() or 1)
    ]
    processes.append(context.Process(target=_write_characters))
    for process in processes:
        process.start()
    for process in processes:
        process.join()


def _write_characters() -> None:
    with warnings.catch_warnings():
        # Hypothesis warns that this is slow while plugins are set up, which is why it is done here.
        warnings.simplefilter("ignore", HypothesisSideeffectWarning)
        intervals_from_codec("utf-8")


def _find_pyc(file: Path) -> Path:
    """Return where pytest keeps the bytecode of a file."""
    return get_cache_dir(file) / (file.stem + PYC_TAIL)


def _write_bytecode(files: list[Path], config: pytest.Config) -> None:
    """Rewrite and compile files as pytest does; a file with an error is left to pytest."""
    for file in files:
        pyc = _find_pyc(file)
        pyc.parent.mkdir(exist_ok=True)
        try:
            digest, code = _rewrite_test(file, config)
        except SyntaxError:
            continue
        _write_pyc(config.stash[assertstate_key], code, digest, pyc)
