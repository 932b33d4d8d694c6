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
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, quote_plus

import re2

from bonobot.core.text import masked_values
from bonobot.core.text.secret_names import is_secret_name

MASK = masked_values.MASK
MAX_DEPTH = 64
MIN_SECRET = 4  # shorter ones would mask ordinary text
FRESH = 32
LONG = 256
REMEMBERED = 512
REMEMBERED_LENGTHS = range(8, 16_385)

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
_LABELLED = re2.compile(
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
_SUSPECT = re2.compile(f"(?:{_CREDENTIAL.pattern})|(?:{_LABELLED.pattern})")

_SCHEME = re.compile(r"(?:bearer|basic|digest)\s", re.IGNORECASE)
_PROSE = re.compile(r"[A-Z]?[a-z]+[.,;:!?]*")

_ROOMY = re2.Options()
_ROOMY.max_mem = 64 << 20  # bytes; the default holds a few dozen secrets


@dataclass(frozen=True, slots=True)
class SearchableText:
    """All texts of a JSON value, and whether one of its keys has a secret name."""

    raw: bytes
    named: bool


def build_searchable_text(value: Any) -> SearchableText | None:
    """Return the texts of a JSON value; None if it has to be traversed in any case."""
    texts: list[str] = []
    level, depth, named = [value], 0, False
    while level:
        inner: list[Any] = []
        for item in level:
            if isinstance(item, str):
                texts.append(item)
            elif isinstance(item, dict):
                if not all(isinstance(key, str) for key in item):
                    return None
                named = named or any(map(is_secret_name, item))
                texts += item
                inner += item.values()
            elif isinstance(item, list):
                inner += item
            elif not (item is None or isinstance(item, int | float)):
                return None
        level, depth = inner, depth + 1
        if depth >= MAX_DEPTH:
            return None
    try:
        # No secret begins or ends with the separator.
        return SearchableText("\n".join(texts).encode(), named)
    except UnicodeEncodeError:
        return None


class Masker:
    """Masks with a fixed set of known secrets; reuse it for the same set."""

    def __init__(self, secrets: Iterable[str] = (), *, more: "Masker | None" = None) -> None:
        """Mask these secrets and those of the masker `base`."""
        forms = {
            form
            for secret in secrets
            if len(secret) >= MIN_SECRET
            for form in _build_encoded_forms(secret)
        }
        # Longest first, so that a secret that contains another one is masked as a whole. Very long
        # ones (keys, documents) are few and would make the pattern huge.
        ordered = sorted(forms, key=len, reverse=True)
        self._long = [form for form in ordered if len(form) > LONG]
        short = [re2.escape(form) for form in ordered if len(form) <= LONG]
        self._known = re2.compile("|".join(short), _ROOMY) if short else None
        self._more = more

    def text(self, text: str) -> str:
        """Return the text with all secrets masked."""
        text = self._without_known(_make_searchable(text))
        # Searching is much cheaper than replacing, and most texts have no secrets.
        if _CREDENTIAL.search(text):
            text = str(_CREDENTIAL.sub(MASK, text))
        if _LABELLED.search(text):
            text = str(_LABELLED.sub(_keep_label, text))
        return text

    def exact(self, value: Any, *, depth: int = 0) -> Any:
        """Return a JSON value with only the known secrets masked.

        For values that are processed further, where text that only looks like a secret must stay.
        """
        if isinstance(value, str):
            return self._without_known(_make_searchable(value))
        if depth >= MAX_DEPTH:
            return masked_values.TOO_DEEP if isinstance(value, dict | list) else value
        if isinstance(value, dict):
            return {
                self.exact(key): self.exact(item, depth=depth + 1) for key, item in value.items()
            }
        return [self.exact(item, depth=depth + 1) for item in value] if _is_list(value) else value

    def finds_known(self, words: SearchableText) -> bool:
        """Return whether `mask_known` may change the value of these texts."""
        if self._known is not None and self._known.search(words.raw):
            return True
        if any(form.encode() in words.raw for form in self._long):
            return True
        return self._more is not None and self._more.finds_known(words)

    def finds(self, words: SearchableText) -> bool:
        """Return whether `mask_value` may change the value of these texts."""
        found = words.named or _SUSPECT.search(words.raw) is not None
        return found or self.finds_known(words)

    def _without_known(self, text: str) -> str:
        for form in self._long:
            text = text.replace(form, MASK)
        if self._known is not None and self._known.search(text):
            text = self._known.sub(MASK, text)
        return self._more._without_known(text) if self._more else text

    def value(self, value: Any, *, depth: int = 0) -> Any:
        """Return a deep copy of a JSON value with all secrets masked."""
        if value is None or isinstance(value, bool | int | float):
            return value
        if depth >= MAX_DEPTH:
            return masked_values.TOO_DEEP
        if isinstance(value, dict):
            return {
                self.text(str(key)): self._member(str(key), item, depth + 1)
                for key, item in value.items()
            }
        if isinstance(value, list | tuple):
            return [self.value(item, depth=depth + 1) for item in value]
        return self.text(str(value))

    def _member(self, key: str, value: Any, depth: int) -> Any:
        # Booleans and empty values aren't secrets: `{"token": true}`.
        if is_secret_name(key) and not isinstance(value, bool) and value not in (None, "", {}, []):
            return MASK
        return self.value(value, depth=depth)


class SecretMemory:
    """The latest `max_secrets` secrets to mask.

    Compiling a pattern of hundreds of secrets is slow, so new ones are kept in a second pattern
    until there are enough of them.
    """

    def __init__(self, most: int = REMEMBERED) -> None:
        self._lock = threading.Lock()
        self._most = most
        self._known: dict[str, None] = {}  # ordered by last use
        self._fresh: dict[str, None] = {}
        self._settled = Masker()
        self._masker: Masker | None = self._settled

    def add(self, secret: str) -> None:
        """Add a secret."""
        with self._lock:
            if secret in self._known:
                del self._known[secret]
            else:
                self._fresh[secret] = None
                self._masker = None
            self._known[secret] = None
            if len(self._known) > self._most:
                forgotten = next(iter(self._known))
                del self._known[forgotten]
                self._fresh.pop(forgotten, None)

    def masker(self) -> Masker:
        """Return a masker of the secrets."""
        if (masker := self._masker) is not None:
            return masker
        with self._lock:
            if len(self._fresh) > FRESH:
                self._settled, self._fresh = Masker(self._known), {}
            self._masker = Masker(self._fresh, more=self._settled)
            return self._masker


_PATTERNS = Masker()
_PLAIN_WORDS = re.compile(r"[a-z]+(?:[ ./_-][a-z]+)*|[0-9]+")
# A path, or a URL without credentials and parameters.
_PLACE = re.compile(r"(?:~|\.{1,2})?/[^+=?\s]*|[a-z]+://[a-z0-9.-]+(?::[0-9]+)?(?:/[a-z._-]*)*")
_memory = SecretMemory()


def mask(value: Any, *, secrets: Iterable[str] = ()) -> Any:
    """Return a deep copy of a JSON value with all secrets masked, including `secrets`."""
    return _build_masker(secrets).value(value)


def mask_text(text: str, secrets: Iterable[str] = ()) -> str:
    """Return a text with all secrets masked, including `secrets`."""
    return _build_masker(secrets).text(text)


def register_secret(secret: str) -> None:
    """Mask this secret in the logs of this process; the latest 512 are kept."""
    if _PLAIN_WORDS.fullmatch(secret) or len(secret) not in REMEMBERED_LENGTHS:
        return  # encrypted, but an ordinary value such as `production` or `5432`
    _memory.add(secret)


def is_ordinary_value(value: str) -> bool:
    """Return whether an encrypted value is ordinary text: words, a number, a path or a URL.

    Masking `production` or `/srv/data` everywhere would make results useless.
    """
    return bool(_PLAIN_WORDS.fullmatch(value) or _PLACE.fullmatch(value))


def get_process_masker() -> Masker:
    """Return a masker of the secrets decrypted in this process."""
    return _memory.masker()


def _build_masker(secrets: Iterable[str]) -> Masker:
    known = tuple(secrets)
    return Masker(known) if known else _PATTERNS


def _is_list(value: Any) -> bool:
    return isinstance(value, list | tuple)


def _make_searchable(text: str) -> str:
    # Lone surrogates can be neither searched for nor stored.
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode("utf-8")


def _build_encoded_forms(secret: str) -> set[str]:
    secret = _make_searchable(secret)
    plain = secret.encode("utf-8")
    forms = {secret, quote(plain, safe=""), quote(plain), quote_plus(plain)}
    forms |= {json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1]}
    # Base64 encodes three bytes as four characters, so the preceding bytes shift the encoding:
    # for each of the three shifts take the part that depends on the secret only.
    for shift in range(3):
        before, after = (shift * 8 + 5) // 6, (len(plain) + shift) * 8 // 6
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            inner = encode(bytes(shift) + plain).decode("ascii")[before:after]
            if len(inner) >= MIN_SECRET:
                forms.add(inner)
    return forms


