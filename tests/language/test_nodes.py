"""Text to nodes: places, and what is no single, bounded YAML document."""

import random
from pathlib import Path

import pytest

from eulerstack.errors import ParseError
from eulerstack.language import nodes
from eulerstack.language.nodes import compose, place_at

REFUSED = {
    "": (1, 1, "the file is empty"),
    "# only a comment\n": (1, 1, "the file is empty"),
    "a: 1\n---\nb: 2\n": (2, 1, "a second document"),
    "a: 1\n...\n---\nb: 2\n": (3, 1, "a second document"),
    "a:\n\tb: 1\n": (2, 1, "a tab"),
    "a: [1,\n\t2}\n": (2, 1, "a tab"),
    "a: 'x\n": (2, 1, "not YAML"),
    "a: 1\n b: 2\n": (2, 3, "not YAML"),
    "a: b: c\n": (1, 5, "not YAML"),
    "a: @x\n": (1, 4, "not YAML"),
    "a: |#x\n  b\n": (1, 5, "not YAML"),
    "a: >-#x\n  b\n": (1, 6, "not YAML"),
    "a: *b\n": (1, 4, "no anchor"),
    "a: &x [*x]\n": (1, 8, "inside its own anchor"),
    "a: &x 1\nb: &x 2\n": (2, 4, "defined twice"),
    "a: !!str 1\n": (1, 4, "tag"),
    "a: !mine {}\n": (1, 4, "tag"),
    "a: \x07\n": (1, 4, "U+0007"),
    "a: 1\nb: \x00\n": (2, 4, "U+0000"),
    "[" * 70: (1, 66, "nested more than 64"),
    "a: {b: ${let.c // 2}}\n": (1, 9, "an expression without quotes"),
    "a: [1, ${let.c}]\n": (1, 9, "an expression without quotes"),
    "a: {b: [$, {c: d}\n": (2, 1, "not YAML"),
    "%YAML 3.0\n---\na: 1\n": (1, 1, "not YAML"),
}


@pytest.mark.parametrize("text", REFUSED, ids=lambda text: repr(text)[:20])
def test_refused_with_its_place(text):
    line, column, words = REFUSED[text]
    with pytest.raises(ParseError) as caught:
        compose(text, "p.yml")
    (problem,) = caught.value.problems
    assert words in problem.what
    assert (problem.line, problem.column) == (line, column)


def test_places_count_from_one():
    root = compose("a: 1\nb:\n  - x\n  - {c: d}\n", "p.yml")
    (a, one), (b, items) = root.content
    assert [root.place, a.place, one.place, b.place, items.place] == [(1, 1), (1, 1), (1, 4), (2, 1), (3, 3)]
    assert items.content[1].content[0][1].place == (4, 9)


def test_columns_count_characters():
    root = compose("größe: [é, x]\n", "p.yml")
    assert root.content[0][1].content[1].place == (1, 12)


def test_an_alias_is_the_node_of_its_anchor():
    root = compose("a: &x {b: 1}\nc: *x\n", "p.yml")
    assert root.content[0][1] is root.content[1][1]


def test_quoted_is_not_plain():
    root = compose("a: '1'\nb: 1\nc: |\n  1\n", "p.yml")
    assert [value.plain for _, value in root.content] == [False, True, False]


def test_windows_line_ends():
    assert compose("a: 1\r\nb: 2\r\n", "p.yml").content[1][0].place == (2, 1)


def test_place_at():
    assert [place_at("ab\ncd", i) for i in (0, 1, 3, 4)] == [(1, 1), (1, 2), (2, 1), (2, 2)]


def tree(node, above=()):
    """Nodes as plain values with their places; an alias of a node that is read already is its place."""
    if id(node) in above:
        return node.place
    content = node.content
    if node.kind == "list":
        content = [tree(item, (*above, id(node))) for item in content]
    elif node.kind == "mapping":
        content = [(tree(key), tree(value, (*above, id(node)))) for key, value in content]
    return node.kind, content, node.place, node.plain


def read(text, fast, monkeypatch):
    monkeypatch.setattr(nodes, "FAST", fast)
    try:
        return tree(compose(text, "p.yml"))
    except ParseError as error:
        return str(error)


HERE = Path(__file__).parent
TEXTS = [path.read_text() for folder in ("valid", "broken") for path in sorted((HERE / folder).glob("*.yml"))]
PIECES = [
    *" :-{}[],#&*!|>'\"%@`\n<ab1.$~=\\?\t",
    "\n  ",
    "\n- ",
    ": ",
    "? ",
    "---\n",
    "|\n",
    "''",
    "{}",
    "&a ",
    "*a",
    "é",
    "\ufeff",
]


@pytest.mark.skipif(nodes.FAST is None, reason="PyYAML without libyaml")
@pytest.mark.parametrize("seed", range(12))
def test_libyaml_makes_no_difference(seed, monkeypatch):
    """Of values, of places, of what is refused and in which words, in texts with something odd in them."""
    fast, draw, read_fast = nodes.FAST, random.Random(seed), 0
    for _ in range(25):
        text = draw.choice(TEXTS)
        for _ in range(draw.randrange(3)):
            i, j = draw.randrange(len(text)), draw.randrange(len(text))
            text = draw.choice([text[:i] + draw.choice(PIECES) + text[i:], text[:i] + text[i + 2 :], text[: max(i, j)]])
        read_fast += nodes.OWN.search(text) is None
        assert read(text, fast, monkeypatch) == read(text, None, monkeypatch), text
    assert read_fast > 5
