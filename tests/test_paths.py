import pytest

from eulerstack import paths
from eulerstack.errors import CacheError, ValidationError


@pytest.fixture
def home(tmp_path, monkeypatch):
    for name in ("EULERSTACK_BUILD", "EULERSTACK_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("EULERSTACK_HOME", str(tmp_path / "ws"))
    (tmp_path / "ws").mkdir()
    return tmp_path / "ws"


@pytest.fixture
def catalogue(tmp_path, monkeypatch):
    folder = tmp_path / "eulerstack" / "presets"
    folder.mkdir(parents=True)
    monkeypatch.setattr(paths, "PACKAGE", folder.parent)
    for name in ("llama.yml", "gpt.yaml", "notes.txt"):
        (folder / name).write_text(f"# {name}")
    return folder


def test_everything_lies_in_the_workspace(home):
    assert paths.workspace() == home
    assert paths.build_dir() == home / "build"
    assert paths.cache_dir() == home / "cache"


def test_the_workspace_is_the_current_directory_by_default(tmp_path, monkeypatch):
    monkeypatch.delenv("EULERSTACK_HOME", raising=False)
    monkeypatch.chdir(tmp_path)
    assert paths.workspace() == tmp_path.resolve()


def test_variables_move_build_and_cache(home, tmp_path, monkeypatch):
    monkeypatch.setenv("EULERSTACK_BUILD", "out/built")
    monkeypatch.setenv("EULERSTACK_CACHE", str(tmp_path / "elsewhere"))
    assert paths.build_dir() == home / "out" / "built"
    assert paths.cache_dir() == tmp_path / "elsewhere"


def test_a_cache_that_is_an_address_is_refused(home, monkeypatch):
    monkeypatch.setenv("EULERSTACK_CACHE", "s3://bucket/cache")
    with pytest.raises(CacheError, match="s3://bucket/cache"):
        paths.cache_dir()


def test_presets_are_the_workspaces_own_else_the_catalogue(home, catalogue):
    assert paths.presets_dir() == catalogue
    (home / "presets").mkdir()
    assert paths.presets_dir() == home / "presets"


def test_the_checkout_has_its_catalogue_beside_the_package(monkeypatch, tmp_path):
    monkeypatch.setattr(paths, "PACKAGE", tmp_path / "eulerstack")
    assert paths.catalogue_dir() == tmp_path / "presets"


def test_docs_are_packaged_else_beside_the_package(monkeypatch, tmp_path):
    monkeypatch.setattr(paths, "PACKAGE", tmp_path / "eulerstack")
    assert paths.docs_dir() == tmp_path / "docs"
    (tmp_path / "eulerstack" / "docs").mkdir(parents=True)
    assert paths.docs_dir() == tmp_path / "eulerstack" / "docs"


def test_names_are_found_in_the_workspace_first(home, catalogue):
    (home / "presets").mkdir()
    (home / "presets" / "llama.yml").write_text("# mine")
    assert paths.find_preset("llama") == home / "presets" / "llama.yml"
    assert paths.find_preset("gpt") == catalogue / "gpt.yaml"
    assert paths.all_presets() == [home / "presets" / "llama.yml", catalogue / "gpt.yaml"]


def test_yml_goes_before_yaml(catalogue):
    (catalogue / "gpt.yml").write_text("# both")
    assert paths.presets_in(catalogue) == {"gpt": catalogue / "gpt.yml", "llama": catalogue / "llama.yml"}


def test_a_path_is_taken_as_it_is(home, catalogue, tmp_path):
    own = tmp_path / "x.yml"
    own.write_text("# x")
    assert paths.find_preset(own) == own
    assert paths.find_preset(str(own)) == own


@pytest.mark.parametrize(
    ("given", "fix"),
    [
        ("lama", "did you mean 'llama'?"),
        ("presets/lama.yml", "did you mean 'llama'?"),
        ("qqq", "`eulerstack presets list` names them all"),
        ("", "`eulerstack presets list` names them all"),
    ],
)
def test_an_unknown_preset_gets_the_nearest_name(home, catalogue, given, fix):
    with pytest.raises(ValidationError) as caught:
        paths.find_preset(given)
    assert caught.value.problems[0].fix == fix
