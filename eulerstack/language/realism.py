"""Named heuristics (docs/language.md, section realism): what is legal but rarely meant. An error finding blocks.

The rules stand in `realism_rules.py`; each is switched off by its name.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from eulerstack.errors import Problem
from eulerstack.language.document import Document, echoes
from eulerstack.language.realism_rules import RULES, Finding, target_params_mismatch
from eulerstack.language.where import REFERENCE, Where

NAMES = {rule.__name__: rule for rule in RULES}


def check_realism(document: Document, disabled: Iterable[str] = (), wrong: Iterable[Where] = ()) -> list[Problem]:
    """Placed findings: category Warning, or ValidationError where the finding blocks.

    ValueError for a rule in `disabled` that does not exist.
    """
    disabled, wrong = set(disabled), set(wrong)
    if unknown := disabled - NAMES.keys():
        raise ValueError(f"no realism rule {', '.join(sorted(unknown))}; rules: {', '.join(NAMES)}")
    return [
        _placed(document, name, finding)
        for name, rule in NAMES.items()
        if name not in disabled
        for finding in dict.fromkeys(rule(document))
        if not echoes(finding.where, wrong)
    ]


def judge_realism(checked: Any, *, estimate: int | None, disabled: Iterable[str] = ()) -> tuple[Problem, ...]:
    """What can only be said of a `load.Checked` once its parameters are counted; the rest is in its warnings."""
    document = Document(checked.spec, checked.source, estimate)
    others = NAMES.keys() - {target_params_mismatch.__name__}
    return tuple(check_realism(document, others | set(disabled)))


def _placed(document: Document, name: str, finding: Finding) -> Problem:
    category = "ValidationError" if finding.error else "Warning"
    problem = document.source.problem(category, finding.where, f"{finding.what} [{name}]", finding.fix)
    return replace(problem, see=f"{REFERENCE}#realism")
