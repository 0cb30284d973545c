"""Downloads the public data sets that the ready sweeps can read.

The digests are the SHA-256 that torchvision pins for the same files, so a mirror, even one without TLS, can neither
damage a file nor swap it unnoticed.
"""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from harness.core.errors import BadInput, HarnessError, did_you_mean

CHUNK = 1 << 16
TIMEOUT = 30.0  # seconds without a byte

Report = Callable[[int, int], None]  # bytes so far, bytes in all


@dataclass(frozen=True)
class File:
    """A file of a data set, whole and right if its content has this digest."""

    name: str
    size: int
    sha256: str


@dataclass(frozen=True)
class DataSet:
    """Files, and the URLs that end in a slash where each mirror has them."""

    mirrors: tuple[str, ...]
    files: tuple[File, ...]


SETS = {
    "mnist": DataSet(
        (
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
            "https://storage.googleapis.com/cvdf-datasets/mnist/",
        ),
        (
            File(
                "train-images-idx3-ubyte.gz",
                9_912_422,
                "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
            ),
            File(
                "train-labels-idx1-ubyte.gz",
                28_881,
                "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
            ),
            File(
                "t10k-images-idx3-ubyte.gz",
                1_648_877,
                "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
            ),
            File(
                "t10k-labels-idx1-ubyte.gz",
                4_542,
                "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
            ),
        ),
    ),
    "fashion-mnist": DataSet(
        (
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
            "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
        ),
        (
            File(
                "train-images-idx3-ubyte.gz",
                26_421_880,
                "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
            ),
            File(
                "train-labels-idx1-ubyte.gz",
                29_515,
                "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
            ),
            File(
                "t10k-images-idx3-ubyte.gz",
                4_422_102,
                "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
            ),
            File(
                "t10k-labels-idx1-ubyte.gz",
                5_148,
                "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
            ),
        ),
    ),
}


class _MirrorFailed(Exception):
    """Why a mirror did not give a file; another may."""


def fetch_with_progress(name: str, to: Path) -> None:
    """Put the files of the data set of that name into the folder `to`: a bar for each on a terminal, a line at its end.

    Raises BadInput for an unknown name, and all that `missing` and `get` raise.
    """
    data = find(name)
    absent = missing(data, to)
    console = Console(highlight=False)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as progress:
        for file in data.files:
            if file in absent:
                _get_with_bar(progress, file, data.mirrors, to)
            news = "fetched and verified" if file in absent else "already there"
            console.print(f"[green]✓[/] {file.name}: {news}, {file.size:,} bytes", soft_wrap=True)
    console.print(
        f"[bold]next[/]  harness run mnist --data {escape(shlex.quote(str(to)))}", soft_wrap=True
    )


def _get_with_bar(progress: Progress, file: File, mirrors: Sequence[str], to: Path) -> None:
    bar = progress.add_task(file.name, total=file.size)
    get(
        file, mirrors, to, lambda so_far, total: progress.update(bar, completed=so_far, total=total)
    )
    progress.remove_task(bar)


def find(name: str) -> DataSet:
    """The data set of that name; BadInput if there is none."""
    if name not in SETS:
        raise BadInput(f"data set {name!r}: unknown; {did_you_mean(name, SETS)}")
    return SETS[name]


def missing(data: DataSet, to: Path) -> list[File]:
    """The files that the folder `to`, made if need be, does not hold yet; every other one is right.

    Raises BadInput if the folder can't be made, or holds a different file under one of the names: that may be
    somebody's own data, so it is left alone.
    """
    with _folder_trouble(to):
        to.mkdir(parents=True, exist_ok=True)
        there = [file for file in data.files if (to / file.name).exists()]
        for file in there:
            if (found := _digest(to / file.name)) != file.sha256:
                raise BadInput(
                    f"{to / file.name}: found a different file (sha256 {found}), "
                    f"allowed: the public one (sha256 {file.sha256}); move it away or choose another folder"
                )
    return [file for file in data.files if file not in there]


