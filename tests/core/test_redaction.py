"""What is withheld of variables, and what is cut out of texts."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from urllib.parse import quote, quote_plus

import pytest
from detect_secrets.plugins.keyword import KeywordDetector
from hypothesis import assume, given
from hypothesis import strategies as st

from harness.core.redaction import (
    REDACTED,
    _issued_token_formats,
    redact_text,
    redact_variable,
    secret_values,
)
from harness.core.variables import PUBLIC_VARIABLES
from tests.support.secrets import SECRET as HIDDEN
from tests.support.secrets import SECRET_TEXTS

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)  # no half surrogates
# How programs may print a secret.
SPELLINGS: list[Callable[[str], str]] = [
    lambda secret: secret,
    lambda secret: json.dumps(secret),
    lambda secret: json.dumps(secret, ensure_ascii=False),
    repr,
    quote,
    quote_plus,
    lambda secret: quote(secret, safe=""),
]
SECRET = 'k3ep/th1s "quiet"ü'  # spelled otherwise in JSON and in a URL


@pytest.mark.parametrize(
    "name",
    [
        "HARNESS_TOKEN", "MLFLOW_TRACKING_PASSWORD", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY",
        "SSH_PRIVATE_KEY", "HTTP_AUTHORIZATION", "torch_passwd", "HF_APIKEY", "SLURM_JWT", "DB_PASS",
        "DB_PWD", "GPG_PASSPHRASE", "SESSION_COOKIE", "URL_SIGNATURE", "SLACK_WEBHOOK", "SIGNING_KEY",
        "SENTRY_DSN", "GITHUB_PAT", "NCCL_WHATEVER", "SLURM_NEW_THING", "HARNESS_ANYTHING",
    ],
)  # fmt: skip
def test_values_that_are_not_public_are_withheld_and_scrubbed(name: str) -> None:
    assert redact_variable(name, SECRET) == REDACTED
    secrets = secret_values({name: SECRET})
    spellings = f"{SECRET} {json.dumps(SECRET)} {quote(SECRET, safe='')}"
    cleaned = redact_text(spellings, secrets)
    assert "th1s" not in cleaned


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PATH", "/usr/local/bin:/usr/bin"),
        ("PWD", "/home/me/training"),
        ("GIT_AUTHOR_NAME", "Jane Doe of the cluster team"),
        ("OMP_NUM_THREADS", "11223344"),
        ("TOKENIZERS_PARALLELISM", "false-as-ever"),
        ("PYTHON_VERSION", "3.11.9"),
        ("PYTORCH_BUILD_VERSION", "2.11.0a0+git32f93b1"),
        ("NCCL_SOMETHING", "enabled"),
        ("SLURM_SCRIPT_FOLDER", "/var/spool/slurm"),
        ("MY_TOKEN", "1"),
    ],
)
def test_common_texts_stay_readable(name: str, value: str) -> None:
    assert redact_text(f"see {value} there", secret_values({name: value})) == f"see {value} there"


def test_public_names_speak_of_no_secret() -> None:
    """The list is of settings; whoever adds a name that looks like a secret has to think again."""
    suspicious = {name for name in PUBLIC_VARIABLES if "KEY" in name or "TOKEN" in name}
    assert suspicious == {"TOKENIZERS_PARALLELISM", "NCCL_IB_PKEY"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("https://me:hunter2@host:5000/x", f"https://{REDACTED}@host:5000/x"),
        ("postgresql://me:hunter2@host/db", f"postgresql://{REDACTED}@host/db"),
        ("postgresql://u:pa/ss@host/db", f"postgresql://{REDACTED}@host/db"),
        ("postgresql://u:p@ss@host/db", f"postgresql://{REDACTED}@host/db"),
        ("https://t0ken@host", f"https://{REDACTED}@host"),
        ("a=http://u:p@one;b=http://u:p@two", f"a=http://{REDACTED}@one;b=http://{REDACTED}@two"),
        ("mssql://host/?odbc_connect=DRIVER%3Dx", f"mssql://host/?odbc_connect={REDACTED}"),
        ("https://h/x?a=1&password=hunter2&b=2", f"https://h/x?a=1&password={REDACTED}&b=2"),
        ("https://h/x?X-Amz-Signature=abc#y", f"https://h/x?X-Amz-Signature={REDACTED}#y"),
        ("DRIVER=x;UID=u;PWD=hunter2;", f"DRIVER=x;UID=u;PWD={REDACTED};"),
        ("Authorization: Bearer abcdefghij", f"Authorization: Bearer {REDACTED}"),
        ("from ghp_0123456789abcdefghijkl", f"from {REDACTED}"),
        ("https://host/x@y", "https://host/x@y"),
        ("git+https://host/repo@v1", "git+https://host/repo@v1"),
        ("PWD=/home/me", "PWD=/home/me"),
        ("export HF_TOKEN=abcdef", f"export HF_TOKEN={REDACTED}"),
        ("MY_SECRET='abcdef'", f"MY_SECRET='{REDACTED}'"),
        ('{"HF_TOKEN": "abcdef"}', f'{{"HF_TOKEN": "{REDACTED}"}}'),
        ("{'HF_TOKEN': 'abcdef', 'A': 'b'}", f"{{'HF_TOKEN': '{REDACTED}', 'A': 'b'}}"),
        ("tokens=128 MAX_TOKENS=4096", "tokens=128 MAX_TOKENS=4096"),
        ("SSH_AUTH_SOCK=/tmp/agent", "SSH_AUTH_SOCK=/tmp/agent"),
        ("me@host", "me@host"),
        ("https://host/x?page=2&sort=name", "https://host/x?page=2&sort=name"),
    ],
)
def test_credentials_are_cut_out_of_texts(text: str, expected: str) -> None:
    assert redact_text(text, ()) == expected


def test_password_of_a_url_is_cut_out_wherever_it_stands_by_itself() -> None:
    secrets = secret_values({"MLFLOW_TRACKING_URI": "postgresql://me:hun%2Fter2@host/db"})
    assert redact_text("no entry for hun/ter2 or hun%2Fter2", secrets) == (
        f"no entry for {REDACTED} or {REDACTED}"
    )


def test_lines_of_a_private_key_are_cut_out_one_by_one() -> None:
    key = "-----BEGIN KEY-----\nc2VjcmV0IGtleSBtYXRlcmlhbA==\n-----END KEY-----\n"
    cleaned = redact_text("line 2 is c2VjcmV0IGtleSBtYXRlcmlhbA==", secret_values({"SSH_KEY": key}))
    assert cleaned == f"line 2 is {REDACTED}"


def test_a_secret_within_another_leaves_no_remainder() -> None:
    secrets = secret_values({"A_TOKEN": "abcdef", "B_TOKEN": "abcdefghij"})
    assert redact_text("abcdefghij", secrets) == REDACTED


@given(TEXTS.filter(lambda text: len(text) >= 6), TEXTS, TEXTS, st.sampled_from(SPELLINGS))
def test_no_secret_survives_in_any_spelling(
    secret: str, before: str, after: str, spell: Callable[[str], str]
) -> None:
    assume(len(secret.strip()) >= 6)
    assume(secret not in REDACTED)
    assume(REDACTED not in secret)
    spelled = spell(secret)
    cleaned = redact_text(f"{before}{spelled}{after}", secret_values({"MY_TOKEN": secret}))
    assert spelled not in cleaned


@pytest.mark.parametrize("kind", SECRET_TEXTS)
def test_no_kind_of_secret_stays_in_a_text(kind: str) -> None:
    text = f"before\n{SECRET_TEXTS[kind]}\nafter\n"
    cleaned = redact_text(text, ())
    assert HIDDEN not in cleaned
    assert cleaned.startswith("before\n")
    assert cleaned.endswith("\nafter\n")
    assert redact_text(cleaned, ()) == cleaned


@pytest.mark.parametrize(
    "line",
    [line for text in SECRET_TEXTS.values() for line in text.splitlines()],
)
def test_what_the_keyword_detector_of_detect_secrets_finds_is_cut_out(line: str) -> None:
    for secret in KeywordDetector().analyze_string(line):
        assert secret not in redact_text(line, ())


@pytest.mark.parametrize(
    "text",
    [
        "sha256=9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
        "key: 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
        "12345678:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
        "commit 32f93b1a2b3c4d5e6f708192a3b4c5d6e7f80910",
        "cache_key=9f86d081884c7d659a2feaa0",
        "xxh3:1a2b3c4d5e6f7081 of 3fa21b2c9d-s0-r0",
        "password: str",
        "def connect(password: str | None = None) -> None:",
        "password = os.environ['DB_PASSWORD']",
        "password = getpass.getpass()",
        "connect(password=password, secret=args.secret)",
        "token_ids_0=token_ids_0",
        "pad_token='<pad>'",
        "tokenizer: bert-base-uncased1",
        "tokens_per_s: 1.234e+05",
        "train/token_accuracy=0.123",
        "password: ${DB_PASSWORD}",
        "the task-sk-classification-number-1 of a long name",
        "authors_2020: smith2019",
        "Basic implementation",
        "--set KEY=VALUE",
        "password_file: secrets.txt",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert redact_text(text, ()) == text


def test_tokens_of_issuers_are_those_of_detect_secrets() -> None:
    assert len(_issued_token_formats()) >= 13
    token = "sq0csp-" + "x7vH" * 10 + "x7v"  # of Square, which is on no list of ours
    assert redact_text(f"from {token} on", ()) == f"from {REDACTED} on"
    assert redact_text(f"from {token}x on", ()) == f"from {token}x on"  # of another length


def test_a_process_without_detect_secrets_cuts_out_the_rest() -> None:
    program = (
        "import sys; sys.modules['detect_secrets'] = None\n"
        "from harness.core.redaction import redact_text\n"
        "print(redact_text('password: hunter2, and a_word_of_more_than_20_letters', ()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"password: {REDACTED}, and a_word_of_more_than_20_letters\n"


def test_detect_secrets_is_loaded_only_for_texts_that_may_have_a_token() -> None:
    program = (
        "import sys\n"
        "from harness.core.redaction import redact_text, redact_variable\n"
        "redact_text('no such sweep: quickstrat', ())\n"
        "redact_variable('LD_LIBRARY_PATH', '/opt/a_word_of_more_than_20_letters')\n"
        "print('detect_secrets' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == "False\n"


def test_a_hostile_text_takes_linear_time() -> None:
    started = time.process_time()
    for text in (
        "://" * 15_000, "://u:" + "x" * 50_000, "?a" * 25_000, "://u:p@" + "a@" * 25_000,
        "password" * 6_000, "password=" * 5_500, 'password="' * 5_000, "token=a" * 7_000,
        "password=" + "\\" * 50_000, "password=a.([" * 4_000, "key        " * 4_500,
        "-----BEGIN PRIVATE KEY-----" * 2_000, "eyJ" * 15_000, "sk-" * 15_000, "xoxb-1-" * 7_500,
        "awskey" * 8_000, "//" * 25_000 + ":_authToken",
    ):  # fmt: skip
        redact_text(text, ())
    assert time.process_time() - started < 7  # quadratic: tens of seconds
