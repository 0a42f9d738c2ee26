"""The bars of the design, and whether a run reached them: met, missed, or not measured, and at which size."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.figures import Parts, size

FULL_SIZE = 10_000_000
MET, MISSED, UNKNOWN = "met", "missed", "not measured"


@dataclass(frozen=True)
class Judged:
    """One bar. `verdict` is about what was measured; `at` says if that was less than the bar asks for."""

    what: str
    bar: str
    measured: str
    verdict: str
    at: str = ""

    def as_json(self) -> dict[str, str]:
        return asdict(self)


def judge(parts: Parts) -> list[Judged]:
    """Judge every bar by the parts of a run."""
    return [
        *_resume(parts.get("resume")),
        *_fork(parts.get("fork")),
        *_fold(parts.get("fold")),
        *_upcast(parts.get("upcast")),
        *_append(parts.get("append")),
        *_bytes(parts.get("resume")),
        *_seal(parts.get("seal")),
    ]


def _verdict(*reached: bool) -> str:
    return MET if all(reached) else MISSED


def _sized(events: int) -> str:
    return "" if events >= FULL_SIZE else f"at {size(events)} only; the bar is for {size(FULL_SIZE)}"


def _resume(part: dict[str, Any] | None) -> list[Judged]:
    what, bar = "resume with a fixed tail, 10 M events against 1 k", "≤ 1.5x time, ≤ 64 MB RSS"
    if part is None:
        return [Judged(what, bar, "", UNKNOWN)]
    first, last = part["sizes"][0], part["sizes"][-1]
    times = last["resume_ms"] / first["resume_ms"]
    peak = last["peak_rss_mb"]
    measured = f"{times:.2f}x ({last['resume_ms']:.2f} ms against {first['resume_ms']:.2f} ms), {peak:.0f} MB"
    return [Judged(what, bar, measured, _verdict(times <= 1.5, peak <= 64), _sized(last["events"]))]


def _fork(part: dict[str, Any] | None) -> list[Judged]:
    bar = "≤ 1.5x"
    found = []
    for where, times_key, load_key in (
        ("at the head (a tail of 500)", "fork_and_first_load_times_smallest", "first_load_ms"),
        ("at any old version", "anywhere_times_smallest", "first_load_anywhere_ms"),
    ):
        what = f"fork {where} + first load, 10 M events against 1 k"
        if part is None:
            found.append(Judged(what, bar, "", UNKNOWN))
            continue
        times = part[times_key]
        first, last = part["fork"][0], part["fork"][-1]
        both = " against ".join(f"{row['fork_ms']:.2f} + {row[load_key]:.2f} ms" for row in (last, first))
        found.append(Judged(what, bar, f"{times:.2f}x ({both})", _verdict(times <= 1.5), _sized(last["events"])))
    return found


def _fold(part: dict[str, Any] | None) -> list[Judged]:
    what, bar = "full fold, current schemas", "≥ 1.0 M events/s and ≥ 25x `eventsourcing`"
    if part is None:
        return [Judged(what, bar, "", UNKNOWN)]
    found = []
    for row in part["full_fold"]:
        for prefix, history in (("", "plain events"), ("sealed_", "sealed history")):
            rate, times = row[f"{prefix}events_per_s"], row.get(f"{prefix}times_eventsourcing")
            measured = f"{rate / 1e6:.2f} M events/s, " + (
                f"{times:.0f}x" if times else "the peer is not installed"
            )
            verdict = _verdict(rate >= 1e6, times >= 25) if times else UNKNOWN
            found.append(Judged(f"{what}, {row['text_bytes']}-byte texts, {history}", bar, measured, verdict))
    return found


def _upcast(part: dict[str, Any] | None) -> list[Judged]:
    what, bar = "full fold, all at schema 1, three steps behind", "≤ 2.5x the time at the current schema"
    if part is None:
        return [Judged(what, bar, "", UNKNOWN)]
    return [
        Judged(
            f"{what}, {way} steps, {row['text_bytes']}-byte texts",
            bar,
            f"{row[f'{way}_times_current']:.2f}x",
            _verdict(row[f"{way}_times_current"] <= 2.5),
        )
        for row in part["upcast"]
        for way in ("declared", "typed", "builtins")
    ]


def _append(part: dict[str, Any] | None) -> list[Judged]:
    alone = ("durable append alone, p50", "≤ 1.6x a raw write+fdatasync of the same bytes")
    many = ("1,000 concurrent sessions in one process", "≥ 50 k durable events/s")
    if part is None:
        return [Judged(*alone, "", UNKNOWN), Judged(*many, "", UNKNOWN)]
    found = [
        Judged(
            f"{alone[0]}, {row['record_bytes']}-byte records",
            alone[1],
            f"{row['ratio_p50']:.2f}x ({row['p50_ms']:.3f} ms)",
            _verdict(row["ratio_p50"] <= 1.6),
        )
        for row in part["durable_alone"]
    ]
    rows = [row for row in part["concurrent"] if row["sessions"] == 1000]
    if not rows:
        return [*found, Judged(*many, "", UNKNOWN)]
    rate = rows[0]["events_per_s"]
    return [*found, Judged(*many, f"{rate / 1000:.0f} k", _verdict(rate >= 50_000))]


def _bytes(part: dict[str, Any] | None) -> list[Judged]:
    doubled = ("bytes(2n) / bytes(n), state keeps every message", "≤ 2.1, snapshots included")
    share = ("snapshots' share of the store at `every(1000)`", "≤ 25 % of event bytes")
    if part is None:
        return [Judged(*doubled, "", UNKNOWN), Judged(*share, "", UNKNOWN)]
    ratios = part["ratios"]
    both = ratios["snapshot_and_chunk_share_of_event_bytes"]
    times = ratios["bytes_doubled"]
    return [
        Judged(*doubled, f"{times:.2f}", _verdict(times <= 2.1)),
        Judged(*share, f"{both:.1%}", _verdict(both <= 0.25), _sized(part["sizes"][-1]["events"])),
    ]


def _seal(part: dict[str, Any] | None) -> list[Judged]:
    space_bar = ("space of 2,000 interleaved sessions, sealed", "≤ 0.4x of the payload")
    faster = "≥ 1.3x the speed of the unsealed one"
    cold_bar = ("full fold of a sealed history, from the disk", faster)
    fold_bar = ("full fold of a sealed history, all of it in memory", faster)
    read_bar = ("reading one version of a sealed history", "≤ 2x the unsealed cost")
    if part is None:
        return [Judged(what, bar, "", UNKNOWN) for what, bar in (space_bar, cold_bar, fold_bar, read_bar)]
    [space] = part["space"]
    times = space["sealed_times_payload"]
    at = "" if space["streams"] >= 2000 else f"{space['streams']} sessions"
    measured = f"{times:.2f}x ({space['unsealed_times_payload']:.2f}x unsealed)"
    judged = [Judged(*space_bar, measured, _verdict(times <= 0.4), at)]
    for reading in part["reading"]:
        for fold, key in (
            (cold_bar, "cold_fold_sealed_times_plain_speed"),
            (fold_bar, "fold_sealed_times_plain_speed"),
        ):
            speed = reading[key]
            judged.append(Judged(*fold, f"{speed:.2f}x, {reading['profile']} events", _verdict(speed >= 1.3)))
        near, anywhere = reading["read_one_near_others_times_plain"], reading["read_one_times_plain"]
        measured = f"{anywhere:.1f}x anywhere, {near:.1f}x near others, {reading['profile']} events"
        judged.append(Judged(*read_bar, measured, _verdict(anywhere <= 2, near <= 2)))
    return judged
