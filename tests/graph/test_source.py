"""The code's part of a key: what files mean, what changed meanwhile, which versions are installed."""

import os
import py_compile
import time
from importlib.util import cache_from_source
from pathlib import Path

import pytest

from eulerstack.digest import Digests, Memo
from eulerstack.graph.source import Libraries, Sources


@pytest.fixture
def package(tmp_path) -> Path:
    root = tmp_path / "kit"
    (root / "stages").mkdir(parents=True)
    for name, text in {
        "__init__.py": "",
        "stages/__init__.py": "",
        "stages/first.py": "from kit.lib import FACTOR\n",
        "stages/second.py": "VALUE = 1\n",
        "lib.py": '"""A library."""\nFACTOR = 2  # twice\n',
    }.items():
        (root / name).write_text(text)
    time.sleep(0.03)
    return root


@pytest.fixture
def sources(package, tmp_path):
    """A function that gives the sources as another process would see them."""
    return lambda: Sources(package, Digests(Memo(tmp_path / "memory")))


def test_a_closure_holds_what_is_imported_and_no_more(sources):
    files = ["kit/__init__.py", "kit/lib.py", "kit/stages/__init__.py", "kit/stages/first.py"]
    assert sorted(sources().closure("kit.stages.first")) == files


def test_comments_and_docstrings_mean_nothing_and_constants_do(sources, package):
    before = sources().closure("kit.stages.first")
    (package / "lib.py").write_text('"""Another word."""\nFACTOR = 2  # two times\n')
    assert sources().closure("kit.stages.first") == before
    (package / "lib.py").write_text('"""A library."""\nFACTOR = 3  # twice\n')
    after = sources().closure("kit.stages.first")
    assert [name for name in after if after[name] != before[name]] == ["kit/lib.py"]


def test_nothing_is_parsed_twice(sources, monkeypatch):
    before = sources().closure("kit.stages.first")

    def refuse(*_):
        raise AssertionError("parsed again")

    monkeypatch.setattr("eulerstack.compiler.imports.parse", refuse)
    assert sources().closure("kit.stages.first") == before


def test_changes_are_those_of_the_closure_since_first_asked(sources, package):
    found = sources()
    assert found.changed("kit.stages.first") == []
    (package / "stages" / "second.py").write_text("VALUE = 2\n")
    assert found.changed("kit.stages.first") == []
    assert found.changed("kit.stages.second") == ["kit/stages/second.py"]
    (package / "lib.py").write_text("FACTOR = 2\n")
    (package / "new.py").write_text("")
    assert found.changed("kit.stages.first") == ["kit/lib.py", "kit/new.py"]


def test_bytecode_that_could_pass_for_an_edited_file_goes(sources, package):
    module = package / "lib.py"
    old = module.stat()
    py_compile.compile(str(module))
    assert Path(cache_from_source(module)).exists()
    sources().closure("kit.stages.first")
    py_compile.compile(str(module))
    sources().closure("kit.stages.first")
    assert Path(cache_from_source(module)).exists()
    module.write_text(module.read_text().replace("2", "3"))
    os.utime(module, ns=(old.st_atime_ns, old.st_mtime_ns))
    sources().closure("kit.stages.first")
    assert not Path(cache_from_source(module)).exists()


def test_versions_are_read_off_directory_names(tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    for name in ("first/Some_Kit-1.2+cpu.dist-info", "second/some_kit-9.dist-info", "second/other-3.dist-info"):
        (tmp_path / name).mkdir(parents=True)
    libraries = Libraries([str(first), str(tmp_path / "no such folder"), str(second)])
    assert libraries.versions(("some-kit", "other", "absent")) == {
        "some-kit": "1.2+cpu",
        "other": "3",
        "absent": "absent",
    }


def test_two_versions_in_one_folder_are_both_said(tmp_path):
    for name in ("kit-1.dist-info", "kit-2.dist-info"):
        (tmp_path / name).mkdir()
    assert Libraries([str(tmp_path)]).versions(("kit",)) == {"kit": "1 and 2"}


def test_installed_versions_are_those_of_the_metadata():
    from importlib.metadata import version

    names = ("pydantic", "pyyaml", "torch", "transformers")
    assert Libraries().versions(names) == {name: version(name) for name in names}
