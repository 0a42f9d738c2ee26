"""Report: the results of a run as benchmarks/RESULTS.md, with plots, and the README's table."""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

from benchmarks.bars import Judged, judge
from benchmarks.children import ROOT
from benchmarks.figures import Figure, Parts, all_figures, peer_figures, size
from benchmarks.plot import lines
from benchmarks.suite import PLAN, RESULTS

BEGIN, END = "<!-- benchmarks: begin -->", "<!-- benchmarks: end -->"
REPEAT = """```sh
pip install -e '.[bench]'
python -m benchmarks all --quick     # two minutes; --json for machines
python -m benchmarks all             # the full run
python -m benchmarks report          # RESULTS.md, its plots and the README's table, from what the run left
```"""


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--from", dest="source", type=Path, default=RESULTS, help="folder of a run's JSON")
    parser.add_argument("--to", type=Path, default=ROOT / "benchmarks", help="folder for RESULTS.md and plots/")
    parser.add_argument("--readme", type=Path, default=ROOT / "README.md", help="file whose table is replaced")


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    parts, run = load(arguments.source)
    if not parts:
        raise SystemExit(f"no results in {arguments.source}: python -m benchmarks all --quick")
    plots = draw(parts)
    (arguments.to / "plots").mkdir(parents=True, exist_ok=True)
    for name, svg in plots.items():
        (arguments.to / "plots" / f"{name}.svg").write_text(svg)
    (arguments.to / "RESULTS.md").write_text(results(parts, run, plots))
    text = arguments.readme.read_text()
    arguments.readme.write_text(within(text, table(parts, run)))
    written = [str(arguments.to / "RESULTS.md"), str(arguments.readme)]
    return {"written": [*written, *(str(arguments.to / "plots" / f"{name}.svg") for name in plots)]}


def load(folder: Path) -> tuple[Parts, dict[str, Any]]:
    """Return the parts of a run, and what is known about the run."""
    parts = {name: json.loads(path.read_text()) for name in PLAN if (path := folder / f"{name}.json").exists()}
    run_path = folder / "run.json"
    return parts, json.loads(run_path.read_text()) if run_path.exists() else {}


def within(text: str, block: str) -> str:
    """Return *text* with the marked block replaced."""
    pattern = re.compile(f"{re.escape(BEGIN)}.*?{re.escape(END)}", re.DOTALL)
    if not pattern.search(text):
        raise SystemExit(f"there is no {BEGIN} … {END} in the README")
    return pattern.sub(lambda _: f"{BEGIN}\n{block}\n{END}", text)


# -- README ------------------------------------------------------------------------------------------------


def table(parts: Parts, run: dict[str, Any]) -> str:
    """Return the README's table: the bars, and the peers at the largest length that we were measured at."""
    rows = [
        "| what | bar | measured | |",
        "|---|---|---|---|",
        *(f"| {one.what} | {one.bar} | {one.measured} | {_verdict(one)} |" for one in judge(parts)),
    ]
    found = [_about(run), "", *rows]
    if "peers" in parts:
        found += ["", *peer_table(parts["peers"], README_ROWS)]
    return "\n".join(found)


README_ROWS = ("durable append, p50", "resume at", "fork at", "memory of a fresh process", "listing")


def _about(run: dict[str, Any]) -> str:
    if not run:
        return "Measured on a machine that the results do not name."
    kind = "The quick run" if run.get("quick") else "The full run"
    load = max(run.get("load_at_start", [0])[0], run.get("load_at_end", [0])[0])
    machine = run.get("machine", {})
    what = f"{machine.get('cores')} cores of {machine.get('processor', 'an unnamed processor')}"
    return f"{kind} on {what}, {machine.get('memory_gb')} GB; load average up to {load:.1f}."


def _verdict(one: Judged) -> str:
    verdict = one.verdict if one.verdict == "met" else f"**{one.verdict}**"
    return f"{verdict}, {one.at}" if one.at else verdict


