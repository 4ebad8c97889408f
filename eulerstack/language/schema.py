"""The whole document: one class per block of `docs/language.md`, sections 1 to 4 and 7. JSON Schema comes from here."""

from typing import Annotated, Any, Literal

from pydantic import Field

from eulerstack.language.block import EXT, AsTuple, Name, PositiveFloat, PositiveInt, block
from eulerstack.language.hints import Compatibility, ExecutionMode, TrainingHints, Transition
from eulerstack.language.mtp import Mtp
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
    head_dim: PositiveInt | None = Field(None, description="d_model / n_heads by default", json_schema_extra=EXT)
    d_ff: PositiveInt | None = Field(None, description="exact FFN width", json_schema_extra=EXT)
    norm_eps: PositiveFloat = Field(1e-5, description="of every norm", json_schema_extra=EXT)


@block
class TokenizerContract:
    """Which tokenizer ships with the model."""

    type: Literal["hf", "byte_bpe"] = Field(description="a Hugging Face tokenizer, or a byte-level BPE trained here")
    pretrained: Name | None = Field(None, description="local directory or hub name (hf)")
    corpus: Name | None = Field(None, description="dolma JSONL to train on (byte_bpe)", json_schema_extra=EXT)
    add_bos: bool = Field(True, description="mark the start of every text")
    add_eos: bool = Field(True, description="mark the end of every text, prompts too")
    pad_token: Name | None = Field(None, description="token for padding, added if missing")


@block
class RopeScaling:
    """Stretching of rotary positions; extra fields as transformers spells them."""

    type: Literal["linear", "dynamic", "yarn", "llama3"] = Field(description="which formula")
    factor: float = Field(description="new length over the old")
    original_max_position_embeddings: PositiveInt | None = Field(
        None, description="the old length (yarn, llama3)", json_schema_extra=EXT
    )
    attention_factor: PositiveFloat | None = Field(
        None, description="of the logits, from the factor by default (yarn)", json_schema_extra=EXT
    )
    beta_fast: PositiveFloat | None = Field(None, description="fastest pair to blend, 32 (yarn)", json_schema_extra=EXT)
    beta_slow: PositiveFloat | None = Field(None, description="slowest pair to blend, 1 (yarn)", json_schema_extra=EXT)
    mscale: PositiveFloat | None = Field(
        None, description="numerator of the attention factor (yarn)", json_schema_extra=EXT
    )
    mscale_all_dim: PositiveFloat | None = Field(None, description="its denominator (yarn)", json_schema_extra=EXT)
    truncate: bool | None = Field(None, description="round the ends of the ramp, true (yarn)", json_schema_extra=EXT)
    low_freq_factor: PositiveFloat | None = Field(
        None, description="where stretching is whole (llama3)", json_schema_extra=EXT
    )
    high_freq_factor: PositiveFloat | None = Field(None, description="where it begins (llama3)", json_schema_extra=EXT)


@block
class Embedding:
    """Tokens and positions on the way in."""

    type: Literal["learned"] = Field(description="a table")
    positional: Literal["rope", "alibi", "none", "learned"] = Field(description="how order is known")
    rope_theta: PositiveFloat = Field(10000.0, description="base of the rotary frequencies")
    rope_scaling: RopeScaling | None = Field(None, description="stretching of rotary positions")
    rope_fraction: Annotated[float, Field(gt=0, le=1)] = Field(
        1.0, description="share of each head that rotates", json_schema_extra=EXT
    )
    tie_word_embeddings: bool = Field(True, description="should equal head.tie_weights, which decides")
    scale: PositiveFloat | None = Field(None, description="factor on the embedding output")


@block
class Head:
    """The way out."""

    type: Literal["causal_lm", "causal_lm_mtp"] = Field(description="what is predicted")
    tie_weights: bool = Field(True, description="the head shares the embedding's weight")
    logit_softcap: PositiveFloat | None = Field(None, description="tanh cap on the logits")
    bias: bool = Field(False, description="bias on the logits", json_schema_extra=EXT)
    final_norm: bool | None = Field(None, description="true; false when every norm is post", json_schema_extra=EXT)
    mtp: Mtp | None = Field(None, description="extra prediction heads (causal_lm_mtp)")


@block
class Spec:
    """A preset file."""

    schema_version: Annotated[int, Field(ge=1, le=1, description="of this language")]
    model: Model = Field(description="sizes")
    tokenizer_contract: TokenizerContract = Field(description="the tokenizer that ships")
    embedding: Embedding = Field(description="tokens and positions")
    layer_templates: dict[Name, Template] = Field(min_length=1, description="name -> one kind of layer")
    layer_schedule: Annotated[tuple[Entry, ...], AsTuple, Field(min_length=1)] = Field(
        description="which layers, in order"
    )
    head: Head = Field(description="the way out")
    training_hints: TrainingHints = Field(TrainingHints(), description="advice to a trainer")
    compatibility: Compatibility = Field(Compatibility(), description="what is built, in which precision")
    execution_modes: Annotated[tuple[ExecutionMode, ...], AsTuple, Field(min_length=1)] = Field(
        (), description="phases of a generation"
    )
    transition: Transition | None = Field(None, description="what ends a phase")
    let: dict[Name, Any] = Field(default_factory=dict, description="name -> number; used as ${...}")
