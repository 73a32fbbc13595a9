"""Text that is safe to show: no control characters, no direction overrides, nothing the encoding lacks."""

from __future__ import annotations

import unicodedata

_SPELLED = {
    "→": "->",
    "←": "<-",
    "\N{MULTIPLICATION SIGN}": "x",
    "µ": "u",
    "μ": "u",
    "\N{EN DASH}": "-",
    "—": "-",
    "…": "...",
    "±": "+-",
    "≤": "<=",
    "≥": ">=",
    "≈": "~",
    "°": " deg ",
    "\N{NO-BREAK SPACE}": " ",
    "\N{THIN SPACE}": " ",
    "\N{NARROW NO-BREAK SPACE}": " ",
}
_HIDDEN = {"Cc", "Cf", "Cs", "Co", "Zl", "Zp"}


def printable(text: str) -> str:
    r"""Show control, format (bidi, zero width), surrogate and private characters as `\x1b`-like escapes.

    A host name or command line comes from outside: it must not move the cursor, recolour the terminal, or turn the
    reading direction. Line breaks become spaces.
    """
    text = " ".join(text.splitlines()) if "\n" in text or "\r" in text else text
    if text.isascii() and text.isprintable():
        return text
    return "".join(_escaped(c) if unicodedata.category(c) in _HIDDEN else c for c in text)


def _escaped(character: str) -> str:
    code = ord(character)
    return " " if character == "\t" else f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def to_encoding(text: str, encoding: str) -> str:
    """`text` with what `encoding` can't express spelled out in ASCII (µ -> u, → -> ->) or shown as `?`."""
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        pass
    except LookupError:  # an encoding this Python does not know: ASCII is always safe
        encoding = "ascii"
    else:
        return text
    spelled = "".join(_SPELLED.get(c, c) for c in text)
    return spelled.encode(encoding, "replace").decode(encoding)
