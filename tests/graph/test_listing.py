from eulerstack.graph.listing import listed


def test_entries_come_sorted_and_by_their_ending(tmp_path):
    for name in ("b.lock", "a.lock", ".hidden", "a"):
        (tmp_path / name).touch()
    assert [path.name for path in listed(tmp_path)] == [".hidden", "a", "a.lock", "b.lock"]
    assert [path.name for path in listed(tmp_path, ".lock")] == ["a.lock", "b.lock"]


def test_a_folder_that_is_not_there_or_no_folder_has_none(tmp_path):
    (tmp_path / "file").touch()
    assert listed(tmp_path / "nothing") == listed(tmp_path / "file") == []
