"""`training_hints`, `compatibility`, `execution_modes`, `transition`."""

from typing import Annotated, Literal

from pydantic import Field

from eulerstack.language.block import (
    EXT,
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

    std: PositiveFloat = Field(0.02, description="standard deviation of weights", json_schema_extra=EXT)
    scheme: Literal["normal", "truncated_normal", "scaled_residual", "mup"] = Field(
        "normal", description="how the deviation depends on the weight", json_schema_extra=EXT
    )


@block
class OptimizerGroups:
    muon: Globs = Field((), description="patterns of parameter names for Muon")
    adamw: Globs = Field((), description="patterns of parameter names for AdamW")


@block
class Muon:
    ns_iters: NonNegativeInt = Field(8, description="Newton-Schulz steps")
    ns_coefs: Coefs = Field((3.4445, -4.7750, 2.0315), description="coefficients of their polynomial")
    stabilize_iters: NonNegativeInt = Field(2, description="steps after these that stabilise")
    stabilize_coefs: Coefs = Field((2.0, -1.5, 0.5), description="coefficients of their polynomial")


@block
class TrainingHints:
    """Advice to a trainer, carried to config.json; the model itself uses `dropout`, `seed` and `init`."""

    init: Literal["normal_0.02"] | InitOptions = Field("normal_0.02", description="how weights start")
    dropout: Annotated[float, Field(lt=1)] = Field(0.0, description="dropout on embeddings and residual branches")
    checkpointing: bool = Field(False, description="recompute layers in the backward pass")
    seed: NonNegativeInt = Field(42, description="seed of the weights drawn at export")
    router_aux_loss_coef: NonNegativeFloat = Field(
        0.01, description="weight of the routers' losses; 0 switches them off"
    )
    lr_peak: PositiveFloat = Field(3e-4, description="highest learning rate")
    lr_floor_ratio: Ratio = Field(0.1, description="last learning rate over the highest")
    betas: Annotated[tuple[Probability, Probability], AsTuple] = Field(
        (0.9, 0.95), description="the two decay rates of AdamW"
    )
    weight_decay: NonNegativeFloat = Field(0.1, description="weight decay of AdamW")
    grad_clip: NonNegativeFloat = Field(1.0, description="greatest norm of the gradient; 0 is off")
    warmup_steps_ratio: Ratio = Field(0.03, description="share of the steps that warm up")
    router_lr_multiplier: NonNegativeFloat = Field(1.0, description="learning rate of routers over that of the others")
    optimizer: Literal["adamw", "muon", "hybrid"] = Field(
        "adamw", description="which optimizer; hybrid is both, by group"
    )
    optimizer_groups: OptimizerGroups | None = Field(None, description="which parameters go to which optimizer")
    muon: Muon | None = Field(None, description="settings of Muon")


@block
class QuantAwareTraining:
    """Fake quantisation with straight-through gradients."""

    enabled: bool = Field(False, description="every forward pass uses the weights in scope as if quantised")
    dtype: Literal["fp4", "fp8", "int8"] = Field("fp4", description="format to which weights are rounded")
    scope: Globs = Field((), description="patterns of parameter names; by default all matrices of layers")
    dequant_to: Literal["fp4", "fp8", "bf16", "fp32"] | None = Field(
        None, description="format to which rounded values are rounded again; by default the weights' own"
    )


@block
class Compatibility:
    """What is built, and in which precision."""

    compile_target: Literal["huggingface", "native"] = Field(
        "huggingface", description="code that ships with the model, or a stock class of transformers"
    )
    dtype_policy: Literal["uniform", "layered_safe"] = Field(
        "uniform", description="whether delicate parts compute in float32"
    )
    quant_aware_training: QuantAwareTraining | None = Field(None, description="weights rounded as if quantised")


@block
class ExecutionMode:
    """One phase of a generation."""

    name: Name = Field(description="its name, unique in the list")
    max_tokens: PositiveInt = Field(description="its budget, the transition token included")
    kv_share: bool = Field(True, description="the next phase goes on in the same cache")
    loss_weight: NonNegativeFloat = Field(1.0, description="weight of its tokens in the training loss")
    visible_to_user: bool = Field(True, description="false leaves its tokens out of what is returned")
    per_token_rationale: bool = Field(False, description="advisory, carried to config.json")


@block
class Transition:
    """What ends a phase."""

    type: Literal["special_token", "budget_exhausted"] = Field(
        description="a token, or nothing but the end of the budget"
    )
    token: Name | None = Field(None, description="which token (special_token, which needs it)")
