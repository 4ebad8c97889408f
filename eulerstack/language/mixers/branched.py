"""The `branched` mixer: several mixers side by side and a selector."""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Annotated, Any, Literal, Self

from pydantic import Field, WrapValidator

from eulerstack.language.block import Breach, Dims, Name, Plain, PositiveInt, Shape, block


def _branch(value: Any, handler) -> Any:
    # A branch is any other mixer; the union is only known once every mixer file is read.
    from eulerstack.language.template import unbranched

    return value if hasattr(value, "keeps") else unbranched().validate_json(json.dumps(value))


Branch = Annotated[Any, WrapValidator(_branch)]


@block
class Selector:
    """How branches are weighed."""

    type: Literal["learned_gate", "top_k"] = Field("learned_gate", description="all branches by a softmax, or the best")
    top_k: PositiveInt = Field(1, description="how many of the best (top_k)")
    input: Literal["hidden"] = Field("hidden", description="what decides: the input of the mixer")


@block
class Branched:
    """Options of a branched mixer."""

    branches: dict[Name, Branch] = Field(
        min_length=2, description="two or more mixers by names of your own, not nested"
    )
    selector: Selector = Field(Selector(), description="how branches are weighed")


@block
class Block(Plain):
    """`mixer: {type: branched, branched: {...}}`"""

    type: Literal["branched"] = Field(description="several mixers side by side")
    branched: Branched = Field(description="which, and how they are weighed")

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

    def completed(self, dims: Dims) -> Self:
        return self._each(lambda mixer: mixer.completed(dims))

    def shrunk(self, dims: Dims, small: Dims) -> Self:
        return self._each(lambda mixer: mixer.shrunk(dims, small))

    def _each(self, change: Callable[[Any], Any]) -> Self:
        branches = {name: change(mixer) for name, mixer in self.branched.branches.items()}
        return replace(self, branched=replace(self.branched, branches=branches))

    def runtime(self, dims: Dims) -> dict:
        own = self.branched
        branches = {name: mixer.runtime(dims) for name, mixer in own.branches.items()}
        return {"type": "branched", "branches": branches, "selector": own.selector.type, "top_k": own.selector.top_k}

    def tensors(self, dims: Dims) -> dict[str, Shape]:
        """A branch stands under `branch_<its name>`, where "%", "." and "/" are escaped as in an address."""
        shapes: dict[str, Shape] = {"gate.weight": (len(self.branched.branches), dims.d_model)}
        for name, mixer in self.branched.branches.items():
            safe = name.replace("%", "%25").replace(".", "%2E").replace("/", "%2F")
            shapes |= {f"branch_{safe}.{inner}": shape for inner, shape in mixer.tensors(dims).items()}
        return shapes

    def flops(self, dims: Dims, length: int) -> int:
        """Every branch runs on every token, chosen or not: a recurrence needs all of them."""
        gate = 2 * len(self.branched.branches) * dims.d_model
        return gate + sum(mixer.flops(dims, length) for mixer in self.branched.branches.values())

    def kv_cache_bytes(self, dims: Dims, length: int) -> int:
        return sum(mixer.kv_cache_bytes(dims, length) for mixer in self.branched.branches.values())

    def state_bytes(self, dims: Dims) -> int:
        return sum(mixer.state_bytes(dims) for mixer in self.branched.branches.values())
