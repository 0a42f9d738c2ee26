"""Opening a store beside others that make it, in forked processes, and where the system has nothing left."""

from __future__ import annotations

import resource
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from tailfold.engine import Store
from tailfold.engine.backend import directory
from tailfold.engine.backend.lmdb import ahead_file
from tailfold.engine.errors import EngineError, StoreNotFound

from tests.domain import Deposited


def test_a_store_that_another_process_is_making_is_not_emptied(tmp_path: Path) -> None:
    """Half a meta page looks like a creation that was cut short; whether it was can be told by who opens alone."""
    with Store.open(tmp_path / "made") as store:
        store.append("a", Deposited(1), expected=0)
    whole = (tmp_path / "made" / "data.mdb").read_bytes()
    path = tmp_path / "s"
    path.mkdir(mode=0o700)
    (path / "data.mdb").write_bytes(bytes(100))
    found: list[int] = []

    def open_it() -> None:
        with Store.open(path) as store:
            found.append(store.head("a").version)

    with ahead_file.opening(path):
        opener = threading.Thread(target=open_it)
        opener.start()
        time.sleep(0.2)
        assert (path / "data.mdb").stat().st_size == 100
        (path / "data.mdb").write_bytes(whole)
    opener.join(20)
    assert found == [1]


def test_a_directory_that_appears_meanwhile_is_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "s"
    exists = Path.exists

    def made_first(self: Path) -> bool:
        self.mkdir(exist_ok=True)
        return exists(self)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "exists", made_first)
        directory.check_vacant(path)
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreNotFound, match="that is a file"):
        directory.check_vacant(tmp_path / "file")


def test_a_forked_child_is_told_why_it_cannot_open_its_parents_store(tmp_path: Path) -> None:
    script = (
        "import os, sys\n"
        "from tailfold.engine import Store\n"
        "from tailfold.engine.errors import EngineError\n"
        "store = Store.open(sys.argv[1])\n"
        "if os.fork() == 0:\n"
        "    try: Store.open(sys.argv[1])\n"
        "    except EngineError as error: print(type(error).__name__, error, flush=True)\n"
        "    os._exit(0)\n"
        "os.wait()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "s")], capture_output=True, text=True, timeout=60
    )
    assert done.stdout.startswith("EngineError")
    assert "when the process was forked" in done.stdout


def test_without_descriptors_a_store_is_refused_by_name_and_opens_later(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with Store.open(path) as store:
        store.append("a", Deposited(1), expected=0)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    descriptors = Path("/proc/self/fd")
    taken = len(list(descriptors.iterdir())) if descriptors.exists() else 64
    for left in range(8):
        resource.setrlimit(resource.RLIMIT_NOFILE, (taken - 1 + left, hard))
        try:
            Store.open(path).close()
        except EngineError as error:
            refused = str(error)
            assert "Too many open files" in refused, refused
            assert str(path) in refused
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    with Store.open(path) as store:
        assert store.head("a").version == 1
