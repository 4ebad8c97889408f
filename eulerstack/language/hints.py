"""`training_hints`, `compatibility`, `execution_modes`, `transition`."""

from typing import Annotated, Literal

from pydantic import Field

from eulerstack.language.block import (
    AsTuple,
    Name,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Probability,
    block,
)

Globs = Annotated[tuple[Name, ...], AsTuple]
Ratio = Annotated[float, Field(ge=0, le=1)]
Coefs = Annotated[tuple[float, ...], AsTuple]


@block
class InitOptions:
    """How weights start."""

    std: PositiveFloat = 0.02
    scheme: Literal["normal", "truncated_normal", "scaled_residual", "mup"] = "normal"


@block
class OptimizerGroups:
    muon: Globs = ()
    adamw: Globs = ()


@block
class Muon:
    ns_iters: NonNegativeInt = 8
    ns_coefs: Coefs = (3.4445, -4.7750, 2.0315)
    stabilize_iters: NonNegativeInt = 2
    stabilize_coefs: Coefs = (2.0, -1.5, 0.5)


@block
class TrainingHints:
    """Advice to a trainer, carried to config.json; the model itself uses `dropout`, `seed` and `init`."""

    init: Literal["normal_0.02"] | InitOptions = Field("normal_0.02", description="how weights start")
    dropout: Annotated[float, Field(lt=1)] = Field(0.0, description="on embeddings and residual branches")
    checkpointing: bool = False
    seed: NonNegativeInt = 42
    router_aux_loss_coef: NonNegativeFloat = 0.01
    lr_peak: PositiveFloat = 3e-4
    lr_floor_ratio: Ratio = 0.1
    betas: Annotated[tuple[Probability, Probability], AsTuple] = (0.9, 0.95)
    weight_decay: NonNegativeFloat = 0.1
    grad_clip: NonNegativeFloat = Field(1.0, description="0 switches it off")
    warmup_steps_ratio: Ratio = 0.03
    router_lr_multiplier: NonNegativeFloat = 1.0
    optimizer: Literal["adamw", "muon", "hybrid"] = "adamw"
    optimizer_groups: OptimizerGroups | None = None
    muon: Muon | None = None


@block
class QuantAwareTraining:
    """Fake quantisation with straight-through gradients."""

    enabled: bool = False
    dtype: Literal["fp4", "fp8", "int8"] = "fp4"
    scope: Globs = ()
    dequant_to: Literal["fp4", "fp8", "bf16", "fp32"] | None = None


@block
class Compatibility:
    """What is built, and in which precision."""

    compile_target: Literal["huggingface", "native"] = Field("huggingface", description="remote code, or a stock class")
    dtype_policy: Literal["uniform", "layered_safe"] = Field("uniform", description="precision of delicate parts")
    quant_aware_training: QuantAwareTraining | None = None


@block
class ExecutionMode:
    """One phase of a generation."""

    name: Name
    max_tokens: PositiveInt
    kv_share: bool = True
    loss_weight: NonNegativeFloat = 1.0
    visible_to_user: bool = True
    per_token_rationale: bool = False


@block
class Transition:
    """What ends a phase."""

    type: Literal["special_token", "budget_exhausted"]
    token: Name | None = None
