"""Secrets of every kind go in; a search for them in all that comes out finds none."""

from __future__ import annotations

import json
import re
import shutil
import stat
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

import pytest
import yaml

from tests.conftest import free_port
from tests.support.commands import harness
from tests.support.repeating import repeatedly
from tests.support.running import NO_VALIDITY_LIMITS
from tests.support.slurm import install_fake_slurm

pytestmark = pytest.mark.distributed

# Variables of the shell: names that speak of a secret, and names of libraries that nobody knows.
NAMES = (
    "SLURM_JWT", "DB_PASS", "DB_PWD", "GPG_PASSPHRASE", "SESSION_COOKIE", "URL_SIGNATURE", "HF_TOKEN",
    "AWS_SECRET_ACCESS_KEY", "SSH_PRIVATE_KEY", "SLACK_WEBHOOK", "NCCL_UNHEARD_OF", "TORCH_UNHEARD_OF",
    "HARNESS_UNHEARD_OF", "SLURM_UNHEARD_OF",
)  # fmt: skip
URLS = {
    "DATABASE_URL": "postgresql://user:{}@host/db",
    "FTP_PROXY": "http://user:{}@127.0.0.1:9",
    "PIP_INDEX_URL": "https://host/simple?token={}",
    "ODBC": "mssql+pyodbc:///?odbc_connect={}",
}
PROFILE_NAMES = ("MY_SETTING", "MY_PASSWORD", "GLOO_UNHEARD_OF")
# Prints what it can find, in several spellings, and raises the same, with secrets of its own.
LEAKY = """
import json, os, sys
from urllib.parse import quote
from line import LineFit

def leak():
    values = [os.environ[name] for name in {names!r}]
    return " ".join([*values, json.dumps(values), *map(quote, values), {url!r}, {bearer!r}])

class Leaky(LineFit):
    def loss(self, model, batch):
        if self.step == 0:
            print(leak())
            print(leak(), file=sys.stderr)
        if self.step == 1 and self.options.raise_at:
            raise ValueError(leak())
        return super().loss(model, batch)
"""


@dataclass
class Canaries:
    """Unique secrets, and where they were seen."""

    values: dict[str, str] = field(default_factory=dict)  # by what they are in
    seen: set[str] = field(default_factory=set)

    def new(self, place: str) -> str:
        """Return a secret that is spelled otherwise in JSON and in a URL."""
        self.values[place] = f'canary{len(self.values):03d}-k9"/z'
        return self.values[place]

    def look(self, place: str, content: bytes) -> None:
        """Note every canary in a content, whatever its spelling."""
        for name, value in self.values.items():
            start = content.find(value.split('"')[0].encode())
            if start >= 0:
                self.seen.add(f"{name} in {place}: {content[max(0, start - 60) : start + 40]!r}")

    def look_at_arguments(self) -> None:
        """Note every canary in the arguments of a process."""
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                self.look("arguments", path.read_bytes().replace(b"\0", b" "))
            except OSError:
                continue  # it has just ended


@pytest.fixture
def canaries(monkeypatch: pytest.MonkeyPatch) -> Canaries:
    """Secrets in variables of every class."""
    canaries = Canaries()
    for name in NAMES:
        monkeypatch.setenv(name, canaries.new(name))
    for name, url in URLS.items():
        monkeypatch.setenv(name, url.format(quote(canaries.new(name), safe="")))
    monkeypatch.setenv("PLAIN", canaries.new("PLAIN"))  # which nobody prints
    return canaries


def write_sweep(folder: Path, canaries: Canaries) -> tuple[Path, Path]:
    """Write a sweep of a trial that fails and one that does not, and its profile."""
    shutil.copy(Path(__file__).parents[1] / "support" / "line.py", folder / "line.py")
    # Nobody knows these, so that only their forms give them away.
    password = canaries.new("URL of an exception").replace('"', "!")
    parameter = quote(canaries.new("query of an exception"), safe="")
    bearer = canaries.new("header of an exception").replace('"', ".")
    leaky = LEAKY.format(
        names=[*NAMES, *URLS, *PROFILE_NAMES],
        url=f"https://u:{password}@host/x?password={parameter}",
        bearer=f"Bearer {bearer}",
    )
    (folder / "leaky.py").write_text(leaky, encoding="utf-8")
    uses = f"{folder / 'leaky.py'}:Leaky"
    workloads = {
        "fails": {"uses": uses, "options": {"raise_at": 2}},
        "works": {"uses": uses},
    }
    content = {"name": "leaky", "workloads": workloads, "length": {"steps": 6}, "warmup": 2}
    (folder / "leaky.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")
    profile = {
        "device": "cpu",
        "validity": NO_VALIDITY_LIMITS,
        "environment": {name: canaries.new(name) for name in PROFILE_NAMES},
    }
    (folder / "leaky-profile.yaml").write_text(yaml.safe_dump(profile), encoding="utf-8")
    return folder / "leaky.yaml", folder / "leaky-profile.yaml"


