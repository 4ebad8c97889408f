"""`eulerstack why`: which input of a task changed, from what to what."""

import click

SEE = "docs/building.md#why"


@click.command("why")
@click.argument("names", nargs=-1, required=True, metavar="TASK|PRESET...")
def command(names: tuple[str, ...]) -> None:
    """Say why a task would run again: which input changed, from what to what, here or upstream.

    TASK is such as cpu_sanity:my_model; the name of a stage or of a preset is all of its tasks. Nothing is run, and
    the status is 0 whatever is said.
    """
    from eulerstack.graph.why import why, with_upstream

    steps = _steps()
    for found, whole in [_chosen(name, steps) for name in names]:
        for some in [found] if whole else map(with_upstream, found):
            for line in why(some, whole):
                click.echo(line)


def _steps():
    """The steps of the workspace by name, those of a preset with upstream first."""
    from doit.exceptions import InvalidDodoFile

    from eulerstack.graph.tasks import task_stages

    try:
        tasks = list(task_stages())
    except InvalidDodoFile as error:
        click.echo(str(error), err=True)
        raise SystemExit(1) from None
    found = (task["meta"]["step"] for task in tasks if "meta" in task)
    return {step.name: step for step in found}


def _chosen(name: str, steps: dict) -> tuple[list, bool]:
    """The steps that a name means, and whether it is a preset; ValidationError, with the nearest name, if none."""
    if name in steps:
        return [steps[name]], False
    of_preset = [step for step in steps.values() if step.preset.stem == name]
    if of_preset:
        return of_preset, True
    of_stage = [step for step in steps.values() if step.stage_name == name]
    if of_stage:
        return of_stage, False
    raise _unknown(name, steps)


def _unknown(name: str, steps: dict):
    from difflib import get_close_matches

    from eulerstack.errors import ValidationError

    known = {*steps}.union(*({step.preset.stem, step.stage_name} for step in steps.values()))
    near = get_close_matches(name, sorted(known), 1)
    fix = f"did you mean '{near[0]}'?" if near else "`doit list` shows every preset and stage"
    return ValidationError.at(name, "no such task, stage or preset in this workspace", fix, SEE)
