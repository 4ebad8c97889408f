import json

import pytest
from yaml import safe_load

FILES = [
    ".gitignore",
    "README.md",
    "docs/building.md",
    "docs/language.md",
    "dodo.py",
    "presets/my_model.yml",
    "schema.json",
]


@pytest.fixture
def made(run, tmp_path, monkeypatch):
    said = run("init", tmp_path / "new" / "ws")
    assert (said.status, said.err) == (0, "")
    monkeypatch.chdir(tmp_path / "new" / "ws")
    monkeypatch.setenv("EULERSTACK_HOME", "")
    return tmp_path / "new" / "ws"


def found(folder) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())


def test_a_workspace_is_made(made):
    assert found(made) == FILES
    assert len((made / "dodo.py").read_text().splitlines()) == 3
    assert "/build/" in (made / ".gitignore").read_text()


def test_its_preset_is_valid_without_warnings_and_found_from_there(run, made):
    said = run("validate", "-p", "my_model", "--report")
    assert (said.status, said.err) == (0, "")
    assert "8 of 2 templates" in said.out
    assert run("compile", "-p", "my_model", "--validate-only").status == 0


def test_the_pages_that_errors_name_are_there(run, made, request):
    for page in ("docs/language.md", "docs/building.md"):
        assert (made / page).read_bytes() == (request.config.rootpath / page).read_bytes()
    path = made / "presets" / "my_model.yml"
    path.write_text(path.read_text().replace("d_model:", "d_modle:"))
    for *_, see in run("validate", "-p", "my_model").problems:
        page, _, section = see.removeprefix("See: ").partition("#")
        headings = [line for line in (made / page).read_text().splitlines() if line.startswith("#")]
        assert section in {line.lstrip("# ").replace("`", "").lower().replace(" ", "-") for line in headings}


def test_its_schema_knows_its_preset(made):
    from jsonschema import Draft202012Validator

    text = (made / "presets" / "my_model.yml").read_text()
    assert text.splitlines()[0] == "# yaml-language-server: $schema=../schema.json"
    schema = json.loads((made / "schema.json").read_text())
    assert list(Draft202012Validator(schema).iter_errors(safe_load(text))) == []


def test_its_graph_has_tasks_for_its_preset_alone(made, monkeypatch):
    scope: dict = {}
    exec((made / "dodo.py").read_text(), scope)
    names = {task.get("name") for task in scope["task_stages"]() if task.get("name")}
    assert names == {"my_model"}
    assert scope["DOIT_CONFIG"]["default_tasks"] == ["sanity"]


@pytest.mark.parametrize("taken", FILES)
def test_what_is_there_is_never_touched(run, tmp_path, taken):
    path = tmp_path / taken
    path.parent.mkdir(exist_ok=True)
    path.write_text("mine")
    said = run("init", tmp_path)
    assert said.status == 1
    assert said.problems[0][0] == f"{path}: ExportError: exists already"
    assert found(tmp_path) == [taken]
    assert path.read_text() == "mine"


def test_into_a_directory_with_other_things(run, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    assert run("init", tmp_path).status == 0
    assert found(tmp_path) == sorted([*FILES, "notes.txt"])


def test_a_file_in_the_way(run, tmp_path):
    (tmp_path / "file").write_text("mine")
    assert run("init", tmp_path / "file").status == 2
    said = run("init", tmp_path / "file" / "below")
    assert said.status == 1
    assert "ExportError: cannot be written: Not a directory" in said.problems[0][0]


def test_an_empty_name_is_not_the_current_directory(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run("init", "").status == 2
    assert found(tmp_path) == []


def test_the_next_command_is_said_so_that_a_shell_reads_it(run, tmp_path):
    said = run("init", tmp_path / "my models")
    assert f"cd '{tmp_path / 'my models'}' && doit cpu_sanity" in said.out
