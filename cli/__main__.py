"""``python -m tailfold.cli``: the command, where the console script is not on the path."""

from __future__ import annotations

from tailfold.cli.entry import main

main()
