"""Stores written by every earlier format open, for ever, with the same hashes and states (I9)."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from tailfold.engine import Event, Store
from tailfold.engine.agent.events import AGENT_EVENTS
from tailfold.engine.backend.port import FORMAT_VERSION
from tailfold.engine.errors import FormatTooNew

from tests.cli.command import tailfold
from tests.domain import Attached, Deposited, Noted, Withdrawn
from tests.golden.make import FOLDER, facts

FORMATS = range(1, FORMAT_VERSION + 1)
EVENTS: list[type[Event]] = [*AGENT_EVENTS, Deposited, Noted, Withdrawn, Attached]


def unpack(name: str, path: Path) -> Path:
    path.mkdir()
    (path / "data.mdb").write_bytes(gzip.decompress((FOLDER / name / "data.mdb.gz").read_bytes()))
    return path


@pytest.mark.parametrize("version", FORMATS)
def test_i9_every_golden_store_opens_with_the_same_hashes_and_states(version: int, tmp_path: Path) -> None:
    path = unpack(f"format-{version}", tmp_path / "s")
    with Store.open(path, events=EVENTS) as store:
        assert facts(store) == json.loads((FOLDER / f"format-{version}" / "facts.json").read_text())
        assert store.verify().findings == []
        for recorded in store.read_all():
            assert recorded.schema_version == 1
        [file] = store.read("files")
        assert isinstance(file.event, Attached)
        assert file.event.content.data == b"content " * 50
        repeated = store.append("account", [Deposited(10, "first"), Withdrawn(3)], expected=0, key="k")
        assert repeated.repeated, "idempotency keys are kept as well"
        store.append("account", Deposited(1), expected=3)
    assert tailfold(path, "verify").returncode == 0


def test_a_golden_file_from_the_future_is_refused_by_name_and_left_as_it_is(tmp_path: Path) -> None:
    path = unpack("format-99", tmp_path / "s")
    before = (path / "data.mdb").read_bytes()
    with pytest.raises(FormatTooNew, match="format version 99"):
        Store.open(path)
    assert [p.name for p in path.iterdir()] == ["data.mdb"]
    assert (path / "data.mdb").read_bytes() == before
    done = tailfold(path, "list")
    assert done.returncode == 8
    assert "format version 99" in done.stderr


def test_every_format_has_its_golden_store() -> None:
    names = {p.name for p in FOLDER.iterdir() if p.is_dir() and p.name.startswith("format-")}
    assert names == {f"format-{v}" for v in FORMATS} | {"format-99"}
