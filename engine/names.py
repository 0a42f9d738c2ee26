"""What may be a stream name, a kind or a run id. Everything that enters the log by name passes here."""

from __future__ import annotations

import re
from functools import lru_cache

from tailfold.engine.errors import BadArgument

STREAM_NAME_MAX_BYTES = 255
KIND_MAX_BYTES = 64
RUN_ID_MAX_CHARS = 128
NAMES_REMEMBERED = 4096
"""Stream names that were checked: every append names one."""

_CONTROL = re.compile("[\x00-\x1f\x7f\u2028\u2029]")
_KIND = re.compile(r"[a-z][a-z0-9_.]*\Z")
_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\Z")


def check_stream_name(name: str) -> str:
    """Return *name* if it may name a stream: 1..255 bytes of UTF-8 without control characters."""
    if not isinstance(name, str):
        raise BadArgument(f"a stream name is a text, not {name!r:.60}")
    return _checked_stream_name(name)


@lru_cache(maxsize=NAMES_REMEMBERED)
def _checked_stream_name(name: str) -> str:
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise BadArgument(f"stream name {name!r} cannot be written as UTF-8") from None
    if not 1 <= size <= STREAM_NAME_MAX_BYTES:
        raise BadArgument(f"a stream name has 1 to {STREAM_NAME_MAX_BYTES} bytes of UTF-8, this one has {size}")
    if _CONTROL.search(name):
        raise BadArgument(f"stream name {name!r} contains a control character")
    return name


def check_kind(kind: str) -> str:
    """Return *kind* if it may name a kind of event: lower case, digits, ``_`` and ``.``, 1..64 long."""
    if not isinstance(kind, str) or len(kind) > KIND_MAX_BYTES or not _KIND.match(kind):
        raise BadArgument(
            f"kind {kind!r} must be 1 to {KIND_MAX_BYTES} of a-z, 0-9, '_' and '.', and begin with a letter"
        )
    return kind


def check_run_id(run_id: str) -> str:
    """Return *run_id* if it may name a run: a stream name that is also safe in a shell and as a file name."""
    if len(run_id) > RUN_ID_MAX_CHARS or ".." in run_id or not _RUN_ID.match(run_id):
        raise BadArgument(
            f"run id {run_id[:40]!r} must be 1 to {RUN_ID_MAX_CHARS} of letters, digits, '.', '_' and '-',"
            " begin with a letter or digit, and not contain '..'"
        )
    return run_id
