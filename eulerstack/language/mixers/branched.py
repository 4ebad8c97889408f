"""The `branched` mixer: several mixers side by side and a selector."""

import json
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import Field, WrapValidator

from eulerstack.language.block import Breach, Name, PositiveInt, block


def _branch(value: Any, handler) -> Any:
    # A branch is any other mixer; the union is only known once every mixer file is read.
    from eulerstack.language.template import unbranched

    return value if hasattr(value, "keeps") else unbranched().validate_json(json.dumps(value))


Branch = Annotated[Any, WrapValidator(_branch)]


@block
class Selector:
    """How branches are weighed."""

    type: Literal["learned_gate", "top_k"] = "learned_gate"
    top_k: PositiveInt = 1
    input: Literal["hidden"] = "hidden"


@block
class Branched:
    """Options of a branched mixer."""

    branches: dict[Name, Branch] = Field(min_length=2, description="name -> mixer, not nested")
    selector: Selector = Field(Selector(), description="how branches are weighed")


@block
class Block:
    """`mixer: {type: branched, branched: {...}}`"""

    type: Literal["branched"]
    branched: Branched

    @property
    def keeps(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(kept for mixer in self.branched.branches.values() for kept in mixer.keeps))

    def breaches(self, spec: Any) -> Iterator[Breach]:
        branches, selector = self.branched.branches, self.branched.selector
        for name, mixer in branches.items():
            yield from (b.under("branched", "branches", name) for b in mixer.breaches(spec))
        where = ("branched", "selector", "top_k")
        if selector.top_k > len(branches):
            yield Breach(where, f"top_k {selector.top_k} of {len(branches)} branches", f"at most {len(branches)}")
        elif selector.type == "learned_gate" and selector.top_k != 1:
            yield Breach(where, "learned_gate mixes all branches", "set selector.type to top_k, or leave top_k out")
