"""A preset file, or the dict of one, to a checked document."""

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from eulerstack.errors import Problem, raise_all
from eulerstack.language.document import Document
from eulerstack.language.expressions import resolve
from eulerstack.language.fields import check_fields
from eulerstack.language.idle import IDLE_RULES
from eulerstack.language.names import check_names
from eulerstack.language.realism import check_realism
from eulerstack.language.rules import check_rules
from eulerstack.language.schema import Spec
from eulerstack.language.source import Source, read_source, tree_of
from eulerstack.language.where import Where, dotted

WARNING = "Warning"
RESERVED_KEY = re.compile(r"(experimental|future|vendor\.[^.]+)\..+", re.DOTALL)


@dataclass(frozen=True)
class Checked:
    """A document that is valid.

    `warnings` are placed problems of category Warning; `reserved` maps the dotted address of every key under
    `experimental.`, `future.` or `vendor.<name>.` to its untouched value; `source` knows places and makes problems.
    """

    spec: Spec
    warnings: tuple[Problem, ...]
    reserved: dict[str, Any]
    source: Source


def load_preset(path: str | os.PathLike, disabled: Iterable[str] = ()) -> Checked:
    """Read and check a preset file.

    Raises every error of the file at once: ParseError, ValidationError or CompatibilityError, whichever comes first in
    the file. `disabled` names the realism rules to switch off.
    """
    return check_source(read_source(path), disabled)


def check(data: dict[str, Any], path: str = "<dict>", disabled: Iterable[str] = ()) -> Checked:
    """The same for the dict that `yaml.safe_load` gives; problems carry no line."""
    return check_source(tree_of(data, path), disabled)


def check_source(source: Source, disabled: Iterable[str] = ()) -> Checked:
    source, reserved, warnings = _set_reserved_aside(source)
    source = resolve(source)
    spec, problems, wrong = check_fields(source)
    problems += check_names(source, wrong)
    if spec is not None:
        document = Document(spec, source)
        problems += check_rules(document, wrong)
        warnings += check_realism(document, disabled, wrong) + _idle(document)
    problems += [w for w in warnings if w.category != WARNING]
    raise_all((*source.problems, *problems))
    return Checked(spec, _by_place(warnings), reserved, source)


def _idle(document: Document) -> list[Problem]:
    idle = (breach for rule in IDLE_RULES for breach in rule(document))
    return [document.source.problem(WARNING, b.where, b.what, b.fix, key=b.key) for b in idle]


def _by_place(problems: Iterable[Problem]) -> tuple[Problem, ...]:
    return tuple(sorted(problems, key=lambda p: (p.line or 0, p.column or 0)))


def _set_reserved_aside(source: Source) -> tuple[Source, dict[str, Any], list[Problem]]:
    reserved: dict[str, Any] = {}
    warnings: list[Problem] = []

    def kept(value: Any, where: Where) -> Any:
        if isinstance(value, list):
            return [kept(item, (*where, i)) for i, item in enumerate(value)]
        if not isinstance(value, dict):
            return value
        for key in filter(RESERVED_KEY.fullmatch, value):
            reserved[dotted((*where, key))] = value[key]
            fix = "nothing reads it yet; it is kept in the IR's reserved map"
            warnings.append(source.problem(WARNING, (*where, key), "a reserved key", fix, key=True))
        return {key: kept(v, (*where, key)) for key, v in value.items() if not RESERVED_KEY.fullmatch(key)}

    return replace(source, tree=kept(source.tree, ())), reserved, warnings
