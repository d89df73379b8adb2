"""Any text in a database: what a column of text cannot hold is written in an escaped form.

PostgreSQL refuses the character 0, and no encoding has half a surrogate pair. Texts are only
compared for equality, so all that matters is that different texts stay different.
"""

from __future__ import annotations

import re

ESCAPE = "\uf8ff"  # of the private use area: seldom seen, and escaped itself
_UNFIT = re.compile(f"[\x00\ud800-\udfff{ESCAPE}]")
_ESCAPED = re.compile(f"{ESCAPE}([0-9a-f]{{4}})")


def to_text(text: str) -> str:
    """The text as it is stored.

    >>> from recollect.storage.sql.escapes import from_text, to_text
    >>> to_text("plain"), from_text(to_text("nul \\x00"))
    ('plain', 'nul \\x00')
    """
    if text.isascii() and "\x00" not in text:
        return text
    return _UNFIT.sub(lambda found: f"{ESCAPE}{ord(found[0]):04x}", text)


def from_text(stored: str | None) -> str | None:
    """The text that was stored."""
    if stored is None or ESCAPE not in stored:
        return stored
    return _ESCAPED.sub(lambda found: chr(int(found[1], 16)), stored)
