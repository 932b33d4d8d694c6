"""Mask secrets in texts and JSON values.

Three checks, the strongest first: known secrets in their usual encodings (plain, base64,
URL-encoded, JSON-escaped), values of keys with secret names, and texts that look like credentials
of well-known services. Mask before truncating a text: a partial secret isn't recognized.

Encrypted values are registered when they are decrypted or written, so a new token is masked from
its first use. The masker of an organization never includes secrets of another one: otherwise
guesses could be verified by what gets masked.
"""

import base64
import json
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, quote_plus

import re2

from bonobot.core.records import record
from bonobot.core.text import masked_values
from bonobot.core.text.secret_names import MAX_CACHED_LENGTH, is_secret_name, is_short_secret_name

MASK = masked_values.MASK
MAX_DEPTH = 64
MIN_SECRET_LENGTH = 4  # shorter ones would mask ordinary text
MAX_NEW_SECRETS = 32
MAX_PATTERN_LENGTH = 256
MAX_PROCESS_SECRETS = 512
PROCESS_SECRET_LENGTHS = range(8, 16_385)

# Credential formats of well-known services.
_CREDENTIAL = re2.compile(
    "|".join(
        (
            r"\bbn[bocr]_[0-9a-f]{12}_[A-Za-z0-9_-]{20,}",  # our own tokens
            r"\bsk-[A-Za-z0-9_-]{16,}",  # OpenAI, Anthropic and compatible services
            r"\b[srp]k_(?:live|test)_[A-Za-z0-9]{16,}",  # Stripe
            r"\bwhsec_[A-Za-z0-9+/=]{16,}",  # webhook signatures
            r"\bgh[pousr]_[A-Za-z0-9]{20,}",  # GitHub
            r"\bgithub_pat_[A-Za-z0-9_]{20,}",
            r"\bgl(?:pat|dt|rt|ptt|soat)-[A-Za-z0-9_.-]{16,}",  # GitLab
            r"\bglsa_[A-Za-z0-9_]{20,}",  # Grafana
            r"\bx(?:ox[abeprs]|app)-[A-Za-z0-9-]{10,}",  # Slack
            r"\b(?:AKIA|ASIA|ABIA|ACCA)[0-9A-Z]{16}\b",  # AWS
            r"\bAIza[0-9A-Za-z_-]{30,}",  # Google
            r"\bya29\.[0-9A-Za-z_-]{20,}",
            r"\bGOCSPX-[0-9A-Za-z_-]{20,}",
            r"\bnpm_[A-Za-z0-9]{30,}",
            r"\bpypi-[A-Za-z0-9_-]{30,}",
            r"\bhf_[A-Za-z0-9]{20,}",  # Hugging Face
            r"\bSG\.[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{16,}",  # SendGrid
            r"\bshp(?:at|ca|pa|ss)_[A-Fa-f0-9]{20,}",  # Shopify
            r"\bdo[opr]_v1_[a-f0-9]{20,}",  # DigitalOcean
            r"\bdapi[a-f0-9]{32}",  # Databricks
            r"\bhv[sbr]\.[A-Za-z0-9_-]{20,}",  # Vault
            r"\blin_api_[A-Za-z0-9]{20,}",  # Linear
            r"\bntn_[A-Za-z0-9]{20,}",  # Notion
            r"\bfigd_[A-Za-z0-9_-]{20,}",  # Figma
            r"\bATATT3[A-Za-z0-9_=-]{20,}",  # Atlassian
            r"\bgAAAAA[A-Za-z0-9_=-]{40,}",  # Fernet, our own encrypted values
            r"\beyJ[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*",  # JWT
            r"(?s)-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\z)",
        )
    )
)
# The first group is the label, which stays; the rest is the secret.
_LABELED = re2.compile(
    "|".join(
        (
            r"(?i)(\b(?:bearer|basic|digest)\s+)[A-Za-z0-9._~+/=-]{8,}",
            r"(?i)(\b[a-z][a-z0-9+.-]*://[^\s/:@]*:)[^\s/@]+(?:@)",
            r"(?i)(\b(?:[a-z]+[_-])?(?:api[_-]?key|access[_-]?key|access[_-]?token|auth[_-]?token|"
            r"client[_-]?secret|password|passwd|pwd|secret|token|signature|sig)"
            r"[\"']?\s*[=:]\s*[\"']?)[^\s\"'&,;}]{3,}",
        )
    )
)

