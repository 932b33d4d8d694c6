"""Secrets out of texts; secret names; known secrets.

Three nets, the strongest first: exact known secrets in the forms in which they travel (as they
are, base64, URL-encoded, JSON-escaped), keys whose name says that they hold a secret, and texts
that look like the credentials of well-known services. Mask before cutting a text: half a secret is
not recognized.

Sealed values report themselves when they are opened or written, so a new token is masked from its
first use on. What an organization's secrets are masked with never knows those of another one: else
a guess could be tried out by looking at what comes out masked.
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
MIN_SECRET = 4  # shorter ones would blot out ordinary text
FRESH = 32
LONG = 256
REMEMBERED = 512
REMEMBERED_LENGTHS = range(8, 16_385)

# What the credential formats of well-known services look like from their first characters.
_CREDENTIAL = re2.compile(
    "|".join(
        (
            r"\bbn[bocr]_[0-9a-f]{12}_[A-Za-z0-9_-]{20,}",  # our own tokens, and those of grants
            r"\bsk-[A-Za-z0-9_-]{16,}",  # OpenAI, Anthropic and those who copy them
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
            r"\bgAAAAA[A-Za-z0-9_=-]{40,}",  # Fernet, our own sealed text
            r"\beyJ[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*",  # JWT
            r"(?s)-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\z)",
        )
    )
)
# Here the first group says what it is and stays, the rest is the secret.
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

# Whatever either of them would find, in one look.
_SUSPECT = re2.compile(f"(?:{_CREDENTIAL.pattern})|(?:{_LABELLED.pattern})")

_SCHEME = re.compile(r"(?:bearer|basic|digest)\s", re.IGNORECASE)
_PROSE = re.compile(r"[A-Z]?[a-z]+[.,;:!?]*")

_ROOMY = re2.Options()
_ROOMY.max_mem = 64 << 20  # bytes; the default holds a few dozen secrets


@dataclass(frozen=True, slots=True)
class SearchableText:
    """All that a JSON value says, to be searched at once; `named`: some key names a secret."""

    raw: bytes
    named: bool


def build_searchable_text(value: Any) -> SearchableText | None:
    """Return what a JSON value says; None for one that must be walked through in any case."""
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
        # Between two of them stands what is part of no secret's beginning or end.
        return SearchableText("\n".join(texts).encode(), named)
    except UnicodeEncodeError:
        return None


class Masker:
    """Masks with a fixed set of known secrets; keep one where the same set is used often."""

    def __init__(self, secrets: Iterable[str] = (), *, more: "Masker | None" = None) -> None:
        """Know these secrets, and those that the masker `more` knows."""
        forms = {
            form
            for secret in secrets
            if len(secret) >= MIN_SECRET
            for form in _build_encoded_forms(secret)
        }
        # The longest first, so that a secret that contains another one goes as a whole. The very
        # long ones (keys, documents) are few and would make the pattern huge.
        ordered = sorted(forms, key=len, reverse=True)
        self._long = [form for form in ordered if len(form) > LONG]
        short = [re2.escape(form) for form in ordered if len(form) <= LONG]
        self._known = re2.compile("|".join(short), _ROOMY) if short else None
        self._more = more

    def text(self, text: str) -> str:
        """Return the text with everything secret replaced."""
        text = self._without_known(_make_searchable(text))
        # To search is many times cheaper than to replace, and most texts hold nothing.
        if _CREDENTIAL.search(text):
            text = str(_CREDENTIAL.sub(MASK, text))
        if _LABELLED.search(text):
            text = str(_LABELLED.sub(_keep_label, text))
        return text

    def exact(self, value: Any, *, depth: int = 0) -> Any:
        """Return a JSON value with the known secrets replaced and nothing else.

        For what others go on working with, where a text that only looks like a secret must stay.
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
        """Tell whether `exact` might change what was said with these words."""
        if self._known is not None and self._known.search(words.raw):
            return True
        if any(form.encode() in words.raw for form in self._long):
            return True
        return self._more is not None and self._more.finds_known(words)

    def finds(self, words: SearchableText) -> bool:
        """Tell whether `value` might change what was said with these words."""
        found = words.named or _SUSPECT.search(words.raw) is not None
        return found or self.finds_known(words)

    def _without_known(self, text: str) -> str:
        for form in self._long:
            text = text.replace(form, MASK)
        if self._known is not None and self._known.search(text):
            text = self._known.sub(MASK, text)
        return self._more._without_known(text) if self._more else text

    def value(self, value: Any, *, depth: int = 0) -> Any:
        """Return a deep copy of a JSON value with everything secret replaced."""
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
        # What is there or not, and yes or no, may be seen: `{"configured": true}`.
        if is_secret_name(key) and not isinstance(value, bool) and value not in (None, "", {}, []):
            return MASK
        return self.value(value, depth=depth)


