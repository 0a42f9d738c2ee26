"""Sessions as agents have them: bursts, images, forks; each of our figures beside its limit in the same run."""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
from tailfold.engine import Event, Store
from tailfold.snapshots import never

from benchmarks.timing import RawFile, percentile, summary
from benchmarks.workload import (
    PROFILES,
    Decided,
    ImageShown,
    Profile,
    Returned,
    Session,
    TurnBegun,
    bursts,
    fork_versions,
    session,
    session_events,
)

STREAM = "session"
REPEATS = 5
BLOCK = 25
BATCH = 500
FORKS_AT_MOST = 20
DECODED_AT_MOST = 50_000
"""Records held in memory for the limits of decoding and folding alone."""


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--profiles", default="agent,tiny,huge", help="which, comma-separated")
    parser.add_argument("--events", type=int, default=200_000, help="events of a session")
    parser.add_argument("--appends", type=int, default=1000, help="bursts appended durably")
    parser.add_argument("--dir", default=None, help="where to write; default: the temporary directory")


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    rows = []
    for name in arguments.profiles.split(","):
        with tempfile.TemporaryDirectory(dir=arguments.dir) as folder:
            rows.append(_profile(Path(folder), PROFILES[name], arguments))
    return {"profiles": rows}


def _profile(folder: Path, profile: Profile, arguments: argparse.Namespace) -> dict[str, Any]:
    count = arguments.events
    row: dict[str, Any] = {"profile": profile.name, "events": count}
    row["append"] = _bursts(folder / "bursts", profile, arguments.appends)
    row["bulk"] = _bulk(folder / "store", folder / "raw", profile, count)
    with Store.open(folder / "store", snapshots=never) as store:
        row["fold"] = _fold(store, profile, count)
        row["resume"] = _resume(store, count)
        row["forks"] = _forks(store, profile, count, folder / "raw-forks")
        row["images"] = _images(store, profile, count)
    return row


def _bursts(path: Path, profile: Profile, appends: int) -> dict[str, Any]:
    """Append bursts durably, taking turns with a raw write+fdatasync of the same bytes."""
    with Store.open(path) as store:
        live, raw = store.live(STREAM, session), RawFile(path / "raw")
        encode = store.log.codec.encode
        ours: list[float] = []
        events = 0
        todo = bursts(profile, 1 << 40)
        for _ in range(0, appends, BLOCK):
            block = list(islice(todo, BLOCK))
            for batch in block:
                begin = time.perf_counter()
                live.append(*batch)
                ours.append(time.perf_counter() - begin)
                events += len(batch)
            for batch in block:
                raw.append(b"".join(encode(event, time.time_ns(), None, None).data for event in batch))
        raw.close()
    mine, limit = summary(ours), summary(raw.durations_s)
    return {
        "appends": len(ours),
        "events": events,
        **mine,
        "raw_write_fdatasync_p50_ms": limit["p50_ms"],
        "ratio_p50": mine["p50_ms"] / limit["p50_ms"],
    }


def _batches(profile: Profile, count: int) -> Iterator[list[Event]]:
    rest = session_events(profile, count)
    while batch := list(islice(rest, BATCH)):
        yield batch


def _bulk(path: Path, raw_path: Path, profile: Profile, count: int) -> dict[str, Any]:
    """Append in batches, durably and with snapshots, beside plain durable writes of the same bytes."""
    ours_s = 0.0
    record_bytes = []
    with Store.open(path) as store:
        live, raw = store.live(STREAM, session), RawFile(raw_path)
        encode = store.log.codec.encode
        for batch in _batches(profile, count):
            records = [encode(event, 1, None, None).data for event in batch]
            record_bytes += [len(record) for record in records]
            raw.append(b"".join(records))
            begin = time.perf_counter()
            live.append(*batch)
            ours_s += time.perf_counter() - begin
        raw.close()
    return {
        "batch": BATCH,
        "events_per_s": count / ours_s,
        "raw_write_fdatasync_events_per_s": count / sum(raw.durations_s),
        "ratio": ours_s / sum(raw.durations_s),
        "median_record_bytes": statistics.median(record_bytes),
        "record_bytes": sum(record_bytes),
    }


def _fold(store: Store, profile: Profile, count: int) -> dict[str, Any]:
    """Fold everything, beside a cursor scan without decoding, decoding without folding, and folding alone."""
    store.log.codec.register([TurnBegun, Decided, Returned, ImageShown])
    whole_s = _median(lambda: _whole(store, count))
    scan_s = _median(lambda: _scan(store, count))
    few = min(count, DECODED_AT_MOST)
    history = list(session_events(profile, few))
    records = [_record(event) for event in history]
    decode_s = _median(lambda: _decode(records)) * count / few
    bare_s = _median(lambda: _bare(history)) * count / few
    return {
        "events_per_s": count / whole_s,
        "cursor_scan_events_per_s": count / scan_s,
        "decode_alone_events_per_s": count / decode_s,
        "bare_fold_events_per_s": count / bare_s,
        "ratio_to_scan": whole_s / scan_s,
        "ratio_to_decode": whole_s / decode_s,
        "ratio_to_bare_fold": whole_s / bare_s,
        "ratio_to_their_sum": whole_s / (scan_s + decode_s + bare_s),
    }


