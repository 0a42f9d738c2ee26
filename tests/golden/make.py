"""Writes the golden store of a format: ``python -m tests.golden.make``. Once a format, then kept for ever.

tests/test_upgrade.py opens what this wrote with every later release. A golden file is never written again: a
change of bytes is a new format version, with a folder of its own.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import sys
import tempfile
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
from tailfold.engine import Blob, Event, Store
from tailfold.engine.agent.events import AGENT_EVENTS
from tailfold.engine.agent.models import RuleModel
from tailfold.engine.agent.runtime import start
from tailfold.engine.agent.state import run_fold
from tailfold.engine.agents.comparetiers import comparetiers, rule, shipped
from tailfold.engine.backend.port import FORMAT_VERSION
from tailfold.engine.migration import Schema, migrate
from tailfold.snapshots import state_hash

from tests import shop
from tests.domain import Attached, Deposited, Noted, Withdrawn, account

FOLDER = Path(__file__).parent
EVENTS: list[type[Event]] = [*AGENT_EVENTS, Deposited, Noted, Withdrawn, Attached]


SHOP: list[type[Event]] = [shop.Paid, shop.Sent, shop.Rated, shop.Grown, shop.Filed]
"""The current events of the shop, but for one whose kind the account has as well."""


def facts(store: Store) -> dict[str, Any]:
    """Return what every later release has to find in the store."""
    more: dict[str, Any] = {}
    if store.backend.head("shop") is not None:  # since format 2
        more["shop"] = [
            [r.version, r.sub, r.kind, r.stored, msgspec.to_builtins(r.event, enc_hook=_shown)]
            for r in store.read("shop")
        ]
    if store.named_heads():  # since format 3
        more["tree"] = [list(branch) for branch in store.tree()]
        more["forks"] = {name: state_hash(store.load(name, account).state) for name in ("account.2", "account.3")}
        more["resolved"] = store.resolve("account")
    if store.backend.head("long") is not None:  # since format 4
        more["long"] = [state_hash(store.load("long", account, at).state) for at in (1, 256, 257, 600)]
    if store.backend.head("late") is not None:  # since format 5
        more["late"] = [[r.version, r.position, msgspec.to_builtins(r.event)] for r in store.read("late")]
    run = store.load("r-1", run_fold).state
    heads = {head.stream: [head.version, head.hash.hex()] for head in store.streams()}
    return {
        "heads": heads,
        "account": state_hash(store.load("account", account).state),
        "run": [run.status, run.turn, run.answer],
        "events": store.backend.count()[1],
        **more,
    }


def branch(store: Store) -> None:
    """Fork the account, rewind it, and delete streams: one that a fork needs, and one that nobody does."""
    store.fork("account", at=2)
    store.append("account.2", Deposited(100, "on a branch"), expected=2)
    store.rewind("account", at=1)
    store.fork("account.2", at=3, name="leaf")
    store.append("passing", [Deposited(1), Attached("gone.txt", Blob(b"gone"))], expected=0)
    store.append("trunk", [Deposited(1), Deposited(2), Deposited(3)], expected=0)
    store.fork("trunk", at=2, name="twig")
    store.delete("passing")
    store.delete("trunk", reroot=True)
    store.gc()


def _shown(value: Any) -> Any:
    return value.data.decode() if isinstance(value, Blob) else repr(value)


def main() -> None:
    target = FOLDER / f"format-{FORMAT_VERSION}"
    if target.exists():
        sys.exit(f"{target} exists: golden files are never written again")
    clock = count(1_700_000_000_000_000_000, 1_000_000)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "store"
        with Store.open(path, clock=lambda: next(clock)) as store:
            store.append("account", [Deposited(10, "first"), Withdrawn(3)], expected=0, key="k")
            store.append("account", Noted("ünï", {"deep": [1, {"x": None}]}), expected=2, causation="account@1")
            store.append("files", Attached("a.txt", Blob(b"content " * 50)), expected=0, correlation="talk")
            agent = comparetiers(shipped(), "shipped")
            question = "How much is Notion Plus for 5 seats, billed monthly?"
            asyncio.run(start(store, "r-1", agent, RuleModel(rule), question))
            old_shop = Store.open(backend=store.backend, events=shop.OLD, clock=lambda: next(clock))
            parts = [shop.OldPaid(3), shop.OldMoved(5, "bob"), shop.OldBasket([1, 2]), shop.Pinged(1)]
            old_shop.append("shop", [*parts, shop.OldRated(4)], expected=0, key="k")
            old_shop.append("shop", [shop.Foreign({"x": [1, None]}), shop.OldGrown(2)], expected=5, key="k2")
            old_shop.append("shop", shop.Filed("b.txt", Blob(b"more")), expected=7, key="k3")
        made = Path(folder) / "migrated"
        steps = Schema(shop.upcasters, (shop.till,))
        migrated = migrate(
            path, made, lambda stream: steps if stream == "shop" else None, clock=lambda: next(clock)
        )
        assert migrated.sound
        path = made
        with Store.open(path, events=[*SHOP, *EVENTS], clock=lambda: next(clock)) as store:
            branch(store)
            store.append("long", [Deposited(i, f"note {i}") for i in range(600)], expected=0)
            assert store.seal("long").segments == 2
            assert store.seal("account", whole=False).segments == 1, "a fork needs it, and cannot tell"
        settled = (path / "data.mdb").read_bytes()
        with Store.open(path, events=[*SHOP, *EVENTS], clock=lambda: next(clock)) as store:
            assert store.format == FORMAT_VERSION
            for i in range(3):
                store.append("late", Deposited(i, f"only in data.wal: {i}"), expected=i)
            found = facts(store)
            ahead = (path / "data.wal").read_bytes()
        # What a power cut leaves that took all of data.mdb that was not flushed.
        target.mkdir()
        (target / "data.mdb.gz").write_bytes(gzip.compress(settled, mtime=0))
        (target / "data.wal.gz").write_bytes(gzip.compress(ahead, mtime=0))
    (target / "facts.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