class SecretMemory:
    """Secrets that are masked wherever they come up, the latest `most` of them.

    Compiling the pattern of hundreds takes a good part of a second, so new ones are searched for
    beside it until there are enough of them.
    """

    def __init__(self, most: int = REMEMBERED) -> None:
        self._lock = threading.Lock()
        self._most = most
        self._known: dict[str, None] = {}  # the order is that of their last use
        self._fresh: dict[str, None] = {}
        self._settled = Masker()
        self._masker: Masker | None = self._settled

    def add(self, secret: str) -> None:
        """Know this secret from now on."""
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
        """Return a masker that knows them."""
        if (masker := self._masker) is not None:
            return masker
        with self._lock:
            if len(self._fresh) > FRESH:
                self._settled, self._fresh = Masker(self._known), {}
            self._masker = Masker(self._fresh, more=self._settled)
            return self._masker


_PATTERNS = Masker()
_PLAIN_WORDS = re.compile(r"[a-z]+(?:[ ./_-][a-z]+)*|[0-9]+")
# A path, or an address that says no more than where something is.
_PLACE = re.compile(r"(?:~|\.{1,2})?/[^+=?\s]*|[a-z]+://[a-z0-9.-]+(?::[0-9]+)?(?:/[a-z._-]*)*")
_memory = SecretMemory()


def mask(value: Any, *, secrets: Iterable[str] = ()) -> Any:
    """Return a deep copy of a JSON value with known, named and recognizable secrets masked."""
    return _build_masker(secrets).value(value)


def mask_text(text: str, secrets: Iterable[str] = ()) -> str:
    """Return a text with known and recognizable secrets masked."""
    return _build_masker(secrets).text(text)


def register_secret(secret: str) -> None:
    """Mask this secret in the logs of this process from now on (the latest 512 are known)."""
    if _PLAIN_WORDS.fullmatch(secret) or len(secret) not in REMEMBERED_LENGTHS:
        return  # sealed, but nothing that a reader of logs could not guess: `production`, `5432`
    _memory.add(secret)


def is_ordinary_value(value: str) -> bool:
    """Tell whether a sealed value is none that anybody must not see: words, a number, a place.

    Masked wherever it comes up, `production` or `/srv/data` would make results useless.
    """
    return bool(_PLAIN_WORDS.fullmatch(value) or _PLACE.fullmatch(value))


def get_process_masker() -> Masker:
    """Return a masker that knows the secrets opened in this process."""
    return _memory.masker()


def _build_masker(secrets: Iterable[str]) -> Masker:
    known = tuple(secrets)
    return Masker(known) if known else _PATTERNS


def _is_list(value: Any) -> bool:
    return isinstance(value, list | tuple)


def _make_searchable(text: str) -> str:
    # Lone surrogates can't be searched for, nor stored.
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode("utf-8")


def _build_encoded_forms(secret: str) -> set[str]:
    secret = _make_searchable(secret)
    plain = secret.encode("utf-8")
    forms = {secret, quote(plain, safe=""), quote(plain), quote_plus(plain)}
    forms |= {json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1]}
    # In base64 three characters stand for four, so what is before a secret shifts its letters:
    # take for each of the three shifts the part that depends on the secret alone.
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
    """When an organization's sealed rows were read, at which generation, and what was there."""

    generation: int
    at: float
    marks: frozenset[str]


class OrganizationSecrets(SecretMemory):
    """An organization's secrets; forgotten together with the reading that they came from."""

    reading: SecretsReading | None = None


_CREDENTIALS = re.compile(r"[A-Za-z]+ +(\S+)")  # of an `Authorization` header
_lock = threading.Lock()
_memories: OrderedDict[str, OrganizationSecrets] = OrderedDict()


def get_organization_secrets(organization: str) -> OrganizationSecrets:
    """Return what is known of an organization's secrets, empty at first."""
    with _lock:
        memory = _memories.get(organization)
        if memory is None:
            memory = _memories[organization] = OrganizationSecrets(MOST)
            if len(_memories) > ORGANIZATIONS:
                _memories.popitem(last=False)
        _memories.move_to_end(organization)
        return memory


def learn(organization: str, secret: str) -> None:
    """Mask this secret in what is stored and shown of the organization from now on."""
    parts = {secret}
    if scheme := _CREDENTIALS.fullmatch(secret):
        parts.add(scheme[1])
    for part in parts:
        if len(part) in LENGTHS and not is_ordinary_value(part):
            get_organization_secrets(organization).add(part)
