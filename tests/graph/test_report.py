"""What the user reads: one line per executed task, and the count of the rest."""

import io
import signal
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from doit.exceptions import TaskFailed, UnmetDependency

from eulerstack.graph.report import Reporter


def task(name: str, how: str = "made", summary: str = "12 layers", note: str = "") -> SimpleNamespace:
    place = SimpleNamespace(sources=SimpleNamespace(pin=lambda: None), sweep=lambda: None)
    stage_name, _, preset = name.partition(":")
    stage = SimpleNamespace(check=None) if stage_name.endswith("sanity") else SimpleNamespace()
    step = SimpleNamespace(how=how, summary=summary, note=note, skipped_for=note.removeprefix("skipped: "), place=place)
    vars(step).update(stage=stage, stage_name=stage_name, preset=Path(f"{preset}.yml"))
    return SimpleNamespace(name=name, meta={"step": step})


@pytest.fixture
def reporter():
    """A reporter of three tasks and a group, and what it has printed; handlers are put back."""
    handler, hook = signal.getsignal(signal.SIGTERM), sys.excepthook
    found = Reporter(io.StringIO(), {})
    names = ("normalize:one", "compile:one", "gpu_sanity:one")
    found.initialize(
        {name: task(name) for name in names} | {"compile": SimpleNamespace(name="compile", meta=None)}, names
    )
    yield found
    signal.signal(signal.SIGTERM, handler)
    sys.excepthook = hook


def printed(reporter: Reporter) -> list[str]:
    return reporter.outstream.getvalue().splitlines()


def test_a_run_with_nothing_to_do_is_one_line(reporter):
    for name in ("normalize:one", "compile:one"):
        reporter.skip_uptodate(task(name))
    reporter.skip_uptodate(SimpleNamespace(name="compile", meta=None))
    reporter.complete_run()
    assert printed(reporter) == ["2 tasks up to date"]


def test_no_presets_is_said_as_such(reporter):
    reporter.complete_run()
    assert printed(reporter) == ["nothing to do: there are no presets"]


def test_executed_tasks_have_a_line_each_and_groups_have_none(reporter):
    for done in (task("normalize:one"), task("compile:one", "restored", "7 parameters")):
        reporter.execute_task(done)
        reporter.add_success(done)
    reporter.execute_task(SimpleNamespace(name="compile", meta=None))
    reporter.add_success(SimpleNamespace(name="compile", meta=None))
    reporter.skip_uptodate(task("normalize:two"))
    reporter.complete_run()
    assert printed(reporter) == [
        "normalize:one   made         0.0 s  12 layers",
        "compile:one     restored     0.0 s  7 parameters",
        "1 made, 1 restored, 1 up to date in 0.0 s",
    ]


def test_the_verdicts_of_several_presets_are_told_again_in_a_table(reporter):
    reporter.add_success(task("cpu_sanity:good", summary="PASS: 7 of 7 laws, loss 5.9 -> 2.3"))
    reporter.skip_uptodate(task("cpu_sanity:a_fresh_one", summary="PASS: 7 of 7 laws, loss 5.8 -> 2.1"))
    wrong = "cpu_sanity.json: SanityError: causal: 3e-01 sd, first apart after layer 1\nFix: mend\nSee: that"
    reporter.add_failure(task("cpu_sanity:bad"), TaskFailed(wrong))
    reporter.add_failure(task("cpu_sanity:later"), UnmetDependency("compile:later"))
    reporter.add_failure(SimpleNamespace(name="sanity", meta=None), UnmetDependency("cpu_sanity:bad"))
    with pytest.raises(SystemExit):
        reporter.complete_run()
    table = [line.rstrip() for line in printed(reporter)[-7:-1]]
    assert table == [
        "cpu_sanity of 4 presets: 2 PASS, 1 FAIL, 1 blocked",
        "a_fresh_one  PASS     7 of 7 laws, loss 5.8 -> 2.1                 up to date",
        "bad          FAIL     causal: 3e-01 sd, first apart after layer 1",
        "good         PASS     7 of 7 laws, loss 5.9 -> 2.3                 made",
        "later        blocked  needs compile:later, which failed",
        "",
    ]


