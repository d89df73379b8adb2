"""The command line: `recollect COMMAND`, or `python -m recollect COMMAND`.

Each command is a file of its own here with a function `add(commands)`, which says how it is
called, and is named in `COMMANDS`. It sets `run` to a function of the parsed arguments; what that
raises of our own errors becomes one sentence on stderr. The exit code is 2 for what was asked
wrongly, and 1 for what went wrong.
"""

from recollect.cli.main import main

__all__ = ["main"]
