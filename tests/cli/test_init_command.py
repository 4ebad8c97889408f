import ast
import json
import re
from pathlib import Path

import pytest
from yaml import safe_load

REPO = Path(__file__).resolve().parents[2]
LESSONS = sorted(f"docs/tutorials/{path.name}" for path in REPO.glob("docs/tutorials/*.md"))
PAGES = ["docs/building.md", "docs/language.md", *LESSONS]
FILES = sorted([".gitignore", "README.md", *PAGES, "docs/schema.json", "dodo.py", "presets/my_model.yml"])
LINK = re.compile(r"\]\(([^)\s#]+)(?:#[^)\s]*)?\)")


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


def test_every_lesson_is_there():
    assert len(LESSONS) >= 13


def test_an_installed_package_has_every_page():
    """What `setup.py` puts into a wheel."""
    call = ast.parse((REPO / "setup.py").read_text()).body[-1].value
    said = {k.arg: ast.literal_eval(k.value) for k in call.keywords if k.arg in ("package_dir", "package_data")}
    folders = {name: folder for name, folder in said["package_dir"].items() if name.startswith("eulerstack.docs")}
    held = {f"{folder}/{glob}" for name, folder in folders.items() for glob in said["package_data"][name]}
    assert [page for page in PAGES if not any(Path(page).match(glob) for glob in held)] == []


@pytest.mark.parametrize("page", PAGES)
def test_a_page_is_there_and_its_links_lead_somewhere_there_too(made, page):
    assert (made / page).read_bytes() == (REPO / page).read_bytes()
    links = [link for link in LINK.findall((made / page).read_text()) if not link.startswith("http")]
    places = {link: (made / page).parent.joinpath(link).resolve() for link in links}
    assert [link for link, place in places.items() if not (place.is_file() and place.is_relative_to(made))] == []


def test_what_an_error_names_is_there(run, made):
    path = made / "presets" / "my_model.yml"
    path.write_text(path.read_text().replace("d_model:", "d_modle:"))
    problems = [*run("validate", "-p", "my_model").problems, *run("validate", "-p", "nothing").problems]
    problems += run("init", made).problems
    assert len(problems) == 4
    for *_, see in problems:
        page, _, section = see.removeprefix("See: ").partition("#")
        headings = [line for line in (made / page).read_text().splitlines() if line.startswith("#")]
        assert section in {line.lstrip("# ").replace("`", "").lower().replace(" ", "-") for line in headings}


def test_its_schema_knows_its_preset(made):
    from jsonschema import Draft202012Validator

    text = (made / "presets" / "my_model.yml").read_text()
    assert text.splitlines()[0] == "# yaml-language-server: $schema=../docs/schema.json"
    schema = json.loads((made / "docs" / "schema.json").read_text())
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
    path.parent.mkdir(parents=True, exist_ok=True)
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
