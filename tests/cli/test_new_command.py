"""A preset of one's own begins as another one, under its own name."""

from difflib import unified_diff

import pytest

from eulerstack.cli.init_command import PRESET
from eulerstack.paths import catalogue_dir

CATALOGUE = sorted(path.stem for path in catalogue_dir().glob("*.yml"))


def changed(before: str, after: str) -> list[str]:
    """Lines that went, marked "-", and that came, marked "+"."""
    return [
        line for line in unified_diff(before.split("\n"), after.split("\n"), n=0, lineterm="") if line[1] not in "-+@"
    ]


@pytest.fixture
def made(run, own):
    """A function that runs `eulerstack new` and gives the text it has written."""

    def make(name: str, *more: str) -> str:
        said = run("new", name, *more)
        assert (said.status, said.err) == (0, "")
        assert f"eulerstack validate {name}" in said.out
        return (own / "presets" / f"{name}.yml").read_bytes().decode()

    return make


@pytest.mark.parametrize("origin", CATALOGUE[::4])
def test_all_but_head_and_name_is_as_it_was(run, made, origin):
    before = (catalogue_dir() / f"{origin}.yml").read_text()
    after = made("river", "--from", origin)
    assert after.splitlines()[0] == f"# Begun as {origin}."
    body = before[before.index("schema_version") :]
    assert after == f"# Begun as {origin}.\n{body.replace(f'name: {origin}', 'name: river', 1)}"
    said = run("validate", "river")
    assert (said.status, said.err) == (0, "")


def test_by_default_it_begins_as_that_of_init(run, made):
    after = made("river")
    head, _, rest = after.partition("\n")
    assert head == "# Begun as the starter of `eulerstack init`."
    assert changed(PRESET[PRESET.index("schema_version") :], rest) == ["-  name: my_model", "+  name: river"]
    assert run("validate", "river").err == ""


@pytest.mark.parametrize("schema", ["docs/schema.json", "schema.json"])
def test_the_schema_of_the_workspace_is_named(own, made, schema):
    (own / schema).parent.mkdir(exist_ok=True)
    (own / schema).write_text("{}")
    lines = made("river", "--from", "llm_0p1b_simple").splitlines()
    assert lines[:3] == [f"# yaml-language-server: $schema=../{schema}", "#", "# Begun as llm_0p1b_simple."]


def test_a_check_by_the_graph_is_named_where_there_is_one(run, own):
    assert "doit" not in run("new", "one").out
    (own / "dodo.py").touch()
    assert "doit cpu_sanity:two" in run("new", "two").out


def test_comments_blank_lines_and_line_ends_stay(own, made):
    source = own / "presets" / "tiny.yml"
    text = "# a head\n# of two lines\n\n# of the first key\n" + source.read_text().replace(
        "name: tiny,", "name:   tiny ,"
    )
    source.write_bytes(text.replace("\n", "\r\n").encode("utf-8-sig"))
    after = made("river", "--from", "presets/tiny.yml")
    assert after == "# Begun as tiny.\n" + text.partition("lines\n")[2].replace("tiny ,", "river ,").replace(
        "\n", "\r\n"
    )


@pytest.mark.parametrize("name", ["1.5", "null", "1e3", "yes", "a-b", "\u00e9t\u00e9", "0x1F"])
def test_names_that_yaml_would_read_as_something_else_are_in_quotes(run, made, name):
    made(name)
    said = run("validate", name)
    assert (said.status, said.err) == (0, "")


@pytest.mark.parametrize(
    "name", ["", ".", "-x.", "a/b", "../x", "a=b", "a*", "x.yml", "x.yaml", "a b", "a\nb", "#", "x" * 101]
)
def test_a_bad_name_gets_three_lines(run, untouched, name):
    said = run("new", "--", name)
    assert (said.status, said.out) == (1, "")
    assert said.problems[0][0] == f"new: ValidationError: {name!r} is no name for a preset"
    assert untouched()


@pytest.mark.parametrize("suffix", [".yml", ".yaml"])
def test_nothing_is_overwritten(run, own, suffix):
    path = own / "presets" / f"river{suffix}"
    path.write_text("mine")
    said = run("new", "river")
    assert said.problems[0][0] == f"{path}: ExportError: exists already"
    assert path.read_text() == "mine"
    assert sorted(p.name for p in (own / "presets").iterdir()) == sorted(["tiny.yml", path.name])


def test_from_nothing_or_from_a_mistake_nothing_begins(run, preset, untouched):
    assert "no such preset" in run("new", "river", "--from", "tinny").problems[0][0]
    assert untouched()
    path = preset("broken", "d_ff: 48", "d_fff: 48")
    said = run("new", "river", "--from", "broken")
    assert said.problems[0][0].startswith(f"{path}:2:")
    assert not path.with_name("river.yml").exists()


@pytest.mark.parametrize("written", ["name: &it tiny, family_hint: *it", "family_hint: &it tiny, name: *it"])
def test_a_name_that_stands_elsewhere_is_refused(run, preset, written):
    path = preset("odd", "name: tiny", written)
    said = run("new", "river", "--from", "odd")
    assert (said.status, said.out) == (1, "")
    assert said.problems[0][0] == f"{path}: ExportError: its model.name is an alias or has an anchor"
    assert not path.with_name("river.yml").exists()


def test_where_nothing_can_be_written(run, own, monkeypatch):
    (own / "file").write_text("mine")
    monkeypatch.setenv("EULERSTACK_HOME", str(own / "file"))
    said = run("new", "river")
    assert said.status == 1
    assert "ExportError: cannot be written: Not a directory" in said.problems[0][0]
