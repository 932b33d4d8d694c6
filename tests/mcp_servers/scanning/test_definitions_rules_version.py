"""Rules that find otherwise have another version: else nothing would be read again."""

import hashlib
from pathlib import Path

from mcp_servers import scanning
from mcp_servers.scanning.definitions import RULES

# What definitions are read with. Changed it? Raise `RULES`, then put the new digest here.
FILES = (
    "characters.py classifier.py definitions.py definitions.weights english.toml folding.py "
    "instructions.py layers.py letters.py letters.toml parameters.py patterns.py prose.py "
    "resemblance.py scripts.py segments.py signals.py vocabulary.txt words.py words.toml"
)
KNOWN = {4: "23edbe4a134f6cb8"}


def test_a_change_of_the_rules_raises_their_version() -> None:
    folder = Path(scanning.__file__).parent
    whole = hashlib.sha256()
    for name in FILES.split():
        whole.update((folder / name).read_bytes())
    assert whole.hexdigest()[:16] == KNOWN[RULES]
