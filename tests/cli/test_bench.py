"""The command bench: what it prints and writes, that it refuses early, and that the store is left as it was."""

from __future__ import annotations

import hashlib
import shutil
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from tailfold.cli import svg
from tailfold.cli.amounts import digits, duration, percent, rate, size
from tailfold.cli.charts import bar, sparkline
from tailfold.engine import Durability, LmdbBackend, Store

from tests.cli.command import QUESTION, json_lines, tailfold
from tests.cli.test_terminal import on_a_terminal
from tests.shop import Paid

HOSTILE = 'How much is <script>alert(1)</script> & "Notion" Plus?'
VOID = {"meta", "link", "br", "hr", "img", "input"}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bench") / "store"
    assert tailfold(path, "run", QUESTION, "--model", "rules", "--run-id", "r-1").returncode == 0
    assert tailfold(path, "run", HOSTILE, "--model", "rules", "--run-id", "r-<b>&").returncode in (0, 2)
    assert tailfold(path, "run", HOSTILE, "--model", "rules", "--run-id", "r-2").returncode == 0
    with Store.open(backend=LmdbBackend(path, durability=Durability.RELAXED)) as opened:
        opened.append("till <1>", [Paid(100, "EUR")] * 30, expected=0)
    return path


def fingerprint(store: Path) -> tuple[str, int]:
    data = store / "data.mdb"
    return hashlib.sha256(data.read_bytes()).hexdigest(), data.stat().st_mtime_ns


class Page(HTMLParser):
    """Reads a page strictly: every element is closed where it has to be."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.text: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def test_json_has_every_part_and_the_store_is_left_byte_for_byte(store: Path) -> None:
    before = fingerprint(store)
    done = tailfold(store, "bench", "r-1", "--repeat", "1", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert fingerprint(store) == before
    [costs] = json_lines(done)
    assert set(costs) == {
        "stream", "title", "fold", "events", "bytes", "conditions", "walk", "segments", "kinds", "upcasting",
        "resume", "forks", "context", "memory", "notes",
    }  # fmt: skip
    assert (costs["stream"], costs["fold"], costs["events"], costs["title"]) == ("r-1", "agent_run", 12, QUESTION)
    assert sum(kind["events"] for kind in costs["kinds"]) == 12
    assert costs["resume"]["budget_ms"] == 10.0
    assert costs["context"]["points"][-1]["turn"] == 3
    assert "only read" in costs["conditions"]["place"]


def test_a_small_run_is_told_without_rates(store: Path) -> None:
    done = tailfold(store, "bench", "r-1", "--repeat", "1")
    assert done.returncode == 0
    assert "12 events are too few" in done.stdout
    assert "events/s" not in done.stdout
    assert not set("▁▂▃▄▅▆▇█") & set(done.stdout), "no charts in a pipe"


def test_a_made_up_session_has_rates_and_leaves_nothing_behind(tmp_path: Path) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    page = tmp_path / "report.html"
    done = tailfold(
        tmp_path / "none",
        "bench",
        "--synthetic",
        "3000",
        "--repeat",
        "1",
        "--html",
        str(page),
        TMPDIR=str(temporary),
    )
    assert (done.returncode, done.stderr) == (0, f"tailfold: wrote {page}\n")
    assert "3,000 events" in done.stdout
    assert "events/s" in done.stdout
    assert list(temporary.iterdir()) == []
    assert not (tmp_path / "none").exists()
    assert Page(page.read_text()).tags.count("svg") == 4


def test_the_page_is_whole_needs_no_network_and_takes_no_text_for_markup(store: Path, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    assert tailfold(store, "bench", "r-2", "--repeat", "1", "--html", str(file)).returncode == 0
    text = file.read_text()
    page = Page(text)
    assert "script" not in page.tags
    assert HOSTILE in "".join(page.text)
    assert page.tags.count("svg") == page.tags.count("figure") >= 1
    assert {"link", "img", "iframe", "object", "base"}.isdisjoint(page.tags)
    loads = [value for name, value in page.attributes if name in ("src", "href", "srcset", "data", "xlink:href")]
    assert loads == []
    assert [value for name, value in page.attributes if "://" in value and name != "xmlns"] == []
    assert "url(" not in text
    assert "@import" not in text
    for start in [i for i in range(len(text)) if text.startswith("<svg", i)]:
        ElementTree.fromstring(text[start : text.index("</svg>", start) + len("</svg>")])


def test_a_fold_and_events_of_ones_own_are_measured(store: Path) -> None:
    options: tuple[str, ...] = ("--fold", "tests.shop:till", "--events", "tests.shop:upcasters", "--repeat", "1")
    [costs] = json_lines(tailfold(store, "bench", "till <1>", *options, "--json"))
    assert (costs["fold"], costs["events"], costs["title"], costs["context"]) == ("till", 30, "", None)
    options += ("--request", "tests.cli.test_bench:asked")
    [costs] = json_lines(tailfold(store, "bench", "till <1>", *options, "--json"))
    assert costs["context"]["points"][-1]["version"] == 30
    assert costs["context"]["turns"] is None


def test_a_request_that_raises_is_named(store: Path) -> None:
    options = ("--fold", "tests.shop:till", "--events", "tests.shop:upcasters", "--repeat", "1")
    done = tailfold(store, "bench", "till <1>", *options, "--request", "tests.cli.test_bench:refuses")
    assert (done.returncode, done.stdout) == (2, "")
    assert "refuses raised KeyError" in done.stderr


def refuses(state: Any) -> None:
    raise KeyError("no")


def asked(state: Any) -> list[str]:
    """Stand in for what a user's agent makes of its state."""
    return [f"{state.cents} cents", *state.notes]