# Both patterns in one, for a single search.
_SUSPECT = re2.compile(f"(?:{_CREDENTIAL.pattern})|(?:{_LABELED.pattern})")

_SCHEME = re.compile(r"(?:bearer|basic|digest)\s", re.IGNORECASE)
_PROSE = re.compile(r"[A-Z]?[a-z]+[.,;:!?]*")

_LARGE_MEMORY = re2.Options()
_LARGE_MEMORY.max_mem = 64 << 20  # bytes; the default holds a few dozen secrets


# The types of the keys of a JSON object.
STR_ONLY = frozenset({str})
TEXTLESS_TYPES = frozenset({type(None), bool, int, float})
_PLAIN_WORDS = re.compile(r"[a-z]+(?:[ ./_-][a-z]+)*|[0-9]+")
# A path, or a URL without credentials and parameters.
_LOCATION = re.compile(r"(?:~|\.{1,2})?/[^+=?\s]*|[a-z]+://[a-z0-9.-]+(?::[0-9]+)?(?:/[a-z._-]*)*")
MAX_ORGANIZATION_SECRETS = 4096  # secrets of one organization, the latest
MAX_ORGANIZATIONS = 256
MAX_READING_AGE_S = 60.0
ORGANIZATION_SECRET_LENGTHS = range(6, 16_385)
_AUTHORIZATION_VALUE = re.compile(r"[A-Za-z]+ +(\S+)")  # of an `Authorization` header
_lock = threading.Lock()


@record()
class SearchableText:
    """All texts of a JSON value, also as UTF-8, and whether one of its keys has a secret name."""

    text: str
    raw: bytes
    has_secret_name: bool


def build_searchable_text(value: Any) -> SearchableText | None:
    """Return the texts of a JSON value; None if it has to be traversed in any case."""
    texts: list[str] = []
    names: list[str] = []
    level, depth = [value], 0
    while level:
        next_level: list[Any] = []
        for item in level:
            kind = type(item)
            if kind is str:
                texts.append(item)
            elif kind is dict:
                if not STR_ONLY.issuperset(map(type, item)):
                    return None
                names += item
                next_level += item.values()
            elif kind is list:
                next_level += item
            elif kind not in TEXTLESS_TYPES:
                return None
        level, depth = next_level, depth + 1
        if depth >= MAX_DEPTH:
            return None
    is_short = max(map(len, names), default=0) <= MAX_CACHED_LENGTH
    has_secret_name = any(map(is_short_secret_name if is_short else is_secret_name, names))
    try:
        # No secret begins or ends with the separator.
        text = "\n".join(names + texts)
        return SearchableText(text, text.encode(), has_secret_name)
    except UnicodeEncodeError:
        return None


