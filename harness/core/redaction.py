"""Removes secrets from whatever leaves the process: records, reports, MLflow, messages.

A variable's value is kept if its name is on the list of `harness.core.variables`, and withheld
otherwise. Free text, such as a log, is searched for the values that were withheld, for private keys,
for passwords in URLs, for values that are assigned to a name such as `password`, and for tokens of
well-known formats, most of which detect-secrets knows. It can't be searched for secrets that look
like nothing in particular, have no such name, and that this process does not know: digests look the
same as many of them.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache, lru_cache
from importlib import import_module
from types import MappingProxyType
from urllib.parse import quote, quote_plus, unquote

from harness.core.variables import LIBRARY_VARIABLE, PUBLIC_VARIABLES

REDACTED = "[redacted]"
# Parts of names that speak of a secret. AUTHOR does not, and PWD alone is the working folder.
SECRET_NAME = re.compile(
    r"TOKEN|SECRET|PASSW|PASSPHRASE|PASSCODE|CREDENTIAL|API_?KEY|ACCESS_?KEY|PRIVATE"
    r"|AUTH(?!OR(?:_|$))|COOKIE|SIGNATURE|WEBHOOK|CONNECTION_?STR|JWT|BEARER"
    r"|(?:^|_)(?:PASS|KEY|SIG|PAT|DSN|OTP|CREDS?)(?:_|$)|_PWD(?:_|$)",
    re.IGNORECASE,
)
SECRET_PARAMETERS = {"pwd", "odbc_connect"}  # of a URL's query, besides SECRET_NAME
SHORTEST_SECRET = 6  # characters; shorter values are too likely to occur in other text
SHORTEST_LINE = 16  # characters of a line that is searched for alone, as of a private key
SHORTEST_TOKEN = 16  # characters of a user name in a URL that has no password
# Values that texts hold for reasons of their own: folders, numbers, versions and single words.
COMMON_VALUE = re.compile(r"/.*|[\d.,:x-]*|\d+(\.\d+)+[\w.+-]{0,20}|[A-Za-z]{0,15}", re.DOTALL)
# Everything between :// and the last @ of a host's part. A password may hold / and @ although it
# should not. The bounds keep the search linear in the length of the text.
URL_CREDENTIALS = re.compile(
    r"(?<=://)[^\s/@:\"'<>]{0,256}+(?::[^\s@\"'<>]{0,512}+)?@(?:[^\s/@:;,\"'<>]{0,256}@)*"
)
QUERY_PARAMETER = re.compile(r"(?P<name>[?&;][\w.%-]{1,64}=)(?P<value>[^&;\s\"'<>#]+)")
# A name and what assigns to it in a shell, Python, JSON, YAML, HTTP headers and connection strings,
# or the space after an option of a command. Also where the text itself is in JSON, CSV or HTML.
ASSIGNMENT = re.compile(
    r"(?<!\w)(?:(?<=\\)[nrt])?(?P<option>(?<=--))?(?P<name>[A-Za-z_][\w.-]{1,127}+)"
    r"(?P<sign>(?:\\{0,7}[\"'\]]|&quot;|&#34;|&#39;){0,2}[ \t]{0,8}"
    r"(?::[ \t]?[A-Za-z][\w.\[\] |]{0,40}=(?=[ \t]?[\"'])|:=|=>|[:=]{1,2})[ \t]{0,8}"
    r"|(?(option)[ ]|(?!)))"
)
QUOTED_VALUE = re.compile(
    r"[@bfrBFR]{0,2}(?P<end>\"\"\"|\'\'\'|\"\"(?=\w)|\\{0,7}[\"\'`]|&quot;|&#34;|&#39;)"
    r"(?P<value>(?:(?!(?P=end))(?:\\.|[^\\\n])){0,1024})"
)
PLAIN_VALUE = re.compile(r"(?:[^\s\"'`<>&,;\\]|\\(?![nrt\"'])){0,1024}(?<![)\]}])")
REST_OF_LINE = re.compile(r"(?:[^\n\r\"'`<>&,;\\]|\\(?![nrt\"'])){0,1024}(?<![)\]}\s])")
# What every name of a secret has a part of: most lines have none.
SECRET_NAME_PARTS = (
    "pass", "pwd", "secret", "token", "key", "auth", "cred", "private", "cookie", "sig", "webhook",
    "connection", "jwt", "bearer", "pat", "dsn", "otp", "contrase",
)  # fmt: skip
# Names of which every value is a secret, whatever their case.
STRONG_NAME = re.compile(
    r"PASSW|PASSPHRASE|PASSCODE|SECRET|CONTRASEÑA|CONTRASENA|CONNECTION_?STR|(?:^|_)PWD(?:_|$)"
    r"|(?:API|AUTH|ACCESS|ACCOUNT|SERVICE|CLIENT|PRIVATE|PRIV|SIGNING|ENCRYPTION|DB|DATABASE|SSH)_?KEY"
    r"|(?:DB|DATABASE|KEY)_?PASS",
    re.IGNORECASE,
)
# Names of what is known about a secret.
PROPERTY_NAME = re.compile(r"_(?:NAME|IDS?|ID_\d|FILE|PATH|VERSION|TYPE|SIZE|TTL)$", re.IGNORECASE)
# Names that are ordinary words of machine learning too. `tokens` are counted.
TOKEN_NAME = re.compile(
    r"TOKEN(?!S|IZ|_?TYPE)|AUTH(?!OR(?!I[SZ]))|BEARER|CREDENTIAL|COOKIE|JWT|WEBHOOK", re.IGNORECASE
)
TOKEN_VALUE = re.compile(r"(?=.*[A-Za-z])(?=.*\d)[\w.~+/=:-]{6,}")
# A folder or file, a number with its unit, a placeholder, or what was withheld before.
HARMLESS_VALUE = re.compile(
    r"~?\.{0,2}/.*|[-+]?[\d.,_]+(?:e[-+]?\d+)?\w{0,3}[:.]?|\[redacted.*|\*+|\.+"
    r"|<[^<>]*>|[%$]?[({].*|\$\w+|(?:none|null|true|false)",
    re.DOTALL | re.IGNORECASE,
)
# What stands after a name in source code: a type, a call, or another variable of such a name.
CODE = re.compile(
    r"(?:str|bytes|int|bool|float|Any|object|None|Optional|Union|SecretStr|SecretBytes)\b.*"
    r"|(?:self|cls|args|cfg|config|env|os|options|settings)\..*|[A-Za-z_][\w.]*[(\[].*"
    r"|(?:[\w.]*[_.])?(?:password|passwd|pwd|passphrase|secret|token|key|value)s?",
    re.IGNORECASE,
)
# Tokens that are recognized by their own form, as their issuers document it. Each begins with fixed
# letters, which makes looking for it cheap. What is `kept` stays in the text.
TOKEN_FORMATS = (
    re.compile(r"eyJ[\w-]{8,4096}\.[\w-]{8,4096}\.[\w-]*"),  # JSON Web Token
    re.compile(r"gh[pousr]_\w{20,}"),
    re.compile(r"github_pat_\w{20,}"),
    re.compile(r"glpat-[\w-]{16,}"),
    re.compile(r"hf_[A-Za-z0-9]{20,}"),
    re.compile(r"AKIA[0-9A-Z]{16}"),
    re.compile(r"xox[abprs]-[\w-]{10,}"),
    re.compile(r"sk-(?=[\w-]{0,64}\d)[\w-]{16,}"),  # OpenAI, Anthropic and others
    re.compile(r"(?P<kept>Bearer )[\w.~+/=-]{8,}"),
    re.compile(r"(?P<kept>Basic )(?![A-Za-z]?[a-z]+\b)[\w+/=-]{8,}"),  # no word
)
# Up to its end, or as many lines as are left of one that was cut off. Lines may be those of a
# difference, or in one string with \n between them.
PRIVATE_KEY = re.compile(
    r"-----BEGIN (?P<kind>[A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?)-----"
    r"(?:(?:[^-]|-(?!----)){0,32768}+-----END (?P=kind)-----"
    r"|(?:(?:\\[nr]|[\s+\"',])+[A-Za-z0-9+/=]{16,})+)"
)
# Detectors of detect-secrets for the forms of issuers' tokens. Its others are left out: they look for
# names, as ASSIGNMENT does, for addresses or for words that look random, as digests do, or take a
# time that is quadratic in the length of a line.
DETECTORS = {
    "aws": "AWSKeyDetector",
    "azure_storage_key": "AzureStorageKeyDetector",
    "discord": "DiscordBotTokenDetector",
    "github_token": "GitHubTokenDetector",
    "gitlab_token": "GitLabTokenDetector",
    "mailchimp": "MailchimpDetector",
    "pypi_token": "PypiTokenDetector",
    "sendgrid": "SendGridDetector",
    "slack": "SlackDetector",
    "square_oauth": "SquareOAuthDetector",
    "stripe": "StripeDetector",
    "telegram_token": "TelegramBotTokenDetector",
    "twilio": "TwilioKeyDetector",
}
WORD = re.compile(r"[\w-]")
ESCAPES = ("\\n", "\\r", "\\t")  # in front of a word in JSON
LONG_WORD = re.compile(r"[\w-]{20}")  # a part of every token that these find
NO_VARIABLES: Mapping[str, str] = MappingProxyType({})


def redact_variable(name: str, value: str) -> str:
    """Return the value of an environment variable as it may be recorded.

    Only the values of public variables are kept, and credentials are cut out of URLs in them.
    """
    if name not in PUBLIC_VARIABLES:
        return REDACTED
    return _redact_known_forms(value)


def is_secret_name(name: str) -> bool:
    """Return whether the name of a variable speaks of a secret."""
    return name not in PUBLIC_VARIABLES and SECRET_NAME.search(name) is not None


def secret_values(
    environment: Mapping[str, str] | None = None,
    profile_environment: Mapping[str, str] = NO_VARIABLES,
) -> list[str]:
    """Return the texts to remove from whatever may repeat this process's environment.

    They are the values of variables whose names speak of a secret, those of a library's variables
    that are not public, and the passwords of URLs in any variable; each also as Python, JSON and
    URLs spell it, and the longest first, so that none leaves a remainder of another. Short values are
    left out: removing every `1` would leave nothing readable.

    `environment` is this process's own by default. `profile_environment` are variables that a
    cluster profile adds, of which every value that is not public counts, whatever its name.
    """
    variables = os.environ if environment is None else environment
    secrets: list[str] = []
    for name, value in variables.items():
        secrets += _secrets_in(name, value, is_withheld=LIBRARY_VARIABLE.match(name) is not None)
    for name, value in profile_environment.items():
        secrets += _secrets_in(name, value, is_withheld=True)
    # A cluster's name, for example, may be in a public variable and in one that nobody knows.
    public = {value for name, value in variables.items() if name in PUBLIC_VARIABLES}
    spellings: set[str] = set()
    for secret in secrets:
        if len(secret.strip()) >= SHORTEST_SECRET and secret not in public:
            spellings.update(_spellings(secret))
    return sorted(spellings, key=lambda spelling: (-len(spelling), spelling))


def _spellings(secret: str) -> Iterator[str]:
    """Yield a secret as it is, as Python and JSON write it in quotes, and as URLs spell it."""
    yield secret
    yield repr(secret)[1:-1]
    for ensure_ascii in (True, False):
        yield json.dumps(secret, ensure_ascii=ensure_ascii)[1:-1]
    for safe in ("", "/"):
        yield quote(secret, safe=safe)
        yield quote_plus(secret, safe=safe)


def _secrets_in(name: str, value: str, *, is_withheld: bool) -> Iterator[str]:
    """Yield the secrets in one variable, of any length.

    `is_withheld` says that a record has the variable without its value, unless that is public.
    """
    yield from url_secrets(value)
    if name in PUBLIC_VARIABLES:
        return
    if SECRET_NAME.search(name):
        yield value
        for line in value.splitlines():
            if len(line) >= SHORTEST_LINE:
                yield line
    elif is_withheld and not COMMON_VALUE.fullmatch(value):
        yield value


def url_secrets(text: str) -> Iterator[str]:
    """Yield the passwords, or else the user names, in front of the hosts of URLs.

    A user name without a password is a token. What is quoted for the URL comes in both spellings.
    """
    for match in URL_CREDENTIALS.finditer(text):
        user, _, password = match[0].removesuffix("@").partition(":")
        if password or len(user) >= SHORTEST_TOKEN:
            yield password or user
            yield unquote(password or user)
    for match in QUERY_PARAMETER.finditer(text):
        if _is_secret_parameter(match["name"]):
            yield match["value"]
            yield unquote(match["value"])


def redact_text(text: str, secrets: Iterable[str]) -> str:
    """Return a text without `secrets`, and without what looks like a secret.

    That is a private key, the credentials of a URL, what is assigned to a name such as `password`,
    and tokens of well-known formats.
    """
    for secret in secrets:
        text = text.replace(secret, REDACTED)
    text = _redact_known_forms(text)
    if LONG_WORD.search(text):  # else detect-secrets need not be loaded, which takes 0.25 s
        for pattern in _issued_token_formats():
            text = pattern.sub(_redact_token, text)
    return text


def _redact_known_forms(text: str) -> str:
    """Return a text without what this module itself takes for a secret."""
    # Looking for what a pattern needs is a hundred times as fast as the pattern, and logs are long.
    if "PRIVATE KEY" in text:
        text = PRIVATE_KEY.sub(REDACTED, text)
    if "://" in text:
        text = URL_CREDENTIALS.sub(f"{REDACTED}@", text)
    if "=" in text:
        text = QUERY_PARAMETER.sub(_redact_parameter, text)
    text = "".join(_redact_assignments(line) for line in text.splitlines(keepends=True))
    for pattern in TOKEN_FORMATS:
        text = pattern.sub(_redact_token, text)
    return text


@cache
def _issued_token_formats() -> tuple[re.Pattern[str], ...]:
    """Return the patterns of detect-secrets, none where it is not installed.

    A rank may run on a machine without it. The launcher cleans again what ranks leave.
    """
    patterns: list[re.Pattern[str]] = []
    for module, name in DETECTORS.items():
        try:
            detector = getattr(import_module(f"detect_secrets.plugins.{module}"), name)
        except (ImportError, OSError, MemoryError):  # a rank may have run out of files or memory
            return ()
        patterns += detector.denylist
    return tuple(patterns)


def _redact_token(match: re.Match[str]) -> str:
    """Return what replaces a token; inside of a longer word, such as a digest, it is none."""
    start, end = match.span()
    before = match.string[max(0, start - 2) : start]
    if WORD.match(match.string, end) or (WORD.match(before[-1:]) and before not in ESCAPES):
        return match[0]
    return match.groupdict().get("kept", "") + REDACTED


def scrub(text: str) -> str:
    """Return a text without the secrets of this process's environment, and as `redact_text` does."""
    return redact_text(text, secret_values())