def get(
    file: File,
    mirrors: Sequence[str],
    to: Path,
    report: Report = lambda so_far, total: None,
    *,
    timeout: float = TIMEOUT,
) -> None:
    """Download a file into the folder `to`, from the first mirror that gives the right one.

    It grows as NAME.part, which a later attempt continues, and gets its name only when whole and verified. A round of
    all mirrors that brought some bytes is followed by another. Raises HarnessError with what was wrong with each
    mirror if none gave it, BadInput if the folder can't be written.
    """
    part = to / f"{file.name}.part"
    with _folder_trouble(to):
        had = -1
        while had < (has := _size(part)):
            had, failures = has, []
            for mirror in mirrors:
                try:
                    _download(file, mirror + file.name, part, report, timeout)
                except _MirrorFailed as error:
                    failures.append(f"{mirror}: {error}")
                else:
                    part.replace(to / file.name)
                    return
    kept = (
        f"; {has:,} of {file.size:,} bytes are kept, the same command goes on from there"
        if has
        else ""
    )
    raise HarnessError(f"{file.name}: no mirror gave it: {'; '.join(failures)}{kept}")


def _download(file: File, url: str, part: Path, report: Report, timeout: float) -> None:
    """Leave the right file in `part`, or raise _MirrorFailed; a wrong one is deleted."""
    earlier = _complete(file, url, part, report, timeout)
    found = _digest(part)
    if found == file.sha256:
        return
    part.unlink()
    if not earlier:
        raise _MirrorFailed(f"wrong file refused (sha256 {found} instead of {file.sha256})")
    # What was there before may be what was wrong, and another mirror's: only a file of its own convicts this one.
    _download(file, url, part, report, timeout)


def _complete(file: File, url: str, part: Path, report: Report, timeout: float) -> int:
    """Append to `part` what it lacks; the number of bytes in it that are from an earlier attempt.

    Returns when the mirror has no more to send, be it right or wrong; raises _MirrorFailed if it stopped before that.
    """
    earlier = _size(part)
    response = _ask(url, earlier, timeout) if earlier < file.size else None
    if response is None:
        return earlier
    with response:
        if response.status != 206:
            earlier = 0
        elif not response.headers.get("Content-Range", "").startswith(f"bytes {earlier}-"):
            raise _MirrorFailed(f"asked for the bytes from {earlier}, it sent others")
        promised, so_far = response.length, earlier
        with part.open("ab" if earlier else "wb") as sink:
            report(so_far, file.size)
            while so_far <= file.size and (chunk := _read(response)):
                sink.write(chunk)
                so_far += len(chunk)
                report(min(so_far, file.size), file.size)
        # A body that is neither chunked nor of a stated length ends like one that is cut.
        sent_all = response.chunked or so_far - earlier == promised
    if so_far < file.size and not sent_all:
        raise _MirrorFailed(f"connection cut after {so_far:,} of {file.size:,} bytes")
    return earlier


@contextmanager
def _network_trouble() -> Iterator[None]:
    try:
        yield
    except (OSError, HTTPException) as error:
        raise _MirrorFailed(
            str(error.reason if isinstance(error, URLError) else error) or repr(error)
        ) from None


@contextmanager
def _folder_trouble(to: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise BadInput(
            f"{to}: can't be used: {error.strerror or error}; allowed: a folder that can be written"
        ) from None


@_network_trouble()
def _ask(url: str, begin: int, timeout: float) -> HTTPResponse | None:
    """The answer to a request for the bytes from `begin`; None if the mirror says that it has none there."""
    request = Request(url, headers={"Range": f"bytes={begin}-"} if begin else {})
    try:
        response: HTTPResponse = urlopen(request, timeout=timeout)
    except HTTPError as error:
        error.close()
        if error.code == 416 and begin:
            return None
        raise _MirrorFailed(f"HTTP {error.code} {error.reason}") from None
    return response


@_network_trouble()
def _read(response: HTTPResponse) -> bytes:
    # read1 gives what has come: after a time-out or a kill, all of it is in the file.
    return response.read1(CHUNK)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
