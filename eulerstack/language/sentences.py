"""How the language speaks of itself: what a field expects, what was found, what could have been meant."""

import re
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from eulerstack.language.dialects import same_word

SIMPLE = {bool: "true or false", NoneType: "null"}
BOUNDS = {"gt": "above", "ge": "of at least", "lt": "below", "le": "of at most", "multiple_of": "a multiple of"}
# What only an expression would say: a variable, or numbers with signs between them.
EXPRESSION = re.compile(r"\$?(let\.\w+|[\d.]+\s*[-+*/]\s*)[\w.\s+*/()-]*")


def expectation(kind: Any, metadata: tuple = ()) -> str:
    """What a type of the schema accepts: `an integer above 0 or null`."""
    origin, args = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return expectation(args[0], (*_flat(args[1:]), *metadata))
    if origin in (Union, UnionType):
        return " or ".join(dict.fromkeys(expectation(option, metadata) for option in args))
    if origin is Literal:
        return "one of " + ", ".join(map(show, args)) if len(args) > 1 else show(args[0])
    if origin is tuple and args[-1] is not Ellipsis:
        return f"a list of {len(args)} numbers"
    if origin in (tuple, dict):
        least = _constraint(metadata, "min_length")
        return ("a list" if origin is tuple else "a mapping") + (f" of at least {least}" if least else "")
    if kind is int or kind is float:
        return _number("an integer" if kind is int else "a number", metadata)
    if kind is str:
        return "text that is not empty" if _constraint(metadata, "min_length") else "text"
    return SIMPLE.get(kind, "a mapping")


def _number(noun: str, metadata: tuple) -> str:
    bounds = [(words, _constraint(metadata, name)) for name, words in BOUNDS.items()]
    if (only := _constraint(metadata, "ge")) is not None and only == _constraint(metadata, "le"):
        return show(only)
    said = [f"{words} {show(bound)}" for words, bound in bounds if bound is not None]
    return " ".join([noun, " and ".join(said)]).strip()


def _flat(metadata: tuple) -> tuple:
    return tuple(m for item in metadata for m in (item.metadata if isinstance(item, FieldInfo) else [item]))


def _constraint(metadata: tuple, name: str) -> Any:
    return next((getattr(m, name) for m in metadata if getattr(m, name, None) is not None), None)


def show(value: Any) -> str:
    """A value as the file would spell it, short."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, dict | list):
        noun = "mapping" if isinstance(value, dict) else "list"
        return f"a {noun} of {len(value)}" if value else f"an empty {noun}"
    if isinstance(value, float):
        return str(int(value)) + ".0" if value.is_integer() and abs(value) < 1e15 else repr(value)
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:56]}...{text[0]}"


def spelling(value: Any, wanted: str) -> str:
    """Advice for a value that means the right thing but is spelled so that it has the wrong type, or ""."""
    number = wanted.startswith(("an integer", "a number"))
    if isinstance(value, str) and number and value.strip().lstrip("+-").isdigit():
        return f"write {value.strip()} without quotes"
    if isinstance(value, str) and number and _is_number(value):
        return f"write {float(value)!r} as a number (YAML 1.1 reads an exponent without a dot as text)"
    if value in ("None", "none", "nil") and wanted.endswith("null"):
        return "write null"
    if isinstance(value, str) and number and EXPRESSION.fullmatch(value.strip()):
        return f"an expression stands in braces: ${{{value.strip().lstrip('$')}}}"
    if isinstance(value, float) and value.is_integer() and wanted.startswith("an integer"):
        return f"write {int(value)}; an expression divides integers with //"
    if isinstance(value, bool) and "true" not in wanted and "text" in wanted:
        return "YAML reads yes, no, on, off as true and false; quote the text"
    return ""


def _is_number(text: str) -> bool:
    try:
        return abs(float(text)) < float("inf")
    except ValueError:
        return False


def nearest(word: Any, known: list[str]) -> str:
    """`did you mean 'window'? ` or ""."""
    meant = closest(word, known)
    return f"did you mean {meant!r}? " if meant else ""


def closest(word: Any, known: list[str]) -> str:
    """The known word that was meant: in another spelling or dialect, or misspelt; "" if none is close."""
    from difflib import get_close_matches  # only a mistake pays for this import

    return same_word(word, known) or next(iter(get_close_matches(str(word)[:100], known, n=1, cutoff=0.6)), "")
