"""One field at a time: pydantic checks the tree, its findings become our sentences."""

from typing import Any

import pydantic

from eulerstack.errors import Problem
from eulerstack.language.dialects import same_word, type_of
from eulerstack.language.locate import (
    Located,
    bare,
    choices,
    choices_of,
    fields_of,
    is_block,
    is_list,
    locate,
    members,
    tags_of,
)
from eulerstack.language.places import advice, renamed
from eulerstack.language.schema import Spec
from eulerstack.language.sentences import closest, expectation, nearest, show, spelling
from eulerstack.language.sound import read, sound_part
from eulerstack.language.source import Source
from eulerstack.language.template import FFNS, MIXERS, RESERVED_MIXERS
from eulerstack.language.where import Where

KINDS = ("template", "parallel", "integrator")
LATER = {"mixer": RESERVED_MIXERS, "branches": RESERVED_MIXERS, "integrator": ("ode_adaptive",)}
# What the shortest preset says under keys that are always required.
EXAMPLES = {
    "schema_version": "1",
    "tokenizer_contract": "{type: byte_bpe}",
    "embedding": "{type: learned, positional: rope}",
    "layer_schedule": "[{template: <name>}]",
    "head": "{type: causal_lm}",
    "mixer": "{type: attention}",
    "ffn": "{type: gated_mlp}",
}
ABSENT = object()


def check_fields(source: Source) -> tuple[Spec | None, list[Problem], set[Where]]:
    """The document as blocks, the problems of single fields, and the addresses that carry them.

    With problems, the blocks are those of its sound part, where there is one, so that fields can still be held against
    each other away from the problems.
    """
    problems, wrong = _entry_kinds(source)
    try:
        return read(source.tree), problems, wrong
    except pydantic.ValidationError as error:
        found = _Findings(source, error, wrong | source.unread)
    problems, wrong = problems + found.problems, wrong | found.wrong
    return sound_part(source.tree, found.removable), problems, wrong


def value_at(tree: Any, where: Where) -> Any:
    """The value at an address, ABSENT where there is none."""
    for step in where:
        try:
            tree = tree[step]
        except (KeyError, IndexError, TypeError):
            return ABSENT
    return tree


def _entry_kinds(source: Source) -> tuple[list[Problem], set[Where]]:
    """Every schedule entry is exactly one kind."""
    problems, wrong = [], set()
    entries = source.tree.get("layer_schedule")
    for i, entry in enumerate(entries if isinstance(entries, list) else ()):
        where: Where = ("layer_schedule", i)
        kinds = [key for key in entry if key in KINDS] if isinstance(entry, dict) else KINDS[:1]
        if len(kinds) == 1:
            continue
        wrong.add(where)
        what = f"{' and '.join(kinds)} in one entry" if kinds else "none of template, parallel, integrator"
        fix = "make each an entry of its own" if kinds else "name a template: `{template: <name>}`"
        at = (*where, kinds[1]) if kinds else where
        problems.append(source.problem("ValidationError", at, what, fix, key=bool(kinds)))
    return problems, wrong


