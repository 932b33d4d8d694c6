"""Count instructions with callgrind, independently of the load of the machine."""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.databases import ROOT, build_environment

_NAME = re.compile(r"^desc: Trigger: dump (.+)$", re.MULTILINE)
_TOTAL = re.compile(r"^(?:totals|summary): (\d+)", re.MULTILINE)


def count_instructions_on_sqlite(script: str, *, calls: int) -> dict[str, float]:
    """Run `script counting` under callgrind; return the instructions per call by dump."""
    with tempfile.TemporaryDirectory(prefix="bonobot-bench-") as folder:
        Path(folder).chmod(0o700)
        out = Path(folder) / "callgrind"
        process = subprocess.run(
            [
                *("valgrind", "--tool=callgrind", "--instr-atstart=no", "--quiet"),
                *(f"--callgrind-out-file={out}", sys.executable, script, "counting"),
            ],
            cwd=ROOT,
            env=build_environment(f"sqlite:///{folder}/bench.sqlite3", folder),
            capture_output=True,
            text=True,
            check=False,
        )
        if process.returncode:
            sys.exit(process.stderr)
        results: dict[str, float] = {}
        for dump in sorted(Path(folder).glob(f"{out.name}.*")):
            text = dump.read_text()
            if (name := _NAME.search(text)) and (total := _TOTAL.search(text)):
                results[name[1]] = int(total[1]) / calls
        return results