# -- RESULTS.md --------------------------------------------------------------------------------------------


def results(parts: Parts, run: dict[str, Any], plots: dict[str, str]) -> str:
    """Return the whole page."""
    figures = all_figures(parts)
    versions = next(iter(parts.values()))["versions"]
    out = ["# What replay costs: results", "", _about(run)]
    for name, why in run.get("failed", {}).items():
        out.append(f"**{name} failed**: {why}.")
    out += [
        "",
        "This page is written by `python -m benchmarks report`; nothing in it is by hand. To repeat it:",
        "",
    ]
    out += [REPEAT, "", "Versions: " + ", ".join(_named(versions)) + "."]
    out += ["", _durability(parts)]
    out += ["", "## The bars", "", "| what | bar | measured | |", "|---|---|---|---|"]
    out += [f"| {one.what} | {one.bar} | {one.measured} | {_verdict(one)} |" for one in judge(parts)]
    if "peers" in parts:
        out += ["", "## Peers", "", *_durabilities(parts["peers"]), ""]
        out += [*peer_table(parts["peers"]), "", *_standing(parts["peers"])]
    if plots:
        out += ["", "## Plots", ""]
        out += [f"![{name.replace('-', ' ')}](plots/{name}.svg)\n" for name in plots]
    out += ["", "## Figures and their limits", ""]
    out += ["A ratio says how many times the limit we cost: 1.0x would be the limit itself.", ""]
    out += ["| figure | ours | limits of the same run |", "|---|---|---|"]
    out += [_limit_row(figure) for figure in figures if not figure.name.startswith("peers: ")]
    out += ["", "## What was run", ""]
    out += [f"- `python -m benchmarks {part['arguments']}`: {part['took_s']} s" for part in _timed(parts)]
    return "\n".join(out) + "\n"


def _named(versions: dict[str, str]) -> list[str]:
    return [f"{name} {version}" for name, version in versions.items() if name != "platform"]


def _durability(parts: Parts) -> str:
    raw = parts.get("append", {}).get("durable_alone", [])
    disk = f" A raw write+fdatasync takes {raw[0]['raw_write_fdatasync_p50_ms']:.3f} ms here." if raw else ""
    return (
        "Durability: an append of ours is `durable` (acknowledged means flushed) unless a row says otherwise; the "
        "long sessions that `resume`, `fork` and `list` read are filled `relaxed`. Each peer's is in its table."
        + disk
    )


def _timed(parts: Parts) -> list[dict[str, Any]]:
    return [part for part in parts.values() if "arguments" in part]


def _limit_row(figure: Figure) -> str:
    times = figure.times_limit()
    limits = "; ".join(f"{name} {number(value)}: {times[name]:.2f}x" for name, value in figure.limits.items())
    return f"| {figure.name} | {number(figure.ours)} {figure.unit} | {limits} |"


def _durabilities(part: dict[str, Any]) -> list[str]:
    """Say what each peer is, which versions were used, and where it was cut off."""
    out = [f"Sessions of the profile `{part['profile']}`; {part['budget_s']:g} s to append, for each stage.", ""]
    out += ["| peer | versions | durable on return? | cut off |", "|---|---|---|---|"]
    for name, peer in part["peers"].items():
        if "not_installed" in peer:
            lacking = ", ".join(peer["not_installed"])
            out.append(f"| {name} | **not installed**: {lacking} (`{peer['install']}`) | | |")
            continue
        versions = ", ".join(f"{package} {version}" for package, version in peer["versions"].items()) or "–"
        cut = "; ".join(peer["cut_off"]) or "–"
        out.append(f"| {name} | {versions} | {peer.get('durability', 'not measured')} | {cut} |")
    return out


