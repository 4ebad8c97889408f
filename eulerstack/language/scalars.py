"""What a plain YAML scalar means.

YAML 1.1 as PyYAML reads it (so existing files keep their meaning), with two differences: `3e-4` and `-.5` are numbers,
and what YAML 1.1 silently turns into something else (017 is 15, 1:30 is 90, 2024-01-01 is a date) is refused.
"""

import re
from typing import Any

TRUE = frozenset(["true", "True", "TRUE", "yes", "Yes", "YES", "on", "On", "ON"])
FALSE = frozenset(["false", "False", "FALSE", "no", "No", "NO", "off", "Off", "OFF"])
NULL = frozenset(["", "~", "null", "Null", "NULL"])
INTEGER = re.compile(r"[-+]?(0|[1-9][0-9_]*)")
BASED = re.compile(r"[-+]?(0b[01_]+|0x[0-9a-fA-F_]+)")
FLOAT = re.compile(r"[-+]?([0-9][0-9_]*(\.[0-9_]*)?|\.[0-9][0-9_]*)([eE][-+]?[0-9]+)?")
SPECIAL = {
    ".inf": float("inf"),
    "+.inf": float("inf"),
    "-.inf": float("-inf"),
    ".nan": float("nan"),
}
OCTAL = re.compile(r"[-+]?0[0-9_]+")
SEXAGESIMAL = re.compile(r"[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?")
DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}|[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}([Tt]|[ \t]+)[0-9].*")
BIGGEST = 2**63

Trouble = tuple[str, str] | None


def read_scalar(text: str) -> tuple[Any, Trouble]:
    """The value of an unquoted scalar, and (what is wrong, fix) if YAML would read it as something unexpected."""
    if text in NULL:
        return None, None
    if text in TRUE or text in FALSE:
        return text in TRUE, None
    if text[0] in "+-.0123456789":
        return _number(text)
    return text, unusable(text)


def _number(text: str) -> tuple[Any, Trouble]:
    for pattern, reading in ((OCTAL, "an octal number"), (SEXAGESIMAL, "base sixty"), (DATE, "a date")):
        if pattern.fullmatch(text):
            return text, (f"YAML reads {text} as {reading}", "write the plain number, or quote it if it is text")
    value: Any = text
    if len(text) > 400:
        value = text
    elif INTEGER.fullmatch(text):
        value = int(text.replace("_", ""))
    elif BASED.fullmatch(text):
        value = int(text.replace("_", ""), 0)
    elif FLOAT.fullmatch(text):
        value = float(text.replace("_", ""))
    elif text.lower() in SPECIAL:
        value = SPECIAL[text.lower()]
    return value, unusable(value)


def unusable(value: Any) -> Trouble:
    """(what is wrong, fix) for a number beyond 64 bits or text that is no Unicode text."""
    if isinstance(value, int) and abs(value) >= BIGGEST:
        return "a number beyond 64 bits", "write a smaller number"
    if isinstance(value, str) and any("\ud800" <= c <= "\udfff" for c in value):
        return "half a surrogate pair is no text", "write the character itself"
    return None