def _whole(store: Store, count: int) -> Session:
    state = Session()
    for _, records in store.log.record_pages(STREAM, after=0, upto=count):
        state = session.fold_records(state, records, STREAM, 0)
    assert state.events == count
    return state


def _scan(store: Store, count: int) -> int:
    after = 0
    while after < count:
        after += len(store.backend.data(STREAM, after=after, upto=min(count, after + 1024)))
    return after


class BegunRecord(msgspec.Struct, tag="turn_begun@1", array_like=True, gc=False):
    time_ns: int
    event: TurnBegun


class DecidedRecord(msgspec.Struct, tag="decided@1", array_like=True, gc=False):
    time_ns: int
    event: Decided


class ReturnedRecord(msgspec.Struct, tag="returned@1", array_like=True, gc=False):
    time_ns: int
    event: Returned


_decoder = msgspec.msgpack.Decoder(BegunRecord | DecidedRecord | ReturnedRecord)


def _record(event: Event) -> bytes:
    """Encode an event with msgspec and nothing else, as bare as a record can be."""
    if isinstance(event, Returned):
        return msgspec.msgpack.encode(ReturnedRecord(time.time_ns(), event))
    if isinstance(event, Decided):
        return msgspec.msgpack.encode(DecidedRecord(time.time_ns(), event))
    return msgspec.msgpack.encode(BegunRecord(time.time_ns(), TurnBegun(getattr(event, "turn", 0))))


def _decode(records: list[bytes]) -> None:
    decode = _decoder.decode
    for record in records:
        decode(record)


def _bare(history: list[Event]) -> Session:
    state = Session()
    messages: list[str] = []
    for event in history:
        state.events += 1
        if isinstance(event, Returned):
            state.characters += len(event.output)
            messages.append(event.output)
        elif isinstance(event, Decided):
            state.characters += len(event.text)
            messages.append(event.text)
        elif isinstance(event, TurnBegun):
            state.turns = event.turn
        else:
            state.images += 1
    return state


def _resume(store: Store, count: int) -> dict[str, Any]:
    before = store.counters.events_folded
    assert store.load(STREAM, session).state.events == count
    tail = store.counters.events_folded - before
    ours = sorted(_times(lambda: store.live(STREAM, session), 31))
    limit = sorted(
        _times(lambda: [page for _, page in store.log.record_pages(STREAM, after=count - tail, upto=count)], 31)
    )
    return {
        "tail_events": tail,
        "resume_ms": percentile(ours, 0.5),
        "resume_p99_ms": percentile(ours, 0.99),
        "scan_and_decode_of_the_tail_ms": percentile(limit, 0.5),
        "ratio_to_the_tail": percentile(ours, 0.5) / max(percentile(limit, 0.5), 1e-6),
    }


def _forks(store: Store, profile: Profile, count: int, raw_path: Path) -> dict[str, Any]:
    """Fork where the session was forked, and go on for a turn in each."""
    raw = RawFile(raw_path)
    fork_s, load_s = [], []
    before = _bytes(store)
    versions = fork_versions(profile, count)[:FORKS_AT_MOST]
    for number, version in enumerate(versions):
        begin = time.perf_counter()
        store.fork(STREAM, at=version, name=f"fork-{number}")
        fork_s.append(time.perf_counter() - begin)
        begin = time.perf_counter()
        live = store.live(f"fork-{number}", session)
        load_s.append(time.perf_counter() - begin)
        assert live.state.events == version
        live.append(TurnBegun(live.state.turns + 1))
        raw.append(bytes(100))
    raw.close()
    limit = percentile(sorted(raw.durations_s), 0.5)
    return {
        "forks": len(versions),
        "fork_p50_ms": percentile(sorted(fork_s), 0.5),
        "first_load_p50_ms": percentile(sorted(load_s), 0.5),
        "raw_write_fdatasync_p50_ms": limit,
        "ratio_fork_to_raw": percentile(sorted(fork_s), 0.5) / limit,
        "bytes_per_fork": (_bytes(store) - before) / len(versions),
    }


def _images(store: Store, profile: Profile, count: int) -> dict[str, Any]:
    shown = [event.image for event in session_events(profile, count) if isinstance(event, ImageShown)]
    return {
        "shown": len(shown),
        "distinct": len({image.digest for image in shown}),
        "bytes_shown": sum(image.size for image in shown),
        "bytes_stored": store.usage()["tables"]["blobs"]["bytes"],
    }


def _bytes(store: Store) -> int:
    return sum(int(table["bytes"]) for table in store.usage()["tables"].values())


def _times(work: Callable[[], object], repeats: int) -> list[float]:
    durations = []
    for _ in range(repeats):
        begin = time.perf_counter()
        work()
        durations.append(time.perf_counter() - begin)
    return durations


def _median(work: Callable[[], object]) -> float:
    return statistics.median(_times(work, REPEATS))
