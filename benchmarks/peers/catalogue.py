"""Which peers there are, what they need, and how to install what is missing."""

from __future__ import annotations

import importlib
import importlib.util
from dataclasses import dataclass
from importlib import metadata

from benchmarks.peers.protocol import Peer

INSTALL = "pip install '.[bench]'"


@dataclass(frozen=True)
class Entry:
    """A peer by name; its module is imported only when it is measured."""

    name: str
    module: str
    made_by: str
    packages: tuple[str, ...] = ()
    """Distributions that it needs, beside the standard library and what tailfold needs itself."""

    def missing(self) -> list[str]:
        found = []
        for package in self.packages:
            try:
                metadata.version(package)
            except metadata.PackageNotFoundError:
                found.append(package)
        return found

    def versions(self) -> dict[str, str]:
        return {package: metadata.version(package) for package in self.packages}

    def load(self) -> type[Peer]:
        found: type[Peer] = getattr(importlib.import_module(f"benchmarks.peers.{self.module}"), self.made_by)
        return found


LANGGRAPH = ("langgraph", "langgraph-checkpoint", "langgraph-checkpoint-sqlite")

CATALOGUE = {
    entry.name: entry
    for entry in (
        Entry("tailfold", "tailfold_store", "Tailfold"),
        Entry("tailfold_every", "tailfold_store", "TailfoldEvery"),
        Entry("eventsourcing", "eventsourcing_sqlite", "EventSourcing", ("eventsourcing",)),
        Entry("langgraph", "langgraph_sqlite", "LangGraphFull", LANGGRAPH),
        Entry("langgraph_delta", "langgraph_sqlite", "LangGraphDelta", LANGGRAPH),
        Entry("jsonl", "jsonl", "Jsonl"),
        Entry("json_files", "json_files", "JsonFiles"),
        Entry("sqlite_full", "plain_sqlite", "PlainSqlite"),
        Entry("sqlite_normal", "plain_sqlite", "PlainSqliteNormal"),
        Entry("dbos", "dbos_sqlite", "Dbos", ("dbos",)),
    )
}
