"""`let` and `${...}`: arithmetic on named numbers, worked out before anything is checked.

Grammar (docs/language.md, section let):

    sum     = product { ("+" | "-") product }
    product = unary { ("*" | "/" | "//") unary }
    unary   = { "+" | "-" } atom
    atom    = number | "let." name | "(" sum ")"
"""

import math
import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from eulerstack.errors import Problem
from eulerstack.language.scalars import BIGGEST
from eulerstack.language.sentences import show
from eulerstack.language.source import Source
from eulerstack.language.where import Where

Number = int | float

MAX_LENGTH = 500
MAX_DEPTH = 40
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
TOKEN = re.compile(
    r"\s*(?:(?P<number>\d+\.?\d*(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?)(?![\w.])"
    r"|(?P<name>[A-Za-z_][\w.]*)"
    r"|(?P<sign>//|\*\*|[-+*/()])"
    r"|(?P<other>\S))",
    re.ASCII,
)


class ExpressionError(Exception):
    """(what is wrong, how to fix it)"""


class Echo(ExpressionError):
    """The expression uses a name whose own definition is wrong, which is reported there."""


def evaluate(expression: str, names: Mapping[str, Number], failed: Collection[str] = ()) -> Number:
    """The value of the text between `${` and `}`; ExpressionError(what, fix) where it has none.

    `names` are those with a value, `failed` those that are defined and have none: using one is an Echo.
    """
    if len(expression) > MAX_LENGTH:
        raise ExpressionError(f"an expression of more than {MAX_LENGTH} characters", "give parts of it names in let")
    return _Reader(expression, names, failed).whole()


class _Reader:
    def __init__(self, text: str, names: Mapping[str, Number], failed: Collection[str]):
        self.text, self.names, self.failed = text, names, failed
        self.tokens = [(m.lastgroup, m.group(m.lastgroup)) for m in TOKEN.finditer(text)]
        self.tokens.append(("end", ""))
        self.at = 0
        self.depth = 0

    def whole(self) -> Number:
        value = self.sum()
        if self.tokens[self.at][0] != "end":
            raise self._unexpected()
        return value

    def sum(self) -> Number:
        value = self.product()
        while sign := self._take("+", "-"):
            right = self.product()
            value = self._finite(value + right if sign == "+" else value - right)
        return value

    def product(self) -> Number:
        value = self.unary()
        while sign := self._take("*", "//", "/"):
            value = self._finite(self._times(value, sign, self.unary()))
        return value

    def _times(self, left: Number, sign: str, right: Number) -> Number:
        if sign == "*":
            return left * right
        if right == 0:
            raise ExpressionError(f"division by zero in ${{{self.text}}}", "divide by something else")
        return left / right if sign == "/" else left // right

    def unary(self) -> Number:
        negative = False
        while sign := self._take("+", "-"):
            negative ^= sign == "-"
        value = self.atom()
        return -value if negative else value

    def atom(self) -> Number:
        kind, text = self.tokens[self.at]
        if self._take("("):
            return self._parenthesis()
        if kind == "number":
            self.at += 1
            return self._finite(int(text) if text.isdigit() else float(text))
        if kind == "name":
            self.at += 1
            return self._value(text)
        raise self._unexpected()

    def _parenthesis(self) -> Number:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise ExpressionError(f"parentheses nested more than {MAX_DEPTH} deep", "give parts of it names in let")
        value = self.sum()
        if not self._take(")"):
            raise self._unexpected("')'")
        self.depth -= 1
        return value

    def _value(self, text: str) -> Number:
        name = text.removeprefix("let.")
        if text.startswith("let.") and name in self.names:
            return self.names[name]
        if text.startswith("let.") and name in self.failed:
            raise Echo(f"{text} has no value", "correct its definition in let")
        if name in self.names:
            raise ExpressionError(f"unknown name {text!r}", f"write let.{name}")
        known = ", ".join(f"let.{n}" for n in self.names) or "none yet"
        raise ExpressionError(f"unknown name {text!r}", f"define it in let, above its use. Known: {known}")

    def _take(self, *signs: str) -> str:
        kind, text = self.tokens[self.at]
        if kind != "sign" or text not in signs:
            return ""
        self.at += 1
        return text

    def _finite(self, value: Number) -> Number:
        if isinstance(value, int) and abs(value) >= BIGGEST:
            raise ExpressionError(f"${{{self.text}}} is beyond 64 bits", "use smaller numbers")
        if not math.isfinite(value):
            raise ExpressionError(f"${{{self.text}}} is not finite", "use smaller numbers")
        return value

    def _unexpected(self, wanted: str = "a number, let.<name> or '('") -> ExpressionError:
        kind, text = self.tokens[self.at]
        found = "the end" if kind == "end" else repr(text)
        if kind != "end" and self.at and self.tokens[self.at - 1][0] in ("number", "name"):
            wanted = "an operator"
        return ExpressionError(
            f"expected {wanted}, found {found} in ${{{self.text}}}",
            "an expression knows numbers, let.<name>, + - * / // and parentheses",
        )


def resolve(source: Source) -> Source:
    """The source with every `${...}` replaced by its value; what cannot be is left as it is and reported."""
    resolver = _Resolver(source)
    names = resolver.names()
    tree = {key: resolver.walk(value, (key,)) for key, value in source.tree.items() if key != "let"}
    if "let" in source.tree:
        tree["let"] = names if isinstance(source.tree["let"], dict) else source.tree["let"]
    problems = source.problems + tuple(resolver.problems)
    return replace(source, tree=tree, problems=problems, unread=source.unread | resolver.bad)


class _Resolver:
    def __init__(self, source: Source):
        self.source = source
        self.known: dict[str, Number] = {}
        self.failed: set[str] = set()
        self.problems: list[Problem] = []
        self.bad = set(source.unread)

    def names(self) -> dict[str, Number]:
        """The `let` block, each value worked out from the names above it."""
        block = self.source.tree.get("let")
        for name, value in block.items() if isinstance(block, dict) else ():
            where = ("let", name)
            number = self.walk(value, where)
            if not NAME.fullmatch(name):
                self._add(where, f"{name!r} cannot be used as let.<name>", "use letters, digits and _", key=True)
            elif isinstance(number, int | float) and not isinstance(number, bool) and math.isfinite(number):
                self.known[name] = number
                continue
            elif where not in self.bad:
                self._add(where, f"expected a finite number, found {show(value)}", "a let value is a number or ${...}")
            self.failed.add(name)
        return self.known

    def walk(self, value: Any, where: Where) -> Any:
        if isinstance(value, dict):
            return {key: self.walk(item, (*where, key)) for key, item in value.items()}
        if isinstance(value, list):
            return [self.walk(item, (*where, i)) for i, item in enumerate(value)]
        if isinstance(value, str) and "${" in value:
            return self._replaced(value, where)
        return value

    def _replaced(self, text: str, where: Where) -> Any:
        inner = text.strip()
        if not (inner.startswith("${") and inner.endswith("}")) or "${" in inner[2:]:
            self._add(where, "an expression must be the whole value", "write ${...} and nothing around it")
            return text
        try:
            return evaluate(inner[2:-1].strip(), self.known, self.failed)
        except Echo:
            self.bad.add(where)
            return text
        except ExpressionError as error:
            self._add(where, *error.args)
            return text

    def _add(self, where: Where, what: str, fix: str, *, key: bool = False) -> None:
        self.bad.add(where)
        self.problems.append(self.source.problem("ValidationError", where, what, fix, key=key))
