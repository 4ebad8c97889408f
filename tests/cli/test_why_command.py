"""`eulerstack why`: tasks, stages and presets by name, without torch."""

import pytest

from eulerstack.graph.tasks import task_stages


def built(stage: str, preset: str = "tiny") -> None:
    """Build a task of the workspace, with all before it, in this process."""
    from eulerstack.graph.why import with_upstream

    steps = {task["meta"]["step"].name: task["meta"]["step"] for task in task_stages() if "meta" in task}
    chosen = with_upstream(steps[f"{stage}:{preset}"])
    try:
        for step in chosen:
            if not step.is_fresh():
                step.build()
    finally:
        chosen[0].place.pool.close()
        chosen[0].place.scratch.close()
        chosen[0].place.build_scratch.close()


def test_an_edit_is_said_as_what_it_means(run, own):
    built("compile")
    path = own / "presets/tiny.yml"
    text = path.read_text()
    path.write_text(text.replace("window: 16", "window: 32"))
    said = run("why", "compile:tiny")
    assert (said.status, said.err) == (0, "")
    lines = said.out.splitlines()
    assert lines[0] == "normalize:tiny: is stale"
    assert lines[2].startswith("  inputs.preset (presets/tiny.yml): ")
    assert lines[3] == "      layers[2].mixer.attention.window: 16 -> 32"
    assert lines[4] == "compile:tiny: is stale, below normalize:tiny, which is stale"
    path.write_text(text + "# a thought\n")
    assert "its meaning is the same: a comment, or the layout" in run("why", "normalize:tiny").out
    path.write_text(text.replace("window", "windwo"))
    assert "windwo: unknown key" in run("why", "normalize:tiny").out


def test_a_preset_is_all_its_stages_and_a_stage_all_its_presets(run, preset):
    preset("other")
    heads = [line.partition(" ")[0] for line in run("why", "tiny").out.splitlines()]
    stages = ["normalize", "compile", "tokenize", "sanity_export", "cpu_sanity", "export", "gpu_sanity"]
    assert sorted(heads) == sorted(f"{stage}:tiny:" for stage in stages)
    assert [line.partition(" ")[0] for line in run("why", "normalize").out.splitlines()] == [
        "normalize:other:",
        "normalize:tiny:",
    ]


@pytest.mark.parametrize(
    ("name", "fix"),
    [
        ("cpu_sanity:tyni", "did you mean 'cpu_sanity:tiny'?"),
        ("tinny", "did you mean 'tiny'?"),
        ("complie", "did you mean 'compile'?"),
        ("zzz", "`doit list` shows every preset and stage"),
    ],
)
def test_an_unknown_name_is_three_lines_with_the_nearest(run, own, name, fix):
    said = run("why", name)
    assert said.status == 1
    ((first, told, see),) = said.problems
    assert first == f"{name}: ValidationError: no such task, stage or preset in this workspace"
    assert (told, see) == (f"Fix: {fix}", "See: docs/building.md#why")


def test_a_graph_that_cannot_be_made_is_said(run, preset):
    preset("a=b")
    said = run("why", "tiny")
    assert said.status == 1
    assert "the name of a preset may hold neither '=' nor '*'" in said.problems[0][0]