def gate(sweep: Path, profile: Path, summary: Path, canaries: Canaries) -> list[Path]:
    """Gate a cell that raises secrets, with a comment on it; return the logs that stay.

    In a process of its own, which imports the sweep's modules from two trees.
    """
    for arguments in (
        ["init", "--quiet", "--initial-branch=main"],
        ["add", "--all"],
        ["-c", "user.name=Test", "-c", "user.email=t@localhost", "commit", "--quiet", "-m", "all"],
    ):
        subprocess.run(["git", "-C", str(sweep.parent), *arguments], check=True)
    options = ["--summary", str(summary), "--budget", "1s"]
    command = [sys.executable, "-m", "harness.cli", "gate", "--against", "HEAD", str(sweep)]
    command += ["--cluster", str(profile), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=sweep.parent)
    printed = done.stdout + done.stderr
    canaries.look("harness gate", printed.encode())
    assert "[redacted]" in printed
    return [Path(path) for path in set(re.findall(r"log: (\S+\.log)", printed))]


@pytest.mark.nightly
def test_no_secret_comes_out(
    canaries: Canaries, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a run whose tracker is down, of all that shows it, of MLflow, and of a submission."""
    inputs = tmp_path / "inputs"
    inputs.mkdir()
    sweep, profile = write_sweep(inputs, canaries)
    results = tmp_path / "results"
    folder = ["--results", str(results)]

    def command(*arguments: str) -> str:
        """Run a command, look at what it prints, and return that."""
        ended = harness(*arguments)
        canaries.look(f"harness {arguments[0]}", (ended.out + ended.err).encode())
        return ended.out + ended.err

    gate_summary = tmp_path / "gate.md"
    with repeatedly(canaries.look_at_arguments, every=0.05):
        logs = gate(sweep, profile, gate_summary, canaries)
    for path in (gate_summary, *logs):
        canaries.look(path.name, path.read_bytes())
    assert b"[redacted]" in logs[0].read_bytes()
    for log in logs:
        shutil.rmtree(log.parents[2])

    password, token = canaries.new("password of the tracker"), canaries.new("token of the tracker")
    address = f"127.0.0.1:{free_port()}"
    uri = f"http://me:{quote(password, safe='')}@{address}/?token={quote(token, safe='')}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    with repeatedly(canaries.look_at_arguments, every=0.05):
        ran = command("run", str(sweep), "--cluster", str(profile), *folder)
    assert f"MLflow at http://{address}/ did not take the results" in ran
    monkeypatch.delenv("MLFLOW_TRACKING_URI")

    # Later on, in another shell, nobody knows the secrets any more.
    for name in (*NAMES, *URLS):
        monkeypatch.delenv(name)
    assert "1 failed" in command("show", "leaky", *folder)
    command("show", "leaky", "--phases", *folder)
    command("status", "leaky", *folder)
    command("status", "leaky", "--json", *folder)
    command("report", "leaky", *folder)
    assert "2 trials delivered" in command("collect", "leaky", *folder)
    records = sorted(results.glob("runs/leaky/*/record.json"))
    for record in records:
        assert "[redacted]" in command("status", "logs", record.parent.name, "--rank", "0", *folder)
    failures = [json.loads(path.read_text(encoding="utf-8"))["failure"] for path in records]
    (failure,) = [failure for failure in failures if failure]
    assert failure["message"].startswith("[redacted] [redacted] ")

    content = yaml.safe_load(profile.read_text(encoding="utf-8"))
    del content["validity"]
    profile.write_text(yaml.safe_dump({**content, "launcher": "slurm"}), encoding="utf-8")
    slurm = install_fake_slurm(tmp_path / "bin", monkeypatch.setenv)
    with repeatedly(canaries.look_at_arguments, every=0.05):
        submitted = results.with_name("submitted")
        command("submit", str(sweep), "--cluster", str(profile), "--results", str(submitted))
    for script in slurm.batch_scripts():
        canaries.look("a batch script", script.encode())

    for path in (*results.rglob("*"), *submitted.rglob("*")):
        if path.name == "submission.json":  # a job has to know the profile's variables
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
        elif path.is_file():
            canaries.look(str(path.relative_to(tmp_path)), path.read_bytes())
    assert (results / "mlflow.db").stat().st_size
    assert canaries.seen == set()
