"""The workload has the shape that it claims: sizes, shares, bursts, images, forks, and how far it compresses."""

from __future__ import annotations

import itertools
import statistics

import pytest
from tailfold.engine import Event, MemoryBackend, Store
from tailfold.snapshots.zstd import compress

from benchmarks.workload import (
    AGENT,
    HUGE,
    PROFILES,
    TINY,
    ImageShown,
    Profile,
    Returned,
    bursts,
    fork_versions,
    items,
    session,
    session_events,
)

SAMPLE = 4096


def records(profile: Profile, seed: int = 1) -> list[tuple[Event, bytes]]:
    with Store.open(backend=MemoryBackend()) as store:
        encode = store.log.codec.encode
        return [
            (event, encode(event, 1_700_000_000_000_000_000 + i * 10**9, None, None).data)
            for i, event in enumerate(session_events(profile, SAMPLE, seed))
        ]


def test_half_of_an_agents_events_are_below_1400_bytes_and_tool_outputs_hold_78_percent() -> None:
    found = records(AGENT)
    assert 1250 <= statistics.median(len(data) for _, data in found) <= 1550
    outputs = sum(len(data) for event, data in found if isinstance(event, Returned))
    assert 0.75 <= outputs / sum(len(data) for _, data in found) <= 0.81


def test_an_agents_records_compress_about_five_times_and_no_better() -> None:
    data = [record for _, record in records(AGENT)]
    chunks = [b"".join(data[first : first + 256]) for first in range(0, SAMPLE, 256)]
    ratio = sum(map(len, chunks)) / sum(len(compress(chunk)) for chunk in chunks)
    assert 4.5 <= ratio <= 5.5


def test_parallel_calls_come_back_in_one_burst() -> None:
    batches = list(bursts(AGENT, SAMPLE))
    assert sum(map(len, batches)) == SAMPLE
    widths = [len(batch) for batch in batches if isinstance(batch[0], Returned)]
    assert max(widths) == 5
    assert 0.3 < sum(width > 1 for width in widths) / len(widths) < 0.8


def test_images_are_blobs_and_are_shown_again() -> None:
    shown = [event.image for event in session_events(AGENT, 4 * SAMPLE) if isinstance(event, ImageShown)]
    assert len(shown) > len({image.digest for image in shown}) > 1
    assert all(image.size == AGENT.image_bytes for image in shown)


def test_sessions_are_forked_somewhere_along_the_way() -> None:
    for profile in PROFILES.values():
        versions = fork_versions(profile, 10_000)
        assert versions == sorted(versions) == fork_versions(profile, 10_000)
        assert all(1 <= version <= 10_000 for version in versions)
    assert len(fork_versions(AGENT, 100_000)) > 100


def test_tiny_events_are_tiny() -> None:
    assert max(len(data) for _, data in records(TINY)) < 1024
    assert statistics.median(len(data) for _, data in records(TINY)) < 128


@pytest.mark.parametrize("profile", PROFILES.values(), ids=PROFILES)
def test_one_seed_makes_one_session_and_another_seed_another(profile: Profile) -> None:
    first, again, other = (list(session_events(profile, 300, seed)) for seed in (1, 1, 2))
    assert first == again
    assert first != other
    assert list(items(profile, 300, 1)) == list(items(profile, 300, 1))


@pytest.mark.parametrize("profile", PROFILES.values(), ids=PROFILES)
def test_a_longer_session_begins_as_the_shorter_one(profile: Profile) -> None:
    assert list(session_events(profile, 100)) == list(itertools.islice(session_events(profile, 300), 100))


def test_ten_million_events_are_made_one_after_the_other() -> None:
    few = list(itertools.islice(session_events(HUGE, 10_000_000), 10))
    assert HUGE.events == 10_000_000
    assert len(few) == 10


def test_the_plain_form_has_the_same_length_and_the_fold_takes_all_of_it() -> None:
    events = list(session_events(AGENT, 500))
    assert len(list(items(AGENT, 500))) == 500
    with Store.open(backend=MemoryBackend()) as store:
        live = store.live("s", session)
        live.append(*events)
        assert live.state.events == 500
        assert live.state.images == sum(isinstance(event, ImageShown) for event in events)
