"""``python -m benchmarks NAME``: each benchmark prints a table, or JSON with --json. Never a timed test."""

from __future__ import annotations

import argparse
import json
import platform
import sqlite3
import sys
from importlib import metadata
from typing import Any

from benchmarks import append, compare, fold, follow, fork, guard, report, resume, seal, sessions, suite, upcast
from benchmarks import list as listing
from benchmarks.peers.catalogue import CATALOGUE

BENCHMARKS = {
    "append": append,
    "fold": fold,
    "follow": follow,
    "fork": fork,
    "list": listing,
    "peers": compare,
    "resume": resume,
    "seal": seal,
    "sessions": sessions,
    "upcast": upcast,
    "all": suite,
    "guard": guard,
    "report": report,
}


PACKAGES = ("tailfold", "lmdb", "msgspec", *(package for entry in CATALOGUE.values() for package in entry.packages))


def versions() -> dict[str, str]:
    found = {"python": platform.python_version(), "sqlite": sqlite3.sqlite_version, "platform": platform.platform()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    names = parser.add_subparsers(dest="name", required=True)
    for name, module in BENCHMARKS.items():
        sub = names.add_parser(name, help=(module.__doc__ or "").splitlines()[0])
        module.options(sub)
        sub.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    result: dict[str, Any] = BENCHMARKS[arguments.name].measure(arguments)
    result = {"benchmark": arguments.name, "versions": versions(), **result}
    if arguments.json:
        print(json.dumps(result))
    elif arguments.name == "all":
        suite.show(result)
    else:
        show(result)
    if result.get("too_many"):
        print("more work than the baseline: make it less, or guard --update with a reason", file=sys.stderr)
        return 1
    return 1 if result.get("run", {}).get("failed") else 0


def show(value: Any, indent: int = 0) -> None:
    for name, item in value.items():
        if isinstance(item, dict):
            print(" " * indent + f"{name}:")
            show(item, indent + 2)
        elif isinstance(item, list) and item and isinstance(item[0], dict):
            print(" " * indent + f"{name}:")
            for row in item:
                print(" " * (indent + 2) + "  ".join(f"{k}={_short(v)}" for k, v in row.items()))
        else:
            print(" " * indent + f"{name}: {_short(item)}")


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    sys.exit(main())
