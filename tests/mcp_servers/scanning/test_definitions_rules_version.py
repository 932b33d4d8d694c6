"""Rules that find otherwise have another version: else nothing would be read again."""

import hashlib
from pathlib import Path

from mcp_servers import scanning
from mcp_servers.scanning.definitions import RULES_VERSION

# What definitions are read with. Changed it? Raise `RULES`, then put the new digest here.
FILES = (
    "attack_resemblance.py classifier.py concepts.py concepts.toml definition_text.py "
    "definitions.py definitions.weights deobfuscation.py english.toml findings.py "
    "hidden_characters.py letters.toml letters_only.py prompt_injection.py signals.py "
    "vocabulary.txt word_segmentation.py words.toml"
)
KNOWN = {5: "8ae199fc1aa7696f"}


def test_a_change_of_the_rules_requires_a_new_version() -> None:
    folder = Path(scanning.__file__).parent
    whole = hashlib.sha256()
    for name in FILES.split():
        whole.update((folder / name).read_bytes())
    assert whole.hexdigest()[:16] == KNOWN[RULES_VERSION]