def test_names_with_markup_are_escaped_too(store: Path, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    options = (
        "--fold",
        "tests.shop:till",
        "--events",
        "tests.shop:upcasters",
        "--repeat",
        "1",
        "--html",
        str(file),
    )
    assert tailfold(store, "bench", "till <1>", *options).returncode == 0
    assert "till <1>" in "".join(Page(file.read_text()).text)
    assert "till <1>" not in file.read_text()


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("r-9",), 6, "r-9"),
        ((), 2, "give either RUN or --synthetic"),
        (("r-1", "--synthetic", "10"), 2, "give either RUN or --synthetic"),
        (("--synthetic", "10000001"), 2, "10000000"),
        (("--synthetic", "10", "--fold", "tests.shop:till"), 2, "of your own"),
        (("r-1", "--budget-ms", "0"), 2, "above 0"),
        (("r-1", "--budget-ms", "nan"), 2, "above 0"),
        (("r-1", "--repeat", "0"), 2, "repeat"),
        (("r-1", "--events", "nowhere:at_all"), 2, "no module"),
        (("r-1", "--events", "nothing"), 2, "MODULE:ATTR"),
        (("r-1", "--fold", "tests.shop:upcasters"), 2, "not a tailfold.engine.Fold"),
        (("r-1", "--request", "tests.shop:Paid"), 2, "not an Agent or a function"),
        (("till <1>",), 2, "--fold"),
        (("r-1", "--html", "no/such/folder/x.html"), 2, "no directory"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_anything_is_done(
    store: Path, arguments: tuple[str, ...], code: int, said: str
) -> None:
    before = fingerprint(store)
    done = tailfold(store, "bench", *arguments)
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    assert said in done.stderr
    assert fingerprint(store) == before


def test_a_page_is_written_over_only_with_force(store: Path, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    file.write_text("mine")
    done = tailfold(store, "bench", "r-1", "--html", str(file))
    assert (done.returncode, done.stdout, file.read_text()) == (2, "", "mine")
    assert "--force" in done.stderr
    assert tailfold(store, "bench", "r-1", "--repeat", "1", "--html", str(file), "--force").returncode == 0
    assert file.read_text().startswith("<!DOCTYPE html>")
    assert [one.name for one in tmp_path.iterdir()] == ["report.html"]


def test_a_store_that_only_can_be_read_is_measured(store: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(store, tmp_path / "copy"))
    for file in copy.iterdir():
        file.chmod(0o400)
    copy.chmod(0o500)
    try:
        assert tailfold(copy, "bench", "r-1", "--repeat", "1", "--json").returncode == 0
    finally:
        copy.chmod(0o700)


def test_progress_and_charts_are_shown_on_a_terminal(store: Path) -> None:
    code, shown = on_a_terminal("bench", "r-1", "--repeat", "1", "--store", str(store))
    assert code == 0, shown
    assert "folding the whole stream" in shown
    assert "█" in shown
    assert shown.rfind("\x1b[?25h") >= shown.rfind("\x1b[?25l"), "the cursor is visible again"


def test_amounts_have_three_digits_and_a_unit() -> None:
    assert [digits(v) for v in (0, 0.0123, 0.5, 3.14159, 31.4159, 314.159, 31415.9)] == [
        "0", "0.012", "0.50", "3.14", "31.4", "314", "31,400",
    ]  # fmt: skip
    assert [duration(s) for s in (2.0, 0.0021, 0.0000021)] == ["2.00 s", "2.10 ms", "2.10 µs"]
    assert [size(n) for n in (12, 1200, 3_400_000, 5e9)] == ["12 B", "1.20 KB", "3.40 MB", "5.00 GB"]
    assert [rate(n) for n in (12, 1200, 3_400_000)] == ["12.0 events/s", "1.20 k events/s", "3.40 M events/s"]
    assert [percent(s) for s in (0.0, 0.001, 0.256, 1.0)] == ["0 %", "<1 %", "26 %", "100 %"]


def test_charts_of_block_characters() -> None:
    assert [bar(share, 4) for share in (0, 0.5, 1, 2)] == ["    ", "██  ", "████", "████"]
    assert bar(1 / 32, 4) == "▏   "
    assert sparkline([0, 1, 2, 4]) == "▁▃▅█"
    assert sparkline([]) == sparkline([0.0]) == ""


@pytest.mark.parametrize("values", [[(1.0, 1.0)], [(1.0, 0.0), (2.0, 0.0)], [(10.0, 5e-4), (1e7, 9e6)]])
def test_plots_of_any_range_are_sound_and_inside_their_frame(values: list[tuple[float, float]]) -> None:
    for log in (True, False):
        axis = svg.Axis("<x>", str, log=log)
        drawn = svg.lines("<t>", [svg.Line("<a>", values)], axis, axis, across=[svg.Limit(3.0, "<l>")])
        tree = ElementTree.fromstring(drawn)
        for circle in tree.iter("{http://www.w3.org/2000/svg}circle"):
            assert 0 <= float(circle.attrib["cx"]) <= svg.WIDTH
            assert 0 <= float(circle.attrib["cy"]) <= svg.HEIGHT