class Masker:
    """Masks with a fixed set of known secrets; reuse it for the same set."""

    def __init__(self, secrets: Iterable[str] = (), *, base: "Masker | None" = None) -> None:
        """Mask these secrets and those of the masker `base`."""
        forms = {
            form
            for secret in secrets
            if len(secret) >= MIN_SECRET_LENGTH
            for form in _build_encoded_forms(secret)
        }
        # Longest first, so that a secret that contains another one is masked as a whole. Very long
        # ones (keys, documents) are few and would make the pattern huge.
        ordered_forms = sorted(forms, key=len, reverse=True)
        self._long_forms = [form for form in ordered_forms if len(form) > MAX_PATTERN_LENGTH]
        short_forms = [
            re2.escape(form) for form in ordered_forms if len(form) <= MAX_PATTERN_LENGTH
        ]
        self._known_pattern = (
            re2.compile("|".join(short_forms), _LARGE_MEMORY) if short_forms else None
        )
        self._base = base

    def mask_text(self, text: str) -> str:
        text = self._mask_known_text(_make_searchable(text))
        # Searching is much cheaper than replacing, and most texts have no secrets.
        if _CREDENTIAL.search(text):
            text = str(_CREDENTIAL.sub(MASK, text))
        if _LABELED.search(text):
            text = str(_LABELED.sub(_keep_label, text))
        return text

    def mask_known(self, value: Any, *, depth: int = 0) -> Any:
        """Return a JSON value with only the known secrets masked.

        For values that are processed further, where text that only looks like a secret must stay.
        """
        if isinstance(value, str):
            return self._mask_known_text(_make_searchable(value))
        if depth >= MAX_DEPTH:
            return masked_values.TOO_DEEP if isinstance(value, dict | list) else value
        if isinstance(value, dict):
            return {
                self.mask_known(key): self.mask_known(item, depth=depth + 1)
                for key, item in value.items()
            }
        return (
            [self.mask_known(item, depth=depth + 1) for item in value] if _is_list(value) else value
        )

    def may_mask_known(self, searchable_text: SearchableText) -> bool:
        """Return whether `mask_known` may change the value of these texts."""
        if self._known_pattern is not None and self._known_pattern.search(searchable_text.raw):
            return True
        for form in self._long_forms:
            if form.encode() in searchable_text.raw:
                return True
        return self._base is not None and self._base.may_mask_known(searchable_text)

    def may_mask(self, searchable_text: SearchableText) -> bool:
        """Return whether `mask_value` may change the value of these texts."""
        is_suspect = (
            searchable_text.has_secret_name or _SUSPECT.search(searchable_text.raw) is not None
        )
        return is_suspect or self.may_mask_known(searchable_text)

    def _mask_known_text(self, text: str) -> str:
        for form in self._long_forms:
            text = text.replace(form, MASK)
        if self._known_pattern is not None and self._known_pattern.search(text):
            text = self._known_pattern.sub(MASK, text)
        return self._base._mask_known_text(text) if self._base else text

    def mask_value(self, value: Any, *, depth: int = 0) -> Any:
        """Return a deep copy of a JSON value with all secrets masked."""
        if value is None or isinstance(value, bool | int | float):
            return value
        if depth >= MAX_DEPTH:
            return masked_values.TOO_DEEP
        if isinstance(value, dict):
            return {
                self.mask_text(str(key)): self._mask_field(str(key), item, depth + 1)
                for key, item in value.items()
            }
        if isinstance(value, list | tuple):
            return [self.mask_value(item, depth=depth + 1) for item in value]
        return self.mask_text(str(value))

    def _mask_field(self, key: str, value: Any, depth: int) -> Any:
        # Booleans and empty values aren't secrets: `{"token": true}`.
        if is_secret_name(key) and not isinstance(value, bool) and value not in (None, "", {}, []):
            return MASK
        return self.mask_value(value, depth=depth)


class SecretMemory:
    """The latest `max_secrets` secrets to mask.

    Compiling a pattern of hundreds of secrets is slow, so new ones are kept in a second pattern
    until there are enough of them.
    """

    def __init__(self, max_secrets: int = MAX_PROCESS_SECRETS) -> None:
        self._lock = threading.Lock()
        self._max_secrets = max_secrets
        self._secrets: dict[str, None] = {}  # ordered by last use
        self._new_secrets: dict[str, None] = {}
        self._base_masker = Masker()
        self._masker: Masker | None = self._base_masker

    def add(self, secret: str) -> None:
        with self._lock:
            if secret in self._secrets:
                del self._secrets[secret]
            else:
                self._new_secrets[secret] = None
                self._masker = None
            self._secrets[secret] = None
            if len(self._secrets) > self._max_secrets:
                oldest = next(iter(self._secrets))
                del self._secrets[oldest]
                self._new_secrets.pop(oldest, None)

    def get_masker(self) -> Masker:
        if (masker := self._masker) is not None:
            return masker
        with self._lock:
            if len(self._new_secrets) > MAX_NEW_SECRETS:
                self._base_masker, self._new_secrets = Masker(self._secrets), {}
            self._masker = Masker(self._new_secrets, base=self._base_masker)
            return self._masker


_PATTERN_MASKER = Masker()
_memory = SecretMemory()


