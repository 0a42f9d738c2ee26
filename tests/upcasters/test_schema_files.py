"""Files of the lock and of the corpus: what is none is refused with its place."""

from __future__ import annotations

import pytest
from tailfold.upcasters import (
    corpus,
)
from tailfold.upcasters.errors import LockError, LockTooNewError
from tailfold.upcasters.lock import parse


@pytest.mark.parametrize(
    ("text", "error", "says"),
    [
        ("{", LockError, "not JSON"),
        ("<<<<<<< HEAD\n{}", LockError, "marks of a merge"),
        ("[]", LockError, "no schema lock"),
        ('{"lock": 2}', LockTooNewError, "lock format 2"),
        ('{"lock": 1}', LockError, "kinds"),
        (
            '{"lock": 1, "kinds": {"k": {"current": 1, "versions": {"1": {"fields": {"a": {"type": "1 +",'
            ' "required": true}}}}}}, "steps": {}, "retired": []}',
            LockError,
            "is no type",
        ),
        ('{"lock": 1, "kinds": {}, "steps": {}, "retired": ["x"]}', LockError, "x"),
    ],
)
def test_a_file_that_is_no_lock_is_refused(text: str, error: type[LockError], says: str) -> None:
    with pytest.raises(error, match=says):
        parse(text)


@pytest.mark.parametrize("text", ["{", '{"kind":"k","version":1,"payload":{},"msgpack":"??"}'])
def test_a_file_that_is_no_corpus_is_refused_with_its_line(text: str) -> None:
    with pytest.raises(LockError, match="line 2"):
        corpus.parse("\n" + text)