def peer_table(part: dict[str, Any], only: tuple[str, ...] = ()) -> list[str]:
    """Return a table of figures by peers, the best of each row in bold; with *only*, at the largest length."""
    figures = peer_figures(part)
    if only:
        points = part["peers"]["tailfold"].get("points", ())
        last = f"at {size(points[-1]['events'])}" if points else ""
        names = [figure for figure in figures if figure.name[7:].startswith(only)]
        figures = [figure for figure in names if " at " not in figure.name or figure.name.endswith(last)]
        figures = [figure for figure in figures if "disk" not in figure.name]
    if not figures:
        return ["tailfold itself was not measured among the peers."]
    peers = list(figures[0].peers)
    out = [f"| | tailfold | {' | '.join(peers)} |", "|---|" + "---|" * (len(peers) + 1)]
    for figure in figures:
        times = figure.times_peer()
        best = min(times.values(), default=1.0)
        cells = [_cell(figure.ours, best >= 1)]
        cells += [_peer_cell(figure.peers[name], times.get(name), best) for name in peers]
        out.append(f"| {figure.name[7:]}, {figure.unit} | {' | '.join(cells)} |")
    return out


def _peer_cell(value: float | str, times: float | None, best: float) -> str:
    if isinstance(value, str):
        return value.split(":")[0].split(" at ")[0]
    return _cell(value, times is not None and times == best and best < 1)


def _cell(value: float, bold: bool) -> str:
    return f"**{number(value)}**" if bold else number(value)


def _standing(part: dict[str, Any]) -> list[str]:
    """Say in words where peers win, and what is not offered."""
    out = ["Where a peer is better than tailfold:", ""]
    lost = []
    for figure in peer_figures(part):
        if won := figure.won_by():
            lost.append(f"- {figure.name[7:]}: " + ", ".join(f"{name} ({times:.3g}x)" for name, times in won))
    out += lost or ["- nowhere in this run"]
    reasons = {
        f"- {name}, {figure.name[7:].split(' at ')[0].rstrip(',')}: {value.removeprefix('not offered: ')}"
        for figure in peer_figures(part)
        for name, value in figure.peers.items()
        if isinstance(value, str) and value.startswith("not offered")
    }
    return [*out, "", "What is not offered:", "", *(sorted(reasons) or ["- nothing"])]


def number(value: float) -> str:
    """Return a number with three digits that count."""
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


# -- plots -------------------------------------------------------------------------------------------------

PLOTS = (
    ("resume", "Resume: open the store, hold the state", "ms (median)", ("resume_ms",)),
    ("rebuild", "Full rebuild from the log", "ms", ("rebuild", "ms")),
    ("fork", "Fork at the head", "ms", ("fork", "fork_ms")),
    ("memory", "Memory of a process that resumes", "MB", ("rss_mb",)),
    ("bytes", "Bytes on disk, appended in bulk", "bytes", ("disk_bytes",)),
)


def draw(parts: Parts) -> dict[str, str]:
    """Return name → SVG of what can be drawn from these parts."""
    found: dict[str, str] = {}
    if "resume" in parts:
        points = [(row["events"], row["resume_ms"]) for row in parts["resume"]["sizes"]]
        folds = [(row["events"], row["full_fold_s"] * 1000) for row in parts["resume"]["sizes"]]
        found["resume-by-length"] = lines(
            "tailfold: resume with a fixed tail, and a full fold",
            "events of the session",
            "ms",
            {"resume": points, "full fold": folds},
        )
    if "peers" not in parts:
        return found
    for name, title, unit, path in PLOTS:
        series = {
            peer: _series(measured["points"], path)
            for peer, measured in parts["peers"]["peers"].items()
            if "points" in measured
        }
        if any(series.values()):
            found[f"peers-{name}"] = lines(title, "events of the session", unit, series)
    return found


def _series(points: list[dict[str, Any]], path: tuple[str, ...]) -> list[tuple[float, float]]:
    found = []
    for point in points:
        value: Any = point
        for key in path:
            value = value.get(key) if isinstance(value, dict) else None
        if isinstance(value, float | int) and value > 0:
            found.append((float(point["events"]), float(value)))
    return found