def mask_value(value: Any, *, secrets: Iterable[str] = ()) -> Any:
    """Return a deep copy of a JSON value with all secrets masked, including `secrets`."""
    return _build_masker(secrets).mask_value(value)


def mask_text(text: str, secrets: Iterable[str] = ()) -> str:
    """Return a text with all secrets masked, including `secrets`."""
    return _build_masker(secrets).mask_text(text)


def register_secret(secret: str) -> None:
    """Mask this secret in the logs of this process; the latest 512 are kept."""
    if _PLAIN_WORDS.fullmatch(secret) or len(secret) not in PROCESS_SECRET_LENGTHS:
        return  # encrypted, but an ordinary value such as `production` or `5432`
    _memory.add(secret)


def is_ordinary_value(value: str) -> bool:
    """Return whether an encrypted value is ordinary text: words, a number, a path or a URL.

    Masking `production` or `/srv/data` everywhere would make results useless.
    """
    return bool(_PLAIN_WORDS.fullmatch(value) or _LOCATION.fullmatch(value))


def get_process_masker() -> Masker:
    """Return a masker of the secrets decrypted in this process."""
    return _memory.get_masker()


def _build_masker(secrets: Iterable[str]) -> Masker:
    known_secrets = tuple(secrets)
    return Masker(known_secrets) if known_secrets else _PATTERN_MASKER


def _is_list(value: Any) -> bool:
    return isinstance(value, list | tuple)


def _make_searchable(text: str) -> str:
    # Lone surrogates can be neither searched for nor stored.
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode("utf-8")


def _build_encoded_forms(secret: str) -> set[str]:
    secret = _make_searchable(secret)
    encoded = secret.encode("utf-8")
    forms = {secret, quote(encoded, safe=""), quote(encoded), quote_plus(encoded)}
    forms |= {json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1]}
    # Base64 encodes three bytes as four characters, so the preceding bytes shift the encoding:
    # for each of the three shifts take the part that depends on the secret only.
    for shift in range(3):
        start, end = (shift * 8 + 5) // 6, (len(encoded) + shift) * 8 // 6
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            stable_part = encode(bytes(shift) + encoded).decode("ascii")[start:end]
            if len(stable_part) >= MIN_SECRET_LENGTH:
                forms.add(stable_part)
    return forms


def _keep_label(match: Any) -> str:
    label = next(group for group in match.groups() if group is not None)
    secret = match.group()[len(label) :]
    if _SCHEME.match(label) and _PROSE.fullmatch(secret):
        return str(match.group())  # "bearer authentication"
    return f"{label}{MASK}{'@' if secret.endswith('@') else ''}"


@dataclass(frozen=True, slots=True)
class SecretsReading:
    """When an organization's encrypted values were read, at which generation, and their marks."""

    generation: int
    read_at: float
    marks: frozenset[str]


class OrganizationSecrets(SecretMemory):
    """An organization's secrets, evicted together with the reading they came from."""

    reading: SecretsReading | None = None

    def find_current_masker(self, generation: int) -> Masker | None:
        """Return the masker, or None if the organization's rows have to be read first."""
        reading = self.reading
        if reading is None or reading.generation < generation:
            return None
        is_recent = time.monotonic() - reading.read_at < MAX_READING_AGE_S
        return self.get_masker() if is_recent else None


_memories: OrderedDict[str, OrganizationSecrets] = OrderedDict()


def get_organization_secrets(organization: str) -> OrganizationSecrets:
    """Return the memory of an organization's secrets; create it if needed."""
    with _lock:
        memory = _memories.get(organization)
        if memory is None:
            memory = _memories[organization] = OrganizationSecrets(MAX_ORGANIZATION_SECRETS)
            if len(_memories) > MAX_ORGANIZATIONS:
                _memories.popitem(last=False)
        _memories.move_to_end(organization)
        return memory


def register_organization_secret(organization: str, secret: str) -> None:
    """Mask this secret in stored and shown data of the organization."""
    parts = {secret}
    if match := _AUTHORIZATION_VALUE.fullmatch(secret):
        parts.add(match[1])
    for part in parts:
        if len(part) in ORGANIZATION_SECRET_LENGTHS and not is_ordinary_value(part):
            get_organization_secrets(organization).add(part)
