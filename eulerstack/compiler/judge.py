"""Everything that can be said of a preset without building it: the checked file, its IR, costs, warnings, gaps."""

from dataclasses import dataclass
from pathlib import Path

from eulerstack.compiler.runtime import unbuilt
from eulerstack.errors import Problem
from eulerstack.ir.costs import Costs, costs
from eulerstack.ir.normalizer import normalize
from eulerstack.ir.types import IR
from eulerstack.language.load import Checked, load_preset
from eulerstack.language.realism import judge_realism


@dataclass(frozen=True)
class Judged:
    """A valid preset. `costs` is None when something in it is not built yet, which `unbuilt` then names."""

    checked: Checked
    ir: IR
    costs: Costs | None
    warnings: tuple[Problem, ...]
    unbuilt: tuple[Problem, ...]


def judge(preset: Path, *, disabled: frozenset[str] = frozenset(), length: int | None = None) -> Judged:
    """Check and normalise `preset`; costs at `length` tokens (max_seq_len by default).

    Raises the errors of the language, all at once, realism findings that block among them.
    """
    checked = load_preset(preset, disabled)
    ir = normalize(checked)
    gaps = unbuilt(ir, checked)
    cost = None if gaps else costs(ir, length)
    off_target = judge_realism(checked, estimate=cost.total, disabled=disabled) if cost else ()
    return Judged(checked, ir, cost, checked.warnings + off_target, gaps)
