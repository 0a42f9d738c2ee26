"""What a reader compares: our figures, the limits and the peers of the same run, and the ratios between them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

Parts = dict[str, dict[str, Any]]

OURS_TOO = "tailfold_every"
"""tailfold under another snapshot policy: a column beside the peers."""


@dataclass
class Figure:
    """One measured thing. `less` says whether less is better."""

    name: str
    unit: str
    ours: float
    less: bool = True
    limits: dict[str, float] = field(default_factory=dict)
    peers: dict[str, float | str] = field(default_factory=dict)
    """A number, or why there is none."""

    def times_limit(self) -> dict[str, float]:
        """Return how many times the limit we cost; 1 is the limit itself."""
        return {
            name: (self.ours / value if self.less else value / self.ours)
            for name, value in self.limits.items()
            if value and self.ours
        }

    def won_by(self) -> list[tuple[str, float]]:
        """Return the peers that are better, and how many times, the best first. Our own other policy is no peer."""
        won = [(name, 1 / times) for name, times in self.times_peer().items() if times < 1]
        return sorted(((name, times) for name, times in won if name != OURS_TOO), key=lambda one: -one[1])

    def times_peer(self) -> dict[str, float]:
        """Return how many times better than the peer we are; below 1 the peer wins."""
        return {
            name: (value / self.ours if self.less else self.ours / value)
            for name, value in self.peers.items()
            if isinstance(value, float | int) and value and self.ours
        }

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "unit": self.unit,
            "better": "less" if self.less else "more",
            "ours": self.ours,
            "limits": self.limits,
            "times_limit": self.times_limit(),
            "peers": self.peers,
            "times_better_than_peer": self.times_peer(),
            "peers_that_win": [name for name, _ in self.won_by()],
        }


def all_figures(parts: Parts) -> list[Figure]:
    """Return every figure of the parts that were run."""
    makers = {
        "append": _append,
        "fold": _fold,
        "upcast": _upcast,
        "resume": _resume,
        "fork": _fork,
        "follow": _follow,
        "list": _list,
        "seal": _seal,
        "sessions": _sessions,
        "peers": peer_figures,
    }
    return [figure for name, make in makers.items() if name in parts for figure in make(parts[name])]


def size(count: int) -> str:
    """Return a count as people write it: 1 k, 10 M; all digits if it is not round."""
    for unit, letter in ((1_000_000, "M"), (1000, "k")):
        if count % unit == 0 and count:
            return f"{count // unit} {letter}"
    return f"{count:,}"


def _append(part: dict[str, Any]) -> list[Figure]:
    found = [
        Figure(
            f"durable append alone, {row['record_bytes']}-byte records, p50",
            "ms",
            row["p50_ms"],
            limits={
                "raw write+fdatasync": row["raw_write_fdatasync_p50_ms"],
                "two flushes": row["two_flushes_p50_ms"],
            },
        )
        for row in part["durable_alone"]
    ]
    found.append(
        Figure("bulk append, durable, 1,000 a batch", "events/s", part["bulk"]["events_per_s"], less=False)
    )
    found += [
        Figure(f"sessions at once: {row['sessions']:,}, durable", "events/s", row["events_per_s"], less=False)
        for row in part["concurrent"]
    ]
    return found


def _fold(part: dict[str, Any]) -> list[Figure]:
    found = []
    for row in part["full_fold"]:
        peer = row["peers"]["eventsourcing_sqlite"]
        limits = row["limits"]
        found.append(
            Figure(
                f"full fold, {row['text_bytes']}-byte texts",
                "events/s",
                row["events_per_s"],
                less=False,
                limits={
                    "cursor scan": limits["cursor_scan_events_per_s"],
                    "scan and decode": limits["scan_and_decode_events_per_s"],
                    "bare fold": limits["bare_python_fold_events_per_s"],
                },
                peers={"eventsourcing": peer["events_per_s"] if isinstance(peer, dict) else peer},
            )
        )
        what = f"full fold of sealed history, {row['text_bytes']}-byte texts"
        found.append(Figure(what, "events/s", row["sealed_events_per_s"], less=False, peers=found[-1].peers))
    return found


def _upcast(part: dict[str, Any]) -> list[Figure]:
    return [
        Figure(
            f"full fold three schema versions behind, {way} steps, {row['text_bytes']}-byte texts",
            "events/s",
            row[f"{way}_events_per_s"],
            less=False,
            limits={"the same at the current version": row["current_events_per_s"]},
        )
        for row in part["upcast"]
        for way in ("declared", "typed", "builtins")
    ]


def _resume(part: dict[str, Any]) -> list[Figure]:
    found = []
    for row in part["sizes"]:
        found.append(Figure(f"resume at {size(row['events'])}, tail {part['tail']}", "ms", row["resume_ms"]))
        found.append(Figure(f"peak memory of that, {size(row['events'])}", "MB", row["peak_rss_mb"]))
    return found


def _fork(part: dict[str, Any]) -> list[Figure]:
    found = []
    for row in part["fork"]:
        found.append(Figure(f"fork at {size(row['events'])}", "ms", row["fork_ms"]))
        found.append(Figure(f"first load of that fork, {size(row['events'])}", "ms", row["first_load_ms"]))
    found += [
        Figure(f"load at the end of a chain of forks, {row['depth']:,} deep", "ms", row["load_ms"])
        for row in part["chains"]
    ]
    return found


def _seal(part: dict[str, Any]) -> list[Figure]:
    found = []
    for row in part["reading"]:
        plain = {"unsealed": row["fold_plain_events_per_s"]}
        name = f"full fold of a sealed history, {row['profile']} events"
        found.append(Figure(name, "events/s", row["fold_sealed_events_per_s"], less=False, limits=plain))
        name = f"one version of a sealed history, {row['profile']} events"
        limits = {"unsealed": row["read_one_plain_us"]}
        found.append(Figure(name, "µs", row["read_one_sealed_us"], limits=limits))
    for row in part["space"]:
        name = f"bytes of {row['streams']:,} interleaved sessions, sealed"
        found.append(Figure(name, "times payload", row["sealed_times_payload"]))
    return found


def _follow(part: dict[str, Any]) -> list[Figure]:
    durable = part["delivery"][0]
    return [
        Figure(
            "delivery in another process after a durable append, p50",
            "ms",
            durable["after_the_append_returned_p50_ms"],
        ),
        Figure("catching up", "events/s", part["catch_up"]["plain_events_per_s"], less=False),
    ]


def _list(part: dict[str, Any]) -> list[Figure]:
    return [
        Figure(
            f"list of {size(row['runs'])} runs with status, warm",
            "ms",
            row["warm_ms"],
            limits={"folding every run": row["folding_every_run_s"] * 1000},
        )
        for row in part["sizes"]
    ]


def _sessions(part: dict[str, Any]) -> list[Figure]:
    found = []
    for row in part["profiles"]:
        name, append, bulk = row["profile"], row["append"], row["bulk"]
        fold, resume, forks = row["fold"], row["resume"], row["forks"]
        raw = "raw write+fdatasync"
        found += [
            Figure(
                f"{name}: durable append of a burst, p50",
                "ms",
                append["p50_ms"],
                limits={raw: append["raw_write_fdatasync_p50_ms"]},
            ),
            Figure(
                f"{name}: bulk append with snapshots, {bulk['batch']} a batch",
                "events/s",
                bulk["events_per_s"],
                less=False,
                limits={raw: bulk["raw_write_fdatasync_events_per_s"]},
            ),
            Figure(
                f"{name}: full fold of {size(row['events'])}",
                "events/s",
                fold["events_per_s"],
                less=False,
                limits={
                    "cursor scan": fold["cursor_scan_events_per_s"],
                    "msgspec decode": fold["decode_alone_events_per_s"],
                    "bare fold": fold["bare_fold_events_per_s"],
                },
            ),
            Figure(
                f"{name}: resume, tail {resume['tail_events']:,}",
                "ms",
                resume["resume_ms"],
                limits={"scan and decode of the tail": resume["scan_and_decode_of_the_tail_ms"]},
            ),
            Figure(
                f"{name}: fork, p50", "ms", forks["fork_p50_ms"], limits={raw: forks["raw_write_fdatasync_p50_ms"]}
            ),
        ]
    return found


def peer_figures(part: dict[str, Any]) -> list[Figure]:
    """Return the comparison: one figure for each question and length that we were measured at."""
    peers: dict[str, dict[str, Any]] = part["peers"]
    if "points" not in peers.get("tailfold", {}):
        return []
    found = [
        _compared(part, "peers: durable append, p50", "ms", ("append", "p50_ms")),
        _compared(part, "peers: durable append, p99", "ms", ("append", "p99_ms")),
        _compared(part, "peers: disk bytes, one by one, times the text", "x", ("append", "times_text")),
    ]
    listed = {
        name: _each_session(peer.get("list", {})) if "list" in peer else _absent(peer)
        for name, peer in peers.items()
    }
    found.append(_figure("peers: listing, for each session listed", "µs", listed))
    for point in peers["tailfold"]["points"]:
        events = point["events"]
        at = f"at {size(events)}"
        for label, unit, path, less in POINTS:
            values = {name: _at(peer, events, path) for name, peer in peers.items()}
            figure = _figure(f"peers: {label} {at}", unit, values, less=less)
            if figure.ours:
                found.append(figure)
    return [figure for figure in found if figure.ours]


POINTS: list[tuple[str, str, tuple[str, ...], bool]] = [
    ("bulk append", "events/s", ("bulk_events_per_s",), False),
    ("resume", "ms", ("resume_ms",), True),
    ("first resume of a process", "ms", ("resume_first_ms",), True),
    ("memory of a fresh process that resumes", "MB", ("rss_mb",), True),
    ("full rebuild", "ms", ("rebuild", "ms"), True),
    ("fork", "ms", ("fork", "fork_ms"), True),
    ("first load of the fork", "ms", ("fork", "first_load_ms"), True),
    ("disk bytes of a bulk append", "bytes", ("disk_bytes",), True),
]


def _compared(part: dict[str, Any], label: str, unit: str, path: tuple[str, ...]) -> Figure:
    return _figure(label, unit, {name: _value(peer, path) for name, peer in part["peers"].items()})


def _figure(label: str, unit: str, values: dict[str, float | str], *, less: bool = True) -> Figure:
    ours = values.pop("tailfold")
    return Figure(label, unit, ours if isinstance(ours, float | int) else 0.0, less=less, peers=values)


def _each_session(listed: dict[str, Any]) -> float | str:
    if "ms" in listed:
        return float(listed["ms"] * 1000 / max(1, listed["sessions"]))
    return f"not offered: {listed['not_offered']}" if "not_offered" in listed else "not measured"


def _absent(peer: dict[str, Any]) -> str:
    if "not_installed" in peer:
        return f"not installed: {peer['install']}"
    return "not measured: " + ("; ".join(peer.get("cut_off", ())) or "no reason known")


def _value(found: dict[str, Any], path: tuple[str, ...]) -> float | str:
    value: Any = found
    for key in path:
        if isinstance(value, dict) and "not_offered" in value:
            return f"not offered: {value['not_offered']}"
        if key not in value:
            return _absent(found)
        value = value[key]
    if isinstance(value, dict):
        return f"not offered: {value['not_offered']}"
    number: float = float(value)
    return number


def _at(peer: dict[str, Any], events: int, path: tuple[str, ...]) -> float | str:
    if "points" not in peer:
        return _absent(peer)
    for point in peer["points"]:
        if point["events"] == events:
            return _value({**point, "cut_off": peer["cut_off"]}, path)
    return "cut off " + ("; ".join(peer["cut_off"]) or "before")
