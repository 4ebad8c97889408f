"""The `ttt_layer` mixer: a state that is itself a small model, trained at test time (Sun et al. 2024)."""

from collections.abc import Iterator
from typing import Any, ClassVar, Literal

from pydantic import Field

from eulerstack.language.block import Breach, PositiveFloat, PositiveInt, block


@block
class InnerModel:
    """The model that is the state."""

    type: Literal["mlp", "linear"] = "mlp"
    hidden: PositiveInt = 256


@block
class TTT:
    """Options of a test-time-training layer."""

    inner_model: InnerModel = Field(InnerModel(), description="the model that is the state")
    inner_optimizer: Literal["sgd", "adamw"] = Field("sgd", description="how the state learns")
    inner_lr: PositiveFloat = Field(0.01, description="its learning rate")
    inner_steps_per_token: PositiveInt = Field(1, description="its steps per token")
    mini_batch: PositiveInt = Field(16, description="tokens per inner step in the dual form")


@block
class Block:
    """`mixer: {type: ttt_layer, ttt: {...}}`"""

    type: Literal["ttt_layer"]
    ttt: TTT = TTT()

    keeps: ClassVar[tuple[str, ...]] = ("ssm_state",)

    def breaches(self, spec: Any) -> Iterator[Breach]:
        yield from ()