@pytest.mark.parametrize("names", [("cpu_sanity:one",), ("normalize:one", "normalize:two")])
def test_one_verdict_and_stages_that_judge_nothing_need_no_table(reporter, names):
    for name in names:
        reporter.add_success(task(name))
    reporter.complete_run()
    assert len(printed(reporter)) == len(names) + 1


def test_nothing_new_needs_no_table(reporter):
    for name in ("cpu_sanity:one", "cpu_sanity:two"):
        reporter.skip_uptodate(task(name, summary="PASS: 7 of 7 laws"))
    reporter.complete_run()
    assert printed(reporter) == ["2 tasks up to date"]


def test_skipped_is_never_said_to_be_done(reporter):
    reporter.add_success(task("gpu_sanity:one", summary="skipped: no device", note="skipped: no device"))
    reporter.skip_uptodate(task("gpu_sanity:two", summary="skipped: no device", note="skipped: no device"))
    reporter.complete_run()
    assert printed(reporter) == [
        "gpu_sanity:one  skipped      0.0 s  no device",
        "",
        "gpu_sanity of 2 presets: 2 skipped",
        "one  skipped  no device",
        "two  skipped  no device  up to date",
        "",
        "2 skipped: no device, 0 up to date in 0.0 s",
    ]


def test_a_failure_is_its_message_and_what_it_blocks_is_named(reporter):
    reporter.add_failure(task("normalize:one"), TaskFailed("one.yml:3: wrong\nFix: this\nSee: that"))
    reporter.add_failure(task("compile:one"), UnmetDependency("normalize:one"))
    with pytest.raises(SystemExit) as end:
        reporter.complete_run()
    assert end.value.code == 1
    assert printed(reporter) == [
        "normalize:one   FAILED       0.0 s",
        "one.yml:3: wrong",
        "Fix: this",
        "See: that",
        "compile:one     blocked      0.0 s  needs normalize:one, which failed",
        "1 blocked, 1 failed, 0 up to date in 0.0 s",
    ]


def test_a_group_that_is_blocked_is_no_blocked_task(reporter):
    reporter.add_failure(task("normalize:one"), TaskFailed("one.yml:3: wrong"))
    reporter.add_failure(task("compile:one"), UnmetDependency("normalize:one"))
    reporter.add_failure(SimpleNamespace(name="compile", meta=None), UnmetDependency("compile:one"))
    with pytest.raises(SystemExit):
        reporter.complete_run()
    assert printed(reporter)[-1] == "1 blocked, 1 failed, 0 up to date in 0.0 s"
    assert [line for line in printed(reporter) if line.startswith("compile ")] == []


def test_a_group_that_alone_is_blocked_ends_with_status_1(reporter):
    reporter.add_failure(task("normalize:one"), TaskFailed("one.yml:3: wrong"))
    reporter.add_failure(SimpleNamespace(name="normalize", meta=None), UnmetDependency("normalize:one"))
    with pytest.raises(SystemExit) as end:
        reporter.complete_run()
    assert end.value.code == 1


def test_an_interrupted_run_is_not_said_to_have_failed_by_itself(reporter):
    reporter.add_failure(task("compile:one"), UnmetDependency("normalize:one"))

    def interrupted():
        try:
            raise KeyboardInterrupt
        finally:
            reporter.complete_run()

    with pytest.raises(KeyboardInterrupt):
        interrupted()


def test_sigterm_interrupts_and_an_interrupt_has_no_traceback(reporter, capsys):
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGTERM)
    sys.excepthook(KeyboardInterrupt, KeyboardInterrupt(), None)
    assert capsys.readouterr().err == "interrupted; what was finished is kept\n"
