import pytest

from eulerstack.errors import ExportError
from eulerstack.export.files import appearing, explained, write_atomically, write_bytes


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_write_bytes_says_what_it_wrote(tmp_path):
    record = write_bytes(tmp_path / "f", b"abc")
    assert (tmp_path / "f").read_bytes() == b"abc"
    assert record.sha256 == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert record.size == 3


def test_write_atomically_makes_folders_and_replaces(tmp_path):
    path = tmp_path / "a" / "b" / "f.json"
    write_atomically(path, b"1")
    write_atomically(path, b"22")
    assert path.read_bytes() == b"22"
    assert names(path.parent) == ["f.json"]


def test_a_folder_appears_when_the_block_ends(tmp_path):
    target = tmp_path / "deep" / "hf"
    with appearing(target) as folder:
        (folder / "f").write_text("new")
        assert folder.parent == target.parent
        assert not target.exists()
    assert (target / "f").read_text() == "new"
    assert names(target.parent) == ["hf"]


def test_the_old_folder_stays_until_the_new_one_is_whole(tmp_path):
    target = tmp_path / "hf"
    target.mkdir()
    (target / "old").write_text("")
    with appearing(target) as folder:
        (folder / "new").write_text("")
        assert names(target) == ["old"]
    assert names(target) == ["new"]
    assert names(tmp_path) == ["hf"]


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_failure_leaves_everything_as_it_was(tmp_path, error):
    target = tmp_path / "hf"
    target.mkdir()
    (target / "old").write_text("")

    def fail():
        with appearing(target) as folder:
            (folder / "new").write_text("")
            raise error

    with pytest.raises(error):
        fail()
    assert names(target) == ["old"]
    assert names(tmp_path) == ["hf"]


def test_leftovers_of_a_killed_writer_go(tmp_path):
    (tmp_path / ".hf.partial" / "sub").mkdir(parents=True)
    (tmp_path / ".hf.partial" / "sub" / "half").write_text("x")
    (tmp_path / ".hf.partial" / "link").symlink_to(tmp_path)
    with appearing(tmp_path / "hf") as folder:
        assert names(folder) == []
    assert names(tmp_path) == ["hf"]


def test_a_swap_that_stopped_half_way_is_undone_first(tmp_path):
    (tmp_path / ".hf.old").mkdir()
    (tmp_path / ".hf.old" / "old").write_text("")
    with appearing(tmp_path / "hf"):
        assert names(tmp_path / "hf") == ["old"]
    assert names(tmp_path) == ["hf"]


def test_two_writers_of_one_target(tmp_path):
    with appearing(tmp_path / "hf") as folder:
        (folder / "f").write_text("first")
        with pytest.raises(ExportError, match="another process"), appearing(tmp_path / "hf"):
            pass
        assert names(folder) == ["f"]
    assert (tmp_path / "hf" / "f").read_text() == "first"


def test_an_error_of_the_system_is_explained(tmp_path):
    error = explained(tmp_path, OSError(28, "No space left on device"))
    assert isinstance(error, ExportError)
    assert "No space left on device" in str(error)
    assert "free some space" in str(error)
