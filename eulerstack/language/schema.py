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
    family_hint: Name | None = Field(
        None, description="advisory, carried into config.json; compared with the mixers found"
    )
    d_model: PositiveInt = Field(description="width of the residual stream")
    vocab_size: PositiveInt = Field(description="rows of the embedding and of the head")
    max_seq_len: PositiveInt = Field(description="longest sequence, in tokens")
    n_heads: PositiveInt = Field(description="query heads")
    n_kv_heads: PositiveInt | None = Field(
        None, description="heads of keys and values, a divisor of n_heads; by default n_heads"
    )
    mlp_ratio: PositiveFloat = Field(4.0, description="FFN width over d_model, unless d_ff is given")
    dtype: Literal["float32", "float16", "bfloat16"] = Field("bfloat16", description="dtype of the exported weights")
    target_params: PositiveInt | None = Field(
        None, description="intended number of parameters; a warning if it is missed by over 30 %"
    )
    head_dim: PositiveInt | None = Field(
        None, description="channels of a head; by default d_model / n_heads", json_schema_extra=EXT
    )
    d_ff: PositiveInt | None = Field(
        None,
        description="exact FFN width, for one that is no multiple of d_model; by default mlp_ratio * d_model",
        json_schema_extra=EXT,
    )
    norm_eps: PositiveFloat = Field(1e-5, description="epsilon of every norm of the model", json_schema_extra=EXT)


@block
class TokenizerContract:
    """Which tokenizer ships with the model."""

    type: Literal["hf", "byte_bpe"] = Field(description="a tokenizer of Hugging Face, or a byte-level BPE trained here")
    pretrained: Name | None = Field(None, description="local directory or hub name (hf, which needs it)")
    corpus: Name | None = Field(
        None, description="dolma JSONL to train on (byte_bpe); by default the embedded corpus", json_schema_extra=EXT
    )
    add_bos: bool = Field(True, description="every encoded text begins with the mark of its start")
    add_eos: bool = Field(True, description="every encoded text, prompts too, ends with the mark of its end")
    pad_token: Name | None = Field(None, description="token for padding, added if it is not there")


@block
class RopeScaling:
    """Stretching of rotary positions; extra fields as transformers spells them."""

    type: Literal["linear", "dynamic", "yarn", "llama3"] = Field(description="formula of the stretching")
    factor: float = Field(description="new length over the old, above 0")
    original_max_position_embeddings: PositiveInt | None = Field(
        None, description="the old length (yarn and llama3, which need it)", json_schema_extra=EXT
    )
    attention_factor: PositiveFloat | None = Field(
        None, description="factor on what is rotated (yarn); by default from factor and mscale", json_schema_extra=EXT
    )
    beta_fast: PositiveFloat | None = Field(
        None,
        description="turns within the old length from which on a pair is not stretched (yarn); by default 32",
        json_schema_extra=EXT,
    )
    beta_slow: PositiveFloat | None = Field(
        None,
        description="turns within the old length up to which a pair is stretched whole (yarn); by default 1",
        json_schema_extra=EXT,
    )
    mscale: PositiveFloat | None = Field(
        None, description="numerator of the default attention_factor (yarn)", json_schema_extra=EXT
    )
    mscale_all_dim: PositiveFloat | None = Field(
        None, description="its denominator, and a factor of decoupled latent attention (yarn)", json_schema_extra=EXT
    )
    truncate: bool | None = Field(
        None,
        description="round the ends of the ramp between the two betas to whole pairs (yarn); by default true",
        json_schema_extra=EXT,
    )
    low_freq_factor: PositiveFloat | None = Field(
        None,
        description="turns within the old length up to which a pair is stretched whole (llama3, required)",
        json_schema_extra=EXT,
    )
    high_freq_factor: PositiveFloat | None = Field(
        None,
        description="turns within the old length from which on a pair is not stretched (llama3, required)",
        json_schema_extra=EXT,
    )


@block
class Embedding:
    """Tokens and positions on the way in."""

    type: Literal["learned"] = Field(description="a table of learned vectors, one for each token")
    positional: Literal["rope", "alibi", "none", "learned"] = Field(
        description="how the model knows the order of tokens"
    )
    rope_theta: PositiveFloat = Field(10000.0, description="base of the rotary frequencies")
    rope_scaling: RopeScaling | None = Field(None, description="stretching of rotary positions")
    rope_fraction: Annotated[float, Field(gt=0, le=1)] = Field(
        1.0, description="share of each head that rotates", json_schema_extra=EXT
    )
    tie_word_embeddings: bool = Field(True, description="should equal head.tie_weights, which decides")
    scale: PositiveFloat | None = Field(None, description="factor on the embedding output, sqrt(d_model) in Gemma")

    @property
    def fewest_turning(self) -> int:
        """How many channels must turn where any do: a pair, and two of them if the slower are stretched."""
        return 4 if self.rope_scaling and self.rope_scaling.type == "dynamic" else 2

    def turns(self, channels: int) -> bool:
        """Whether the share of `channels` that rope is to turn is made of pairs, and enough of them."""
        share = int(channels * self.rope_fraction)
        return self.positional != "rope" or (share % 2 == 0 and share >= self.fewest_turning)


@block
class Head:
    """The way out."""

    type: Literal["causal_lm", "causal_lm_mtp"] = Field(
        description="the next token, or several in a chain; head_type in config.json"
    )
    tie_weights: bool = Field(True, description="the head shares the weight of the embedding")
    logit_softcap: PositiveFloat | None = Field(None, description="tanh cap on the logits")
    bias: bool = Field(False, description="bias on the logits", json_schema_extra=EXT)
    final_norm: bool | None = Field(
        None,
        description="a norm of the last layer's kind before the head; by default true, or false if every norm is post",
        json_schema_extra=EXT,
    )
    mtp: Mtp | None = Field(None, description="extra prediction modules (causal_lm_mtp, which needs it)")


@block
class Spec:
    """A preset file."""

    schema_version: int = Field(ge=1, le=1, description="version of this language")
    let: dict[Name, Any] = Field(
        default_factory=dict, description="numbers by names of your own, used as ${let.name}; by default no names"
    )
    model: Model = Field(description="name and sizes of the model")
    tokenizer_contract: TokenizerContract = Field(description="the tokenizer that ships with it")
    embedding: Embedding = Field(description="how tokens and their order come in")
    layer_templates: dict[Name, Template] = Field(min_length=1, description="kinds of layers, by names of your own")
    layer_schedule: Annotated[tuple[Entry, ...], AsTuple, Field(min_length=1)] = Field(
        description="which layers there are, in order"
    )
    head: Head = Field(description="how predictions come out")
    training_hints: TrainingHints = Field(
        TrainingHints(), description="advice to a trainer; dropout, seed and first weights"
    )
    compatibility: Compatibility = Field(Compatibility(), description="what is built, and in which precision")
    execution_modes: Annotated[tuple[ExecutionMode, ...], AsTuple, Field(min_length=1)] = Field(
        (), description="phases of a generation, in order"
    )
    transition: Transition | None = Field(None, description="what ends a phase")