def _keep_label(match: Any) -> str:
    label = next(group for group in match.groups() if group is not None)
    rest = match.group()[len(label) :]
    if _SCHEME.match(label) and _PROSE.fullmatch(rest):
        return str(match.group())  # "bearer authentication"
    return f"{label}{MASK}{'@' if rest.endswith('@') else ''}"


MOST = 4096  # secrets of one organization, the latest
ORGANIZATIONS = 256
LENGTHS = range(6, 16_385)


@dataclass(frozen=True, slots=True)
class SecretsReading:
    """When an organization's encrypted values were read, at which generation, and their marks."""

    generation: int
    at: float
    marks: frozenset[str]


class OrganizationSecrets(SecretMemory):
    """An organization's secrets, evicted together with the reading they came from."""

    reading: SecretsReading | None = None


_CREDENTIALS = re.compile(r"[A-Za-z]+ +(\S+)")  # of an `Authorization` header
_lock = threading.Lock()
_memories: OrderedDict[str, OrganizationSecrets] = OrderedDict()


def get_organization_secrets(organization: str) -> OrganizationSecrets:
    """Return the memory of an organization's secrets; create it if needed."""
    with _lock:
        memory = _memories.get(organization)
        if memory is None:
            memory = _memories[organization] = OrganizationSecrets(MOST)
            if len(_memories) > ORGANIZATIONS:
                _memories.popitem(last=False)
        _memories.move_to_end(organization)
        return memory


def learn(organization: str, secret: str) -> None:
    """Mask this secret in stored and shown data of the organization."""
    parts = {secret}
    if scheme := _CREDENTIALS.fullmatch(secret):
        parts.add(scheme[1])
    for part in parts:
        if len(part) in LENGTHS and not is_ordinary_value(part):
            get_organization_secrets(organization).add(part)
