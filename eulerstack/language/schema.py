"""The whole document: one class per block of `docs/language.md`, sections 1 to 4 and 7. JSON Schema comes from here."""

from typing import Annotated, Any, Literal

from pydantic import Field

from eulerstack.language.block import AsTuple, Name, PositiveFloat, PositiveInt, block
from eulerstack.language.hints import Compatibility, ExecutionMode, TrainingHints, Transition
from eulerstack.language.schedule import Entry
from eulerstack.language.template import Template


@block
class Model:
    """The size of the model."""

    name: Name = Field(description="name of the architecture")
    family_hint: Name | None = Field(None, description="advisory; compared with the mixers found")
    d_model: PositiveInt = Field(description="width of the residual stream")
    vocab_size: PositiveInt = Field(description="rows of the embedding")
    max_seq_len: PositiveInt = Field(description="longest sequence")
    n_heads: PositiveInt = Field(description="query heads")
    n_kv_heads: PositiveInt | None = Field(None, description="key and value heads, n_heads by default")
    mlp_ratio: PositiveFloat = Field(4.0, description="FFN width over d_model, unless d_ff is given")
    dtype: Literal["float32", "float16", "bfloat16"] = Field("bfloat16", description="dtype of the weights")
    target_params: PositiveInt | None = Field(None, description="intended size; a warning beyond 30 %")
    head_dim: PositiveInt | None = Field(None, description="d_model / n_heads by default")
    d_ff: PositiveInt | None = Field(None, description="exact FFN width")
    norm_eps: PositiveFloat = Field(1e-5, description="of every norm")


@block
class TokenizerContract:
    """Which tokenizer ships with the model."""

    type: Literal["hf", "byte_bpe"] = Field(description="a Hugging Face tokenizer, or a byte-level BPE trained here")
    pretrained: Name | None = Field(None, description="local directory or hub name (hf)")
    corpus: Name | None = Field(None, description="dolma JSONL to train on (byte_bpe)")
    add_bos: bool = True
    add_eos: bool = True
    pad_token: Name | None = None


@block
class RopeScaling:
    """Stretching of rotary positions; extra fields as transformers spells them."""

    type: Literal["linear", "dynamic", "yarn", "llama3"]
    factor: float
    original_max_position_embeddings: PositiveInt | None = None
    attention_factor: PositiveFloat | None = None
    beta_fast: PositiveFloat | None = None
    beta_slow: PositiveFloat | None = None
    mscale: PositiveFloat | None = None
    mscale_all_dim: PositiveFloat | None = None
    truncate: bool | None = None
    low_freq_factor: PositiveFloat | None = None
    high_freq_factor: PositiveFloat | None = None


@block
class Embedding:
    """Tokens and positions on the way in."""

    type: Literal["learned"] = Field(description="a table")
    positional: Literal["rope", "alibi", "none", "learned"] = Field(description="how order is known")
    rope_theta: PositiveFloat = Field(10000.0, description="base of the rotary frequencies")
    rope_scaling: RopeScaling | None = None
    rope_fraction: Annotated[float, Field(gt=0, le=1)] = Field(1.0, description="share of each head that rotates")
    tie_word_embeddings: bool = Field(True, description="should equal head.tie_weights, which decides")
    scale: PositiveFloat | None = Field(None, description="factor on the embedding output")


@block
class Mtp:
    """Multi-token prediction (DeepSeek-V3)."""

    n_predict: PositiveInt = 1
    head_layers: PositiveInt = 1
    head_template: Name
    train_loss_weight: Annotated[float, Field(ge=0)] = 0.1


@block
class Head:
    """The way out."""

    type: Literal["causal_lm", "causal_lm_mtp"] = Field(description="what is predicted")
    tie_weights: bool = Field(True, description="the head shares the embedding's weight")
    logit_softcap: PositiveFloat | None = Field(None, description="tanh cap on the logits")
    bias: bool = Field(False, description="bias on the logits")
    final_norm: bool | None = Field(None, description="true; false when every norm is post")
    mtp: Mtp | None = None


@block
class Spec:
    """A preset file."""

    schema_version: Annotated[int, Field(ge=1, le=1, description="of this language")]
    model: Model
    tokenizer_contract: TokenizerContract
    embedding: Embedding
    layer_templates: dict[Name, Template] = Field(min_length=1)
    layer_schedule: Annotated[tuple[Entry, ...], AsTuple, Field(min_length=1)]
    head: Head
    training_hints: TrainingHints = TrainingHints()
    compatibility: Compatibility = Compatibility()
    execution_modes: Annotated[tuple[ExecutionMode, ...], AsTuple, Field(min_length=1)] = ()
    transition: Transition | None = None
    let: dict[Name, Any] = Field(default_factory=dict, description="name -> number; used as ${...}")
