"""The folder in which trials share what was compiled: whose it is, what names it, what goes first."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from filelock import FileLock
from torch._dynamo.utils import counters

from harness.core.errors import BadInput
from harness.spec.axes import Axes
from harness.training import compile_cache
from harness.training.execution import Compiler
from harness.training.state import TrainingState
from tests.support.training import CPU


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Put the cache into the test's folder, and let go of it after the test."""
    monkeypatch.setenv("HARNESS_COMPILE_CACHE", str(tmp_path / "compile"))
    for variable in compile_cache.CACHE_VARIABLES:
        monkeypatch.setenv(variable, "")  # so that it is as before after the test
        monkeypatch.delenv(variable)
    yield compile_cache.root()
    compile_cache.release(clear_surplus=False)


def add(root: Path, name: str, *, used_at: float, size: int = 1000) -> Path:
    """Make the folder of a workload that nothing uses."""
    folder = root / "torch-2.13.0-0123456789abcdef" / name
    folder.mkdir(parents=True)
    (folder / "kernel.so").write_bytes(bytes(size))
    lock = folder.with_name(f"{name}.lock")
    lock.touch()
    os.utime(lock, (used_at, used_at))
    return folder


def test_trials_of_a_workload_share_a_folder_that_nobody_else_may_enter(root: Path) -> None:
    compile_cache.share_cache("mlp", CPU)
    folder = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"])
    assert folder.name == "mlp"
    assert folder.parent.parent == root
    assert os.environ["TRITON_CACHE_DIR"] == str(folder)
    modes = {stat.S_IMODE(path.stat().st_mode) for path in (root, folder.parent, folder)}
    assert modes == {0o700}
    compile_cache.release(clear_surplus=False)
    compile_cache.share_cache("cnn", CPU)
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(folder.with_name("cnn"))


def test_a_cache_of_torch_that_has_no_environment_in_its_name_is_not_used(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/fast/disk")
    compile_cache.share_cache("mlp", CPU)
    assert Path(os.environ["TORCHINDUCTOR_CACHE_DIR"]).is_relative_to(root)


@pytest.mark.parametrize(
    "part", ["cpu_flags", "cpu_capability_limit", "compiler", "libc", "torch", "device"]
)
def test_another_environment_has_another_folder(root: Path, part: str) -> None:
    environment = compile_cache.describe_environment(CPU)
    folder = compile_cache.environment_folder(root, environment)
    assert folder == compile_cache.environment_folder(root, dict(reversed(environment.items())))
    assert folder != compile_cache.environment_folder(root, {**environment, part: "another"})


def test_a_limit_on_instructions_is_another_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """With torch's own key, kernels for wider registers would be taken, and computed half a result."""
    before = compile_cache.describe_environment(CPU)
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "default")
    assert compile_cache.describe_environment(CPU) != before


def test_what_was_used_longest_ago_is_removed_first(root: Path) -> None:
    folders = {name: add(root, name, used_at=at) for name, at in [("b", 2), ("a", 1), ("c", 3)]}
    assert compile_cache.clear(root, limit=3000) == []
    assert compile_cache.clear(root, limit=1500) == [folders["a"], folders["b"]]
    assert [entry.folder for entry in compile_cache.list_entries(root)] == [folders["c"]]