class _Findings:
    """pydantic's errors as problems, one per address."""

    def __init__(self, source: Source, error: pydantic.ValidationError, known: set[Where]):
        self.source = source
        self.problems: list[Problem] = []
        self.wrong: set[Where] = set()
        self.removable: set[Where] = set()
        errors = [_located(item) for item in error.errors(include_url=False, include_context=False)]
        containers = {at.where[:i] for at, _ in errors for i in range(len(at.where))}
        for at, kind in errors:
            self.removable.add(at.where)
            covered = any(at.where[:i] in known for i in range(len(at.where) + 1))
            if not covered and at.where not in self.wrong and at.where not in containers:
                self._report(at, kind)

    def _report(self, at: Located, kind: str) -> None:
        value = value_at(self.source.tree, at.where)
        if value is None and _omissible(at):
            return
        self.wrong.add(at.where)
        if value is ABSENT:
            self._missing(at)
        elif kind == "empty_name":
            self._add(at.where, "a name must not be empty", "give it a name", key=True)
        elif kind == "unexpected_keyword_argument":
            self._add(at.where, "unknown key", advice(at), key=True)
        elif kind.startswith("union_tag"):
            self._tag(at)
        else:
            self._value(at, value)

    def _missing(self, at: Located) -> None:
        key, beside = at.where[-1], value_at(self.source.tree, at.where[:-1])
        if isinstance(beside, dict) and renamed(at.owner, key, beside):
            return  # its other name is told
        pair = f"`{key}: {EXAMPLES[key]}`" if key in EXAMPLES else f"`{key}:` {expectation(at.kind)}{_about(at)}"
        self._add(at.where, "required key is missing", f"add {pair}")

    def _tag(self, at: Located) -> None:
        where = (*at.where, "type")
        known = [tag for block in members(at.kind) for tag in tags_of(block)]
        value = value_at(self.source.tree, where)
        if where in self.source.unread:
            self._strangers(at, "")  # why the type could not be read is told already
        elif value in _later(where):
            self._add(where, f"{value!r} is reserved for a later version", f"use one of {', '.join(known)}")
        elif value in known:
            self._add(where, "branches cannot be nested", "move these branches one level up")
        elif value is ABSENT:
            self._add(where, "required key is missing", f"add `type:` one of {', '.join(known)}")
            self._strangers(at, "")
        else:
            what = f"expected one of {', '.join(known)}, found {show(value)}"
            snippet, remark = _elsewhere(at, value)
            said = f"write `{snippet}`{remark}" if snippet else f"{nearest(value, known)}write one of these types"
            self._add(where, what, said)
            self._strangers(at, snippet.partition(",")[0].removeprefix("type: ") or closest(value, known))

    def _strangers(self, at: Located, meant: str) -> None:
        """Keys that no type of a block could have, where its type is wrong; `meant` is the likeliest type, or ""."""
        blocks = members(at.kind)
        known = {key for block in blocks for key in fields_of(block)}
        owner = next((block for block in blocks if meant in tags_of(block)), None)
        for key in value_at(self.source.tree, at.where):
            if key not in known:
                where = (*at.where, key)
                self.wrong.add(where)
                self._add(where, "unknown key", advice(Located(where, owner, None, None), known=known), key=True)

    def _value(self, at: Located, value: Any) -> None:
        wanted = expectation(at.kind)
        if value in _later(at.where):
            what, fix = f"{value!r} is reserved for a later version", f"write {wanted}"
        else:
            what = f"expected {wanted}, found {show(value)}"
            own = choices(at.kind)
            meant = "" if same_word(value, own) else _belongs(at, value)
            meant = meant or nearest(value, own)
            fix = _block_of(at, value) or spelling(value, wanted) or f"{meant}write {wanted}{_about(at)}"
        self._add(at.where, what, fix)

    def _add(self, where: Where, what: str, fix: str, *, key: bool = False) -> None:
        self.problems.append(self.source.problem("ValidationError", where, what, fix, key=key))


def _located(item: dict) -> tuple[Located, str]:
    """Where an error of pydantic lies, and its kind; a list of the wrong length is one wrong value."""
    loc, kind = item["loc"], item["type"]
    if loc and loc[-1] == "[key]":
        return locate(loc), "empty_name"
    if kind == "missing" and isinstance(loc[-1], int):
        return locate(loc[:-1]), "too_short"
    return locate(loc), kind


def _later(where: Where) -> tuple[str, ...]:
    """The values reserved for later versions that this address may not have yet."""
    if where[-1] != "type":
        return ()
    return next((LATER[step] for step in reversed(where[:-1]) if step in LATER), ())


def _omissible(at: Located) -> bool:
    """Whether `key:` with nothing after it may stand for a block of defaults."""
    return at.field is not None and not at.field.is_required() and (is_block(kind := bare(at.kind)) or is_list(kind))


def _about(at: Located) -> str:
    return f" ({at.field.description})" if at.field and at.field.description else ""


def _block_of(at: Located, value: Any) -> str:
    """``write `{type: attention}` `` where only the type of a block was written, or ""."""
    kind = bare(at.kind)
    if not isinstance(value, str) or not (members(kind) or is_block(kind)):
        return ""
    known = [tag for block in members(kind) or [kind] for tag in tags_of(block)]
    snippet, remark = (f"type: {value}", "") if value in known else _elsewhere(at, value)
    return f"write `{{{snippet}}}`{remark}" if snippet else ""


def _elsewhere(at: Located, word: Any) -> tuple[str, str]:
    """What a word of other dialects is as the type of a mixer or an ffn: a snippet and a remark, or two ""."""
    blocks = members(at.kind)
    families = {"mixer": MIXERS["none"], "ffn": FFNS["none"]}
    return type_of(word, next((name for name, block in families.items() if block in blocks), ""))


def _belongs(at: Located, word: Any) -> str:
    """`it belongs to type gated_mlp. ` where the same key of another mixer or ffn knows the word, or ""."""
    families = [family for family in (MIXERS, FFNS) if at.owner in family.values()]
    known = {name: choices_of(block, at.where[-1]) for family in families for name, block in family.items()}
    homes = [name for name, words in known.items() if same_word(word, words)]
    return f"it belongs to type {' or '.join(homes)}. " if homes else ""