def _redact_parameter(match: re.Match[str]) -> str:
    """Return a parameter of a URL's query, without its value if its name speaks of a secret."""
    if _is_secret_parameter(match["name"]):
        return f"{match['name']}{REDACTED}"
    return match[0]


def _redact_assignments(line: str) -> str:
    """Return a line without the values that are assigned to names of secrets."""
    folded = line.casefold()
    if not any(part in folded for part in SECRET_NAME_PARTS):
        return line
    pieces = []
    end = 0
    for match in ASSIGNMENT.finditer(line):
        if match.start() < end or not _may_be_secret(match["name"]):
            continue
        span = _secret_span(match)
        if span is not None:
            pieces += [line[end : span[0]], REDACTED]
            end = span[1]
    return "".join([*pieces, line[end:]])


@lru_cache(maxsize=4096)
def _may_be_secret(name: str) -> bool:
    """Return whether a name may be that of a secret, depending on the value."""
    return bool(SECRET_NAME.search(name.replace("-", "_")) or STRONG_NAME.search(name))


def _secret_span(match: re.Match[str]) -> tuple[int, int] | None:
    """Return where in a line the secret is that is assigned to a name, None if it is none."""
    quoted = QUOTED_VALUE.match(match.string, match.end())
    if quoted:
        value, span = quoted["value"], quoted.span("value")
    else:
        form = REST_OF_LINE if match["sign"].endswith(": ") else PLAIN_VALUE
        plain = form.match(match.string, match.end())
        if plain is None or CODE.fullmatch(plain[0]) or plain[0] == match["name"]:
            return None
        value, span = plain[0], plain.span()
    if not value or HARMLESS_VALUE.fullmatch(value):
        return None
    return span if _is_of_secret(match["name"], match["sign"], value) else None


def _is_of_secret(name: str, sign: str, value: str) -> bool:
    """Return whether a name to which a value is assigned is that of a secret."""
    name = name.rpartition(".")[2].replace("-", "_")
    # As a shell or JSON writes a variable: then the names that a record withholds count.
    is_variable = name.isupper() and (sign == "=" or sign[0] in "\"'\\&")
    if is_variable and is_secret_name(name):
        return True
    if PROPERTY_NAME.search(name):
        return False
    is_token = TOKEN_NAME.search(name) and TOKEN_VALUE.fullmatch(value)
    return bool(is_token or STRONG_NAME.search(name))


def _is_secret_parameter(name: str) -> bool:
    """Return whether a parameter, as in `?password=`, speaks of a secret."""
    bare = unquote(name[1:-1]).replace("-", "_")
    return bare.lower() in SECRET_PARAMETERS or SECRET_NAME.search(bare) is not None
