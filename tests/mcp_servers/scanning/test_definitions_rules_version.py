"""Changed rules need a new version, so that definitions are scanned again."""

import hashlib
from pathlib import Path

from mcp_servers import scanning
from mcp_servers.scanning.definitions import RULES_VERSION

# The files of the rules. After a change, raise `RULES` and enter the new digest here.
FILES = (
    "classifier.py concept_stems.toml definition_text.py definitions.py definitions.weights "
    "deobfuscation.py english_signals.toml hidden_text.py lookalike_letters.toml "
    "parameter_names.py prompt_injection.py signals.py vocabulary.txt other_language_signals.toml"
)
KNOWN = {12: "caaa57b07ee8fb43"}


def test_a_change_of_the_rules_requires_a_new_version() -> None:
    folder = Path(scanning.__file__).parent
    digest = hashlib.sha256()
    for name in FILES.split():
        digest.update((folder / name).read_bytes())
    assert digest.hexdigest()[:16] == KNOWN[RULES_VERSION]
