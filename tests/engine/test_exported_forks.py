"""A fork is exported with all that it sees, and imported as it was, or found to be there."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from tailfold.engine import Blob, Event, MemoryBackend, Store
from tailfold.engine.exporting import export
from tailfold.engine.importing import Imported, check, import_stream

from tests.domain import Attached, Deposited

EVENTS: list[Event] = [Deposited(1), Attached("f", Blob(b"one")), Deposited(2), Attached("g", Blob(b"two"))]


def lines_of(store: Store, stream: str) -> list[bytes]:
    return [msgspec.json.encode(line) + b"\n" for line in export(store.log, stream)]


def into(store: Store, lines: list[bytes]) -> Imported:
    return import_stream(store.log, check(lines), lines)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(0, 4)), max_size=6))
def test_law_any_fork_is_imported_as_it_was_or_found_to_be_there(forks: list[tuple[int, int, int]]) -> None:
    store = Store.open(backend=MemoryBackend())
    store.append("s", EVENTS, expected=0)
    names = ["s"]
    for number, at, more in forks:
        parent = names[number % len(names)]
        names.append(store.fork(parent, at=1 + at % store.head(parent).version).stream)
        if more:
            store.append(names[-1], EVENTS[:more], expected=store.head(names[-1]).version)
    other = Store.open(backend=MemoryBackend(), events=[Deposited, Attached])
    for name in names:
        lines = lines_of(store, name)
        head = store.head(name)
        assert into(store, lines) == Imported(name, head.version, 0, head.hash.hex()), "it is there already"
        done = into(other, lines)
        assert (done.added, done.head) == (head.version, other.head(name).hash.hex())
        assert into(other, lines_of(other, name)).added == 0
        assert into(other, lines).added == 0, "nor from the first file"
        assert [one.event for one in other.read(name)] == [one.event for one in store.read(name)]
    assert store.verify().findings == []
    assert other.verify().findings == []