def test_what_a_trial_uses_stays_until_it_lets_go(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = add(root, "old", used_at=1)
    compile_cache.share_cache("mlp", CPU)
    used = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"])
    (used / "kernel.so").write_bytes(bytes(2000))
    assert compile_cache.clear(root, limit=0) == [old]
    assert (used / "kernel.so").exists()
    monkeypatch.setenv(compile_cache.LIMIT_VARIABLE, "0.000001")
    compile_cache.release(clear_surplus=True)
    assert not used.exists()


def add_libraries(folder: Path) -> dict[str, Path]:
    """Leave a whole library in a workload's folder, and what killed compilers would."""
    whole = Path(msgspec._core.__file__).read_bytes()
    contents = {
        "whole": whole,
        "half": whole[: len(whole) // 2],
        "empty": b"",
        "zeros": bytes(9999),
    }
    libraries = {}
    for name, content in contents.items():
        libraries[name] = folder / "ab" / f"{name}.main.so"
        libraries[name].parent.mkdir(parents=True, exist_ok=True)
        libraries[name].write_bytes(content)
    return libraries


def test_what_a_killed_compiler_has_left_is_removed_before_it_is_used(root: Path) -> None:
    compile_cache.share_cache("mlp", CPU)
    folder = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"])
    compile_cache.release(clear_surplus=False)
    libraries = add_libraries(folder)
    compile_cache.share_cache("mlp", CPU)
    assert {name for name, path in libraries.items() if path.exists()} == {"whole"}


def test_a_library_that_another_trial_is_compiling_is_left_alone(tmp_path: Path) -> None:
    """Torch holds the library's lock from before the compiler starts until it has ended."""
    libraries = add_libraries(tmp_path)
    lock = FileLock(str(tmp_path / "locks" / "half.lock"), timeout=1)
    (tmp_path / "locks").mkdir()
    with lock:
        removed = compile_cache.remove_torn_libraries(tmp_path)
        assert libraries["half"] not in removed
        assert libraries["half"].exists()
    assert compile_cache.remove_torn_libraries(tmp_path) == [libraries["half"]]


@pytest.mark.nightly
def test_torch_compiles_a_library_again_that_was_torn(root: Path) -> None:
    """It names the lock of a library as the library is named; another version may do it otherwise."""
    program = """
import torch
from harness.training import compile_cache
compile_cache.share_cache("mlp", torch.device("cpu"))
x = torch.arange(8.0)
assert torch.equal(torch.compile(lambda x: x.sin() + x.cos())(x), x.sin() + x.cos())
"""
    command = [sys.executable, "-c", program]
    subprocess.run(command, check=True, timeout=300)
    sizes = {library: library.stat().st_size for library in root.glob("*/mlp/*/*.so")}
    assert sizes
    for library, size in sizes.items():
        key = library.name.partition(".")[0]
        assert (library.parent.parent / "locks" / f"{key}.lock").exists()
        os.truncate(library, size // 2)
    subprocess.run(command, check=True, timeout=300)
    assert {library: library.stat().st_size for library in sizes} == sizes


@pytest.mark.parametrize("text", ["much", "-1", "nan", "inf"])
def test_a_limit_that_is_no_size_is_refused(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv(compile_cache.LIMIT_VARIABLE, text)
    with pytest.raises(BadInput, match=f"HARNESS_COMPILE_CACHE_GB: found '{text}'; allowed: giga"):
        compile_cache.share_cache("mlp", CPU)  # before training, and not when the cache is cleared


def test_a_cache_that_can_not_be_cleared_costs_no_trial(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On NFS, a file that a process has open keeps its folder."""
    old = add(root, "old", used_at=1)
    axes = Axes(batch_size=1, execution="compile")
    compiler = Compiler(axes, root / "cold", workload="mlp", device=CPU, state=TrainingState())
    monkeypatch.setitem(counters["inductor"], "fxgraph_cache_miss", 1)
    monkeypatch.setenv(compile_cache.LIMIT_VARIABLE, "0")

    def refuse(folder: Path) -> None:
        raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), str(folder))

    monkeypatch.setattr(shutil, "rmtree", refuse)
    compiler.release_cache(is_local_rank_0=True)
    assert capsys.readouterr().out == (
        f"the compile cache was not cleared: [Errno 39] Directory not empty: '{old}'\n"
    )


def test_a_home_that_can_not_be_written_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.delenv("HARNESS_COMPILE_CACHE")
    assert compile_cache.root() == Path(f"/tmp/harness-compile-{os.geteuid()}")
    monkeypatch.setenv("HARNESS_COMPILE_CACHE", str(tmp_path / "file" / "compile"))
    with pytest.raises(
        BadInput, match=r"^HARNESS_COMPILE_CACHE: .*: Not a directory; allowed: a fo"
    ):
        compile_cache.root()
