"""`tailfold bench` as one page of HTML: no script, nothing from elsewhere, light and dark, wide and narrow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from tailfold.cli import svg
from tailfold.cli.amounts import digits, duration, percent, rate, size
from tailfold.engine.costs import Costs

KINDS_DRAWN = 12
POINTS_LEAST = 4
"""Fewer points are no curve."""

_STYLE = """
:root{--bg:#fbfbfa;--card:#fff;--fg:#1b1d21;--soft:#5b616b;--rule:#e2e4e8;--c0:#2563c9;--c1:#d97a1f;--c2:#1a8f6b;
--limit:#b3261e;color-scheme:light dark}
@media (prefers-color-scheme:dark){:root{--bg:#131518;--card:#1b1e23;--fg:#e9ebee;--soft:#a3abb7;--rule:#343941;
--c0:#79aefc;--c1:#f2a65a;--c2:#5fcfa8;--limit:#ff8a80}}
*{box-sizing:border-box}
body{margin:0;background:var(--bg);color:var(--fg);font:16px/1.5 system-ui,-apple-system,"Segoe UI",sans-serif}
main{max-width:1080px;margin:0 auto;padding:2rem 1.25rem 4rem}
h1{font-size:1.7rem;line-height:1.2;margin:0 0 .3rem}h2{font-size:1.15rem;margin:2.2rem 0 .6rem}
.soft{color:var(--soft)}.title{overflow-wrap:anywhere;margin:.2rem 0}
.answer{background:var(--card);border:1px solid var(--rule);border-left:4px solid var(--c0);border-radius:6px;
padding:1rem 1.2rem;margin:1.4rem 0}
.answer strong{font-size:1.25rem;display:block;margin-bottom:.25rem}.answer p{margin:0}
dl.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(155px,1fr));gap:.8rem;margin:1.2rem 0}
.tiles div{background:var(--card);border:1px solid var(--rule);border-radius:6px;padding:.7rem .9rem}
.tiles dt{color:var(--soft);font-size:.85rem}
.tiles dd{margin:0;font-size:1.25rem;font-weight:600;font-variant-numeric:tabular-nums}
.tiles small{display:block;color:var(--soft);font-weight:400;font-size:.8rem}
.plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,420px),1fr));gap:1.1rem}
figure{margin:0;background:var(--card);border:1px solid var(--rule);border-radius:6px;padding:.9rem 1rem}
figcaption{font-size:.9rem;margin-bottom:.4rem}figcaption b{display:block;font-size:1rem}
figcaption span{color:var(--soft)}
svg{display:block;width:100%;height:auto}
svg text{font:12.5px system-ui,-apple-system,"Segoe UI",sans-serif;fill:var(--fg)}
svg .label{fill:var(--soft)}svg .limit-text{fill:var(--limit)}
.grid{stroke:var(--rule);stroke-width:1}.line{fill:none;stroke-width:2.2}.limit{stroke:var(--limit);stroke-width:1.4;
stroke-dasharray:5 4}
.line.c0{stroke:var(--c0)}.line.c1{stroke:var(--c1)}.line.c2{stroke:var(--c2)}
.fill.c0,.dot.c0{fill:var(--c0)}.fill.c1,.dot.c1{fill:var(--c1)}.fill.c2,.dot.c2{fill:var(--c2)}
.wide{overflow-x:auto}table{border-collapse:collapse;width:100%;font-size:.92rem;font-variant-numeric:tabular-nums}
th,td{text-align:right;padding:.35rem .7rem;border-bottom:1px solid var(--rule);white-space:nowrap}
th:first-child,td:first-child{text-align:left}th{color:var(--soft);font-weight:500}
@media (max-width:600px){main{padding:1.2rem .8rem 3rem}figure{padding:.7rem .5rem}th,td{padding:.35rem .45rem}}
li{margin:.35rem 0}footer{margin-top:2.5rem;font-size:.88rem;color:var(--soft)}
""".strip()


def page(costs: Costs) -> str:
    """Return the page, complete."""
    body = "\n".join(
        [
            "<h1>What replay costs</h1>",
            f'<p class="title"><b>{_t(costs.stream)}</b>{f" · {_t(costs.title)}" if costs.title else ""}</p>',
            f'<p class="title soft">{costs.events:,} events, {size(costs.bytes)} of records, fold'
            f" {_t(costs.fold)}</p>",
            _answer(costs),
            _tiles(costs),
            *_notes(costs),
            '<div class="plots">',
            *_figures(costs),
            "</div>",
            *_tables(costs),
            _conditions(costs),
        ]
    )
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8"/>\n'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\"/>\n"
        '<meta name="viewport" content="width=device-width, initial-scale=1"/>\n'
        f"<title>What replay costs: {_t(costs.stream)}</title>\n<style>\n{_STYLE}\n</style>\n</head>\n"
        f"<body>\n<main>\n{body}\n</main>\n</body>\n</html>\n"
    )


def _t(text: str) -> str:
    """Escape what comes from a journal or from code; what a page may not hold is replaced."""
    return escape("".join(char if _is_allowed(char) else "\N{REPLACEMENT CHARACTER}" for char in text))


def _is_allowed(char: str) -> bool:
    return char >= " " and not "\x7f" <= char <= "\x9f" and not "\ud800" <= char <= "\udfff"


def _answer(costs: Costs) -> str:
    resume = costs.resume
    if resume.interval is not None:
        head = f"A snapshot every {resume.interval:,} events"
    elif resume.curve and resume.whole.resume_ms <= resume.budget_ms:
        head = "No snapshot is needed yet"
    else:
        head = "No interval meets the budget"
    return f'<div class="answer"><strong>{head}</strong><p>{_t(resume.reason)}</p></div>'


def _tiles(costs: Costs) -> str:
    walk, resume = costs.walk, costs.resume
    enough = rate(walk.events_per_s) if walk.events_per_s is not None else "too few events for a rate"
    tiles = [
        ("Whole replay, warm", duration(walk.total_s), enough),
        ("Resume, nothing to fold", duration(resume.fixed_ms / 1000), _cold(resume.cold_ms)),
    ]
    if costs.forks:
        fork = costs.forks[-1]
        tiles.append(("A fork at the head", duration(fork.fork_ms / 1000), "durable"))
    if costs.context is not None:
        last = costs.context.points[-1]
        where = f"turn {last.turn:,}, " if last.turn is not None else ""
        tiles.append(
            ("A request", duration((last.build_ms + last.encode_ms) / 1000), f"{where}{size(last.request_bytes)}")
        )
    steps = costs.upcasting
    share = percent(steps.share_of_walk) if steps.share_of_walk is not None else "none"
    tiles.append(
        ("Upcasting", share, f"{steps.old_events:,} old events" if steps.old_events else "all are current")
    )
    tiles.append(("A resumed state keeps", size(costs.memory.resume_bytes), "in memory"))
    cells = "".join(f"<div><dt>{_t(n)}</dt><dd>{_t(v)}<small>{_t(u)}</small></dd></div>" for n, v, u in tiles)
    return f'<dl class="tiles">{cells}</dl>'


def _cold(cold_ms: float | None) -> str:
    return f"cold, with opening: {duration(cold_ms / 1000)}" if cold_ms is not None else "warm"


def _figure(title: str, text: str, plot: str) -> str:
    return f"<figure><figcaption><b>{_t(title)}</b><span>{_t(text)}</span></figcaption>\n{plot}\n</figure>"


def _figures(costs: Costs) -> Iterator[str]:
    resume = costs.resume
    number = svg.Axis("", _count, log=True)
    points = [(float(point.tail), point.resume_ms) for point in resume.curve if point.tail]
    if len(points) >= 2:
        up = [svg.Limit(resume.interval, f"every {resume.interval:,}")] if resume.interval is not None else []
        yield _figure(
            "Resume against its tail",
            "Time until a driver has its state, by the events after the snapshot. Both axes are logarithmic.",
            svg.lines(
                "Resume time against the length of the tail",
                [svg.Line("resume", points)],
                number._replace(label="events after the snapshot"),
                svg.Axis("", _ms, log=True),
                across=[svg.Limit(resume.budget_ms, f"budget {resume.budget_ms:g} ms")],
                up=up,
            ),
        )
    if len(costs.segments) >= 2:
        yield _figure(
            "Along the stream",
            "Time for one event, on average over a stretch. Rising means: events cost more as the state grows.",
            svg.areas(
                "Cost of an event along the stream",
                [float(segment.upto) for segment in costs.segments],
                [
                    svg.Layer("decode", [segment.decode_us for segment in costs.segments]),
                    svg.Layer("fold", [segment.fold_us for segment in costs.segments]),
                    svg.Layer("garbage collection", [segment.collector_us for segment in costs.segments]),
                ],
                svg.Axis("version", _count),
                svg.Axis("", lambda us: f"{us:g} µs" if us >= 1 or us == 0 else f"{us:.2g} µs"),
            ),
        )
    kinds = costs.kinds[:KINDS_DRAWN]
    yield _figure(
        "Which kinds it goes to",
        "Time of all events of a kind: decoding them, and their handlers."
        + (f" The first {KINDS_DRAWN} of {len(costs.kinds)}." if len(costs.kinds) > KINDS_DRAWN else ""),
        svg.bars(
            "Time by kind of event",
            [f"{kind.stored} × {kind.events:,}" for kind in kinds],
            [
                svg.Layer("decode", [(kind.decode_us or 0.0) * kind.events / 1e6 for kind in kinds]),
                svg.Layer("handler", [(kind.handler_us or 0.0) * kind.events / 1e6 for kind in kinds]),
            ],
            [percent(kind.share) if kind.share is not None else "" for kind in kinds],
            duration,
        ),
    )
    context = costs.context
    if context is not None and len(context.points) >= POINTS_LEAST:
        by_turn = all(point.turn for point in context.points)
        xs = [float(point.turn or 0) if by_turn else float(point.version) for point in context.points]
        yield _figure(
            "Making a model's request",
            "From the state: building it, its JSON, and the first one after a resume. Both axes are logarithmic.",
            svg.lines(
                "Cost of a request as the conversation grows",
                [
                    svg.Line("build", [(x, p.build_ms) for x, p in zip(xs, context.points, strict=True)]),
                    svg.Line("encode", [(x, p.encode_ms) for x, p in zip(xs, context.points, strict=True)]),
                    svg.Line("first, resumed", [(x, p.first_ms) for x, p in zip(xs, context.points, strict=True)]),
                ],
                number._replace(label="turn" if by_turn else "version"),
                svg.Axis("", _ms, log=True),
            ),
        )


def _count(value: float) -> str:
    for factor, unit in ((1e6, "M"), (1e3, "k")):
        if value >= factor:
            return f"{value / factor:g}{unit}" if value % factor == 0 else f"{value / factor:.3g}{unit}"
    return f"{value:g}"


def _ms(value: float) -> str:
    if value >= 1000:
        return f"{value / 1000:.3g} s"
    return f"{value:.3g} ms" if value >= 1 else f"{value * 1000:.3g} µs"


def _notes(costs: Costs) -> Iterator[str]:
    if costs.notes:
        yield "<h2>To know</h2>"
        yield "<ul>" + "".join(f"<li>{_t(note)}</li>" for note in costs.notes) + "</ul>"


def _tables(costs: Costs) -> Iterator[str]:
    yield "<h2>Replay, all events</h2>"
    walk = costs.walk
    yield _table(
        ("part", "time", "rate"),
        [
            ("read", duration(walk.read_s), ""),
            ("decode", duration(walk.decode_s), _rate(walk.decode_events_per_s)),
            ("fold", duration(walk.fold_s), _rate(walk.fold_events_per_s)),
            ("garbage collection", duration(walk.collector_s), ""),
            ("all", duration(walk.total_s), _rate(walk.events_per_s)),
        ],
    )
    yield "<h2>Kinds</h2>"
    yield _table(
        ("kind", "events", "bytes", "decode", "handler", "share"),
        [
            (
                kind.stored,
                f"{kind.events:,}",
                size(kind.bytes),
                f"{digits(kind.decode_us)} µs" if kind.decode_us is not None else "–",
                f"{digits(kind.handler_us)} µs" if kind.handler_us is not None else "no handler",
                percent(kind.share) if kind.share is not None else "–",
            )
            for kind in costs.kinds
        ],
    )
    yield from _resume_tables(costs)
    yield "<h2>Forks</h2>"
    yield _table(
        ("at version", "fork, durable", "first load", "events it folds", "store grows by"),
        [
            (
                f"{fork.at:,}",
                duration(fork.fork_ms / 1000),
                duration(fork.first_load_ms / 1000),
                f"{fork.tail:,}",
                size(fork.added_bytes),
            )
            for fork in costs.forks
        ],
    )
    if costs.context is not None:
        yield from _context_table(costs)
    steps = costs.upcasting
    if steps.lifted_us is not None and steps.current_us is not None and steps.share_of_decode is not None:
        yield "<h2>Upcasting</h2>"
        yield (
            f"<p>{steps.old_events:,} events are lifted, by up to {steps.steps} steps. Decoding one takes"
            f" {digits(steps.lifted_us)} µs; stored at the current version it would take"
            f" {digits(steps.current_us)} µs. That is {percent(steps.share_of_decode)} of decoding and"
            f" {percent(steps.share_of_walk or 0.0)} of the replay.</p>"
        )


def _resume_tables(costs: Costs) -> Iterator[str]:
    resume = costs.resume
    yield "<h2>Resumes</h2>"
    yield _table(
        ("events after the snapshot", "resume", "repeats"),
        [
            *((f"{point.tail:,}", duration(point.resume_ms / 1000), f"{point.repeats}") for point in resume.curve),
            (
                f"{resume.whole.tail:,}: all, no snapshot",
                duration(resume.whole.resume_ms / 1000),
                f"{resume.whole.repeats}",
            ),
        ],
    )
    if resume.snapshot is not None:
        one = resume.snapshot
        yield (
            f"<p>A snapshot after {one.events:,} events takes {duration(one.encode_ms / 1000)} to encode and"
            f" {duration(one.write_ms / 1000)} to write (durable): {size(one.bytes)},"
            f" {percent(one.share_of_event_bytes)} of the bytes of those events and"
            f" {percent(one.share_of_fold_time)} of the time of folding them.</p>"
        )
    if resume.policy is not None and costs.walk.events_per_s is not None:
        policy = resume.policy
        yield (
            f"<p>The default policy, {_t(policy.policy)}, writes {policy.snapshots:,}"
            f" snapshot{'s' * (policy.snapshots != 1)} along"
            f" {policy.events:,} events"
            f" ({percent(policy.share_of_event_bytes)} of the event bytes); the longest tail is"
            f" {policy.longest_tail:,} events.</p>"
        )


def _context_table(costs: Costs) -> Iterator[str]:
    context = costs.context
    assert context is not None
    yield "<h2>Requests</h2>"
    yield _table(
        ("at version", "turn", "build", "encode", "first, resumed", "size"),
        [
            (
                f"{point.version:,}",
                f"{point.turn:,}" if point.turn is not None else "–",
                duration(point.build_ms / 1000),
                duration(point.encode_ms / 1000),
                duration(point.first_ms / 1000),
                size(point.request_bytes),
            )
            for point in context.points
        ],
    )
    if context.total_s is not None and context.turns:
        yield f"<p>All requests up to turn {context.turns:,} together: {duration(context.total_s)}.</p>"


def _rate(per_s: float | None) -> str:
    return rate(per_s) if per_s is not None else ""


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{_t(cell)}</th>" for cell in header)
    body = "\n".join("<tr>" + "".join(f"<td>{_t(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="wide"><table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table></div>'


def _conditions(costs: Costs) -> str:
    how, memory = costs.conditions, costs.memory
    peak = (
        f" The measuring process had {size(memory.process_peak_bytes)} at its peak, mapped pages of the store"
        " included."
        if memory.process_peak_bytes is not None
        else ""
    )
    return (
        f"<footer><p>Measured in {_t(how.place)}, in {how.took_s:.0f} s. Medians of {how.repeats} repeats or more;"
        f" {how.walks} walks through the stream. Warm, unless it says cold: cold is a store just opened, its file"
        f" dropped from the page cache where the system does that. {_t(how.python)}, {how.processors} processors;"
        f" the garbage collector was {'on' if how.collector else 'off'}, and off for single kinds."
        f" {memory.folded_events:,} events folded without a snapshot keep {size(memory.folded_bytes)} in"
        f" memory.{peak}</p></footer>"
    )
