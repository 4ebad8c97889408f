"""The runtime configuration: `config.json` as an object.

Every value is resolved when the directory is written, so nothing is derived here. The names of the common fields are
Hugging Face's; `blocks` and `block_pattern` describe the layers in the words of the preset language.
"""

from transformers import PretrainedConfig

UNSTRETCHED = ("rope_theta", "partial_rotary_factor")  # of rope, what no stretching changes


class EulerStackConfig(PretrainedConfig):
    """One decoder.

    `blocks` maps a kind of layer to its `mixer`, `ffn`, `norm` and `residual`, each with every option present;
    `block_pattern` names the kind of each of the `num_hidden_layers` layers. `schedule` says in which order they run,
    where that is not one after the other; `streams` is the number of residual streams of a hyper-connection; `mtp` are
    the extra prediction heads; `quantisation` says which weights are used as if quantised. `rope_theta` and
    `partial_rotary_factor` repeat `rope_parameters` for readers of the older spelling; the model reads them not, nor
    `rope_scaling`, which is made of `rope_parameters` and never written: transformers 5 stumbles over a file that has
    both it and `rope_theta` where it reads without this class, as for a tokenizer alone.
    """

    model_type = "eulerstack"
    keys_to_ignore_at_inference = ["past_key_values", "cache"]  # noqa: RUF012  the base class reads a plain list

    def __init__(
        self,
        vocab_size: int = 1,
        hidden_size: int = 1,
        num_hidden_layers: int = 0,
        num_attention_heads: int = 1,
        num_key_value_heads: int = 1,
        head_dim: int = 1,
        intermediate_size: int = 1,
        max_position_embeddings: int = 1,
        initializer_range: float = 0.02,
        rms_norm_eps: float = 1e-5,
        bos_token_id: int | None = None,
        eos_token_id: int | None = None,
        pad_token_id: int | None = None,
        tie_word_embeddings: bool = False,
        use_cache: bool = True,
        rope_parameters: dict | None = None,
        rope_theta: float | None = None,
        rope_scaling: dict | None = None,
        partial_rotary_factor: float | None = None,
        layer_types: list[str] | None = None,
        positional: str = "none",
        embedding_scale: float | None = None,
        blocks: dict[str, dict] | None = None,
        block_pattern: list[str] | None = None,
        schedule: list[dict] | None = None,
        streams: int | None = None,
        mtp: dict | None = None,
        quantisation: dict | None = None,
        final_norm: dict | None = None,
        head_type: str = "causal_lm",
        head_bias: bool = False,
        final_logit_softcapping: float | None = None,
        dropout: float = 0.0,
        init: dict | None = None,
        dtype_policy: str = "uniform",
        router_aux_loss_coef: float = 0.0,
        output_router_logits: bool = False,
        training_hints: dict | None = None,
        execution_modes: list[dict] | None = None,
        transition: dict | None = None,
        family_hint: str | None = None,
        **kwargs,
    ):
        self.vocab_size = vocab_size
        self.hidden_size = hidden_size
        self.num_hidden_layers = num_hidden_layers
        self.num_attention_heads = num_attention_heads
        self.num_key_value_heads = num_key_value_heads
        self.head_dim = head_dim
        self.intermediate_size = intermediate_size
        self.max_position_embeddings = max_position_embeddings
        self.initializer_range = initializer_range
        self.rms_norm_eps = rms_norm_eps
        self.use_cache = use_cache
        if rope_parameters:  # set, even to None, it would be filled and checked as the parameters of a rotary model
            self.rope_parameters = dict(rope_parameters)
        self.rope_theta = rope_theta
        self.partial_rotary_factor = partial_rotary_factor
        self.layer_types = list(layer_types or [])
        self.positional = positional
        self.embedding_scale = embedding_scale
        self.blocks = blocks or {}
        self.block_pattern = list(block_pattern or [])
        self.schedule = schedule
        self.streams = streams
        self.mtp = mtp
        self.quantisation = quantisation
        self.final_norm = final_norm
        self.head_type = head_type
        self.head_bias = head_bias
        self.final_logit_softcapping = final_logit_softcapping
        self.dropout = dropout
        self.init = init or {"scheme": "normal", "std": initializer_range}
        self.dtype_policy = dtype_policy
        self.router_aux_loss_coef = router_aux_loss_coef
        self.output_router_logits = output_router_logits
        self.training_hints = training_hints or {}
        self.execution_modes = execution_modes or []
        self.transition = transition
        self.family_hint = family_hint
        # Last: newer transformers validate the object at the end of it.
        super().__init__(
            bos_token_id=bos_token_id,
            eos_token_id=eos_token_id,
            pad_token_id=pad_token_id,
            tie_word_embeddings=tie_word_embeddings,
            **kwargs,
        )
        if not rope_parameters:
            self.rope_parameters = None
        # Some versions keep only values that differ from their own defaults.
        self.bos_token_id, self.eos_token_id, self.pad_token_id = bos_token_id, eos_token_id, pad_token_id
        self.tie_word_embeddings = tie_word_embeddings

    @property
    def rope_scaling(self) -> dict | None:
        """How rope is stretched, in the older spelling, or None. Set it, and base and share stay."""
        given = self.rope_parameters or {}
        stretched = given.get("rope_type", "default") != "default"
        return {key: value for key, value in given.items() if key not in UNSTRETCHED} if stretched else None

    @rope_scaling.setter
    def rope_scaling(self, scaling: dict | None) -> None:
        if self.rope_parameters:
            kept = {key: value for key, value in self.rope_parameters.items() if key in UNSTRETCHED}
            given = dict(scaling or {})
            self.rope_parameters = {"rope_type": given.pop("type", "default")} | given | kept
        elif scaling:
            raise ValueError("rope_scaling: this model has no rope to stretch")

    @property
    def sliding_window(self) -> int | None:
        """The largest window of any layer, which is what transformers sizes a common key-value cache by; or None."""
        mixers = [block["mixer"] for block in self.blocks.values()]
        mixers += [branch for mixer in mixers for branch in mixer.get("branches", {}).values()]
        return max({mixer.get("window") for mixer in mixers} - {None}, default=None)
