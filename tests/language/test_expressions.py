"""`${...}`: arithmetic that is Python's, and nothing that is more than arithmetic."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eulerstack.language.expressions import ExpressionError, evaluate, resolve
from eulerstack.language.source import parse

NAMES = {"a": 6, "b": 4, "half": 0.5}
VALUES = {
    "1": 1,
    "-2": -2,
    "--2": 2,
    "+-+2": -2,
    "1 + 2 * 3": 7,
    "(1 + 2) * 3": 9,
    "10 - 3 - 2": 5,
    "64 // 4 // 2": 8,
    "7 // 2": 3,
    "-7 // 2": -4,
    "8 / 2": 4.0,
    "2 * -3": -6,
    "let.a * let.b": 24,
    "let.a - -let.b": 10,
    "let.half * let.b": 2.0,
    "1.5e3": 1500.0,
    ".5": 0.5,
    "2.": 2.0,
    "1e3 // 7": 142.0,
    "((((1))))": 1,
    " 1\n+\t2 ": 3,
}
REFUSED = {
    "": "found the end",
    "1 +": "found the end",
    "1 2": "expected an operator",
    "* 2": "expected a number",
    "(1": "expected ')'",
    "1)": "expected an operator",
    "2 ** 3": "found '**'",
    "2 % 3": "found '%'",
    "a": "unknown name 'a'",
    "let.z": "unknown name 'let.z'",
    "let": "unknown name 'let'",
    "let.a.b": "unknown name",
    "let.": "unknown name",
    "abs(1)": "unknown name 'abs'",
    "__import__('os')": "unknown name",
    "1 if 1 else 2": "expected an operator",
    "0x10": "found",
    "1_000": "found",
    "1.2.3": "found",
    "'text'": "found",
    "True": "unknown name",
    "1 / 0": "division by zero",
    "1 // (2 - 2)": "division by zero",
    "1 / 0.0": "division by zero",
    "1e308 * 10": "not finite",
    "1e999": "not finite",
    "9999999999 * 9999999999": "beyond 64 bits",
    "9223372036854775808": "beyond 64 bits",
    "(" * 41 + "1" + ")" * 41: "nested more than",
    "1" + " + 1" * 200: "more than 500 characters",
}


@pytest.mark.parametrize("text", VALUES)
def test_value(text):
    value = evaluate(text, NAMES)
    assert value == VALUES[text]
    assert type(value) is type(VALUES[text])


@pytest.mark.parametrize("text", REFUSED, ids=lambda text: text[:20])
def test_refused(text):
    with pytest.raises(ExpressionError) as caught:
        evaluate(text, NAMES)
    what, fix = caught.value.args
    assert REFUSED[text] in what
    assert fix


numbers = st.integers(0, 999).map(str) | st.decimals(0, 99, places=2, allow_nan=False).map(str)
signs = st.sampled_from(["+", "-", "*", "/", "//"])
sums = st.recursive(
    numbers,
    lambda e: st.builds("({} {} {})".format, e, signs, e) | st.builds("-{}".format, e),
    max_leaves=12,
)


def value_or_reason(text, names):
    try:
        return evaluate(text, names), None
    except ExpressionError as error:
        return None, error.args


@settings(max_examples=200, deadline=None)
@given(sums)
def test_arithmetic_is_pythons(text):
    value, reason = value_or_reason(text, {})
    if reason:
        assert any(words in reason[0] for words in ("division by zero", "beyond 64 bits", "500 characters"))
    else:
        wanted = eval(text)  # a string of digits, signs and parentheses made above
        assert value == wanted
        assert type(value) is type(wanted)


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=40) | st.text(alphabet="()+-*/. let.ab12e$%", max_size=40))
def test_any_text_is_a_number_or_refused(text):
    value, reason = value_or_reason(text, NAMES)
    assert len(reason) == 2 if reason else isinstance(value, int | float)


def resolved(text: str):
    return resolve(parse(text, "p.yml"))


def test_let_uses_names_above_it():
    assert resolved("let: {a: 2, b: '${let.a * 3}', c: '${let.b + let.a}'}\nx: ${let.c}\n").tree["x"] == 8


def test_names_reach_every_level():
    source = resolved("let: {a: 2}\nx: [{y: ' ${let.a} '}]\n")
    assert source.tree["x"] == [{"y": 2}]


@pytest.mark.parametrize("text", ["a ${1}", "${1} b", "${1}${2}", "${1", "x${"])
def test_an_expression_is_the_whole_value(text):
    source = resolved(f"x: '{text}'\n")
    (problem,) = source.problems
    assert problem.what == "an expression must be the whole value"
    assert ("x",) in source.unread


@pytest.mark.parametrize("text", ["$", "$x", "{1}", "$ {1}"])
def test_other_text_is_text(text):
    assert resolved(f"x: '{text}'\n").tree == {"x": text}


@pytest.mark.parametrize("value", ["true", "null", "x", "[1]", "{b: 1}", ".nan", ".inf"])
def test_a_let_value_is_a_number(value):
    (problem,) = resolved(f"let: {{a: {value}}}\n").problems
    assert (problem.where, problem.line, problem.column) == ("let.a", 1, 10)


def test_a_let_name_can_be_written():
    (problem,) = resolved("let: {my-name: 1}\n").problems
    assert (problem.where, problem.column) == ("let.my-name", 7)


def test_every_wrong_expression_is_reported():
    source = resolved("let: {a: '${1/0}'}\nx: ${let.b}\ny: ${2 +}\n")
    assert [(p.line, p.where) for p in source.problems] == [(1, "let.a"), (2, "x"), (3, "y")]


def test_the_uses_of_a_name_that_failed_are_not_reported():
    source = resolved("let: {a: '${1/0}', b: text, c: '${let.a + 1}'}\nx: ${let.c}\ny: ['${let.b}']\n")
    assert [p.where for p in source.problems] == ["let.a", "let.b"]
    assert {("let", "c"), ("x",), ("y", 0)} <= source.unread


def test_a_name_that_failed_needs_its_prefix_too():
    source = resolved("let: {a: '${1/0}'}\nx: ${a}\n")
    assert [(p.where, p.what) for p in source.problems][1:] == [("x", "unknown name 'a'")]
