"""Where the command begins: Ctrl-C while its modules are imported ends it as it does later, without a traceback."""

from __future__ import annotations

import sys


def main() -> None:
    """Import the command line, and run it. Ctrl-C waits until a command begins: see `interrupts`."""
    try:
        from tailfold.cli import interrupts

        interrupts.hold_back()
        from tailfold.cli.main import main as run
    except KeyboardInterrupt:
        sys.exit(130)
    run()
