"""Removes secrets from whatever leaves the process: records, reports, MLflow, messages.

A variable's value is kept if its name is on the list of `harness.core.variables`, and withheld
otherwise. Free text, such as a log, is searched for the values that were withheld, for passwords in
URLs, and for tokens of well-known formats. It can't be searched for secrets that look like nothing
in particular and that this process does not know.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from urllib.parse import quote, quote_plus, unquote

from harness.core.variables import LIBRARY_VARIABLE, PUBLIC_VARIABLES

REDACTED = "[redacted]"
# Parts of names that speak of a secret. AUTHOR does not, and PWD by itself is the working folder.
SECRET_NAME = re.compile(
    r"TOKEN|SECRET|PASSW|PASSPHRASE|PASSCODE|CREDENTIAL|API_?KEY|ACCESS_?KEY|PRIVATE"
    r"|AUTH(?!OR(?:_|$))|COOKIE|SIGNATURE|WEBHOOK|CONNECTION_?STR|JWT|BEARER"
    r"|(?:^|_)(?:PASS|KEY|SIG|PAT|DSN|OTP|CREDS?)(?:_|$)|_PWD(?:_|$)",
    re.IGNORECASE,
)
SECRET_PARAMETERS = {"pwd", "odbc_connect"}  # of a URL's query, besides SECRET_NAME
SHORTEST_SECRET = 6  # characters; shorter values are too likely to occur in other text
SHORTEST_LINE = 16  # characters of a line that is searched for by itself, as of a private key
SHORTEST_TOKEN = 16  # characters of a user name in a URL that has no password
# Values that texts hold for reasons of their own: folders, numbers, versions and single words.
COMMON_VALUE = re.compile(r"/.*|[\d.,:x-]*|\d+(\.\d+)+[\w.+-]{0,20}|[A-Za-z]{0,15}", re.DOTALL)
# Everything between :// and the last @ of a host's part. A password may hold / and @ although it
# should not. The bounds keep the search linear in the length of the text.
URL_CREDENTIALS = re.compile(
    r"(?<=://)[^\s/@:\"'<>]{0,256}+(?::[^\s@\"'<>]{0,512}+)?@(?:[^\s/@:;,\"'<>]{0,256}@)*"
)
QUERY_PARAMETER = re.compile(r"(?P<name>[?&;][\w.%-]{1,64}=)(?P<value>[^&;\s\"'<>#]+)")
# As in an ODBC connection string. A value that begins with / is a folder.
PASSWORD_ASSIGNMENT = re.compile(
    r"(?P<name>\b(?:password|passwd|passphrase|pwd)=)(?P<value>[^\s\"'&,;/][^\s\"'&,;]*)",
    re.IGNORECASE,
)
# As a shell, Python and JSON write a variable. Names in capitals only: `tokens=128` is a measurement.
VARIABLE_ASSIGNMENT = re.compile(
    r"\b(?P<name>[A-Z][A-Z0-9_]{2,63})(?P<sign>=\\?[\"']?|\\?[\"']: ?\\?[\"'])"
    r"(?P<value>[^\s\"'\\&,;]+)"
)
HARMLESS_VALUE = re.compile(r"/.*|[\d.]+", re.DOTALL)  # a folder or a number
# Tokens that are recognized by their own form, as their issuers document it.
TOKEN_FORMATS = re.compile(
    r"\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*"  # JSON Web Token
    r"|\bgh[pousr]_\w{20,}|\bgithub_pat_\w{20,}"
    r"|\bglpat-[\w-]{16,}"
    r"|\bhf_[A-Za-z0-9]{20,}"
    r"|\bAKIA[0-9A-Z]{16}\b"
    r"|\bxox[abprs]-[\w-]{10,}"
    r"|(?<=Bearer )[\w.~+/=-]{8,}|(?<=Basic )[\w+/=-]{8,}"
)
# What each of these forms begins with.
TOKEN_MARKS = (
    "eyJ", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "glpat-", "hf_", "AKIA", "xox",
    "Bearer ", "Basic ",
)  # fmt: skip
NO_VARIABLES: Mapping[str, str] = MappingProxyType({})


def redact_variable(name: str, value: str) -> str:
    """Return the value of an environment variable as it may be recorded.

    Only the values of public variables are kept, and credentials are cut out of URLs in them.
    """
    if name not in PUBLIC_VARIABLES:
        return REDACTED
    return redact_text(value, ())


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
    # A cluster's name, for example, may be in a variable of its own and in one that nobody knows.
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
    """Return a text without any of `secrets`, passwords in URLs, and tokens of known formats."""
    for secret in secrets:
        text = text.replace(secret, REDACTED)
    # Looking for what a pattern needs is a hundred times as fast as the pattern, and logs are long.
    if "://" in text:
        text = URL_CREDENTIALS.sub(f"{REDACTED}@", text)
    if "=" in text:
        text = QUERY_PARAMETER.sub(_redact_parameter, text)
        text = PASSWORD_ASSIGNMENT.sub(rf"\g<name>{REDACTED}", text)
    text = VARIABLE_ASSIGNMENT.sub(_redact_assignment, text)
    if any(mark in text for mark in TOKEN_MARKS):
        text = TOKEN_FORMATS.sub(REDACTED, text)
    return text


def scrub(text: str) -> str:
    """Return a text without the secrets of this process's environment, and as `redact_text` does."""
    return redact_text(text, secret_values())


def _redact_parameter(match: re.Match[str]) -> str:
    """Return a parameter of a URL's query, without its value if its name speaks of a secret."""
    if _is_secret_parameter(match["name"]):
        return f"{match['name']}{REDACTED}"
    return match[0]


def _redact_assignment(match: re.Match[str]) -> str:
    """Return an assignment to a variable, without its value if the name speaks of a secret."""
    if not is_secret_name(match["name"]) or HARMLESS_VALUE.fullmatch(match["value"]):
        return match[0]
    return f"{match['name']}{match['sign']}{REDACTED}"


def _is_secret_parameter(name: str) -> bool:
    """Return whether a parameter, as in `?password=`, speaks of a secret."""
    bare = unquote(name[1:-1]).replace("-", "_")
    return bare.lower() in SECRET_PARAMETERS or SECRET_NAME.search(bare) is not None
