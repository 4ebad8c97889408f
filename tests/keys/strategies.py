"""Hypothesis strategies over whole presets: combinations of everything the language has, at tiny sizes.

Most of what is drawn validates; what the language refuses is left to the caller to skip.
"""

from dataclasses import dataclass, replace

from hypothesis import strategies as st

LENGTH = 64  # max_seq_len, so that learned positions and dynamic scaling see no token beyond it


@dataclass(frozen=True)
class Sizes:
    """What the parts of a preset must know of each other. `width` is d_model, or the inner width of a layer."""

    width: int
    head_dim: int
    n_heads: int
    positional: str
    dynamic: bool
    fraction: float


def some(**optional):
    """A mapping with any of these keys; values are strategies, or tuples to choose from."""
    choices = {key: value if isinstance(value, st.SearchStrategy) else st.sampled_from(value) for key, value in optional.items()}
    return st.fixed_dictionaries({}, optional=choices)


def every(*mappings):
    """The union of mappings that are drawn."""
    return st.tuples(*mappings).map(lambda drawn: {key: value for one in drawn for key, value in one.items()})


def whole(**required):
    choices = {key: value if isinstance(value, st.SearchStrategy) else st.just(value) for key, value in required.items()}
    return st.fixed_dictionaries(choices)


BOOL = st.booleans()
POOLS = ("softmax_gated", "mean", "max", "learned_pool")


def sinks():
    return some(attention_sinks=whole(n_per_head=st.integers(0, 3), learnable=BOOL))


def attention(sizes: Sizes):
    common = every(some(qkv_bias=BOOL, o_bias=BOOL, logit_softcap=(0.5, 20.0), scale=(0.1, 1.0)), sinks())
    norms = some(qk_norm=("rmsnorm", "rmsnorm_full"))
    latent = whole(latent_dim=st.integers(1, max(1, sizes.width - 1)))
    forms = [every(norms, windows()), every(norms, windows(), latent)]
    forms += [every(windows(), latent, decoupled(sizes)), every(norms, some(window=st.integers(1, 9)), compression(sizes))]
    return st.one_of(*(every(common, form) for form in forms))


def windows():
    sparse = whole(
        window=st.integers(1, 9),
        window_mode=st.sampled_from(("dilated", "nsa")),
    )
    return st.one_of(
        st.just({}),
        whole(window=st.integers(1, 9), window_mode=st.sampled_from(("standard", "sliding"))),
        every(sparse, some(window_dilation=st.integers(1, 4))),
    )


def decoupled(sizes: Sizes):
    rope = {"qk_rope_dim": (4, 6) if sizes.dynamic else (2, 4, 6)} if sizes.positional == "rope" else {}
    sizes_of = some(q_latent_dim=st.integers(1, max(1, sizes.width - 1)), qk_nope_dim=st.integers(1, 7), v_head_dim=st.integers(1, 7), **rope)
    return sizes_of.filter(bool)


def compression(sizes: Sizes):
    step = 2 if sizes.fraction == 1 else 4
    dims = (4, 8) if sizes.dynamic else (step, 4, 8)
    if sizes.positional != "rope":
        dims = (1, 3, 4)
    indexer = whole(
        arch=st.sampled_from(("relu_mha", "dot_product", "learned_block_sel")),
        n_heads=st.integers(1, 3),
        d_per_head=st.sampled_from(dims),
        dtype=st.sampled_from(("fp4", "fp8", "bf16", "fp32")),
    )
    shared = whole(m_block=st.integers(1, 6), pool=st.sampled_from(POOLS))
    kinds = (
        every(shared, whole(type="hca")),
        every(shared, whole(type="csa", indexer=indexer, top_k_blocks=st.integers(1, 3))),
        every(shared, whole(type="nsa_learned", indexer=indexer), some(top_k_blocks=st.integers(1, 3))),
    )
    return whole(compression=st.one_of(*kinds))


def mamba1():
    options = some(dt_rank=st.integers(1, 3), conv_bias=BOOL, bias=BOOL, inner_norm=BOOL, expand=(1, 2, 3))
    return every(whole(variant="mamba1", d_state=st.integers(1, 6), d_conv=st.integers(1, 4)), options)


@st.composite
def mamba2(draw, sizes: Sizes):
    expand = draw(st.integers(1, 3))
    channels = expand * sizes.width
    head_dim = draw(st.sampled_from([n for n in range(1, 17) if channels % n == 0]))
    heads = channels // head_dim
    n_groups = draw(st.sampled_from([n for n in range(1, 4) if heads % n == 0]))
    rest = some(conv_bias=BOOL, bias=BOOL, chunk_size=st.integers(1, 9))
    fixed = whole(d_state=st.integers(1, 6), d_conv=st.integers(1, 4))
    return {"expand": expand, "head_dim": head_dim, "n_groups": n_groups} | draw(every(fixed, rest))


def ttt():
    linear = whole(type="linear")
    mlp = whole(type="mlp", hidden=st.integers(1, 9))
    options = some(inner_optimizer=("sgd", "adamw"), inner_lr=(1e-3, 0.05), inner_steps_per_token=(1, 2, 3))
    return every(whole(inner_model=st.one_of(linear, mlp), mini_batch=st.integers(1, 9)), options)


def retnet(sizes: Sizes):
    turning = {} if sizes.head_dim % 2 == 0 and not sizes.dynamic else {"rope": st.just(False)}
    return every(some(chunkwise=BOOL, chunk_size=st.integers(1, 9), rope=BOOL), whole(**turning))


def hyena():
    return every(whole(filter_hidden=st.integers(1, 6), depth=st.integers(1, 3)), some(filter_decay=(0.0, 2.0), short_conv=st.integers(1, 4)))


def plain_mixer(sizes: Sizes):
    kinds = {
        "attention": ("attention", attention(sizes)),
        "mamba": ("mamba", st.one_of(mamba1(), mamba2(sizes))),
        "retnet": ("retnet", retnet(sizes)),
        "hyena": ("hyena", hyena()),
        "ttt_layer": ("ttt", ttt()),
    }
    return st.one_of(*(whole(type=kind, **{name: options}) for kind, (name, options) in kinds.items()))


def mixer(sizes: Sizes):
    one = plain_mixer(sizes)
    branches = st.dictionaries(st.sampled_from(("a", "b.c", "d/e", "f%2")), one, min_size=2, max_size=3)
    selector = st.one_of(whole(type="learned_gate"), whole(type="top_k", top_k=st.integers(1, 2)))
    branched = whole(type="branched", branched=whole(branches=branches, selector=selector))
    return st.one_of(one, one, one, branched, whole(type="none"))


GATES = ("swiglu", "geglu", "gelu", "gelu_tanh", "relu", "relu2")


@st.composite
def moe(draw):
    experts = draw(st.integers(1, 8))
    options = some(
        affinity=("softmax", "sigmoid", "sqrt_softplus"),
        router=("softmax", "sigmoid"),
        normalize_top_k=BOOL,
        routed_scale=(0.5, 2.5),
        d_ff=st.integers(1, 9),
        z_loss=(0.0, 0.01),
        load_balance_coef=(0.0, 0.02),
        router_init_std=(0.5,),
        router_jitter=(0.0, 0.1),
    )
    capacity = some(capacity_factor=(0.3, 1.0, 4.0), capacity_drop_policy=("overflow", "drop", "pad"))
    shared = st.one_of(st.just({}), every(whole(shared_experts=st.integers(1, 2)), some(shared_d_ff=st.integers(1, 7))))
    top_k = draw(st.integers(1, experts))
    return {"experts": experts, "top_k": top_k} | draw(every(options, capacity, shared, routing(experts, top_k)))


def routing(experts: int, top_k: int):
    hashed = whole(routing=whole(type="hash", hash_salt=st.integers(-3, 2**40)))
    sizes = [n for n in range(1, experts + 1) if experts % n == 0]
    groups = [(n, g) for n in sizes for g in range(1, n + 1) if top_k <= g * (experts // n)]
    grouped = st.sampled_from(groups).map(lambda pair: {"groups": pair[0], "group_limit": pair[1]})
    balance = whole(balance=every(st.one_of(st.just({}), grouped), some(sequence_aux_coef=(0.0, 0.1))))
    bias = some(bias_correction=whole(enabled=BOOL, update_rate=st.sampled_from((0.01, 0.5))))
    return st.one_of(hashed, every(bias, st.one_of(st.just({}), balance)))


def ffn():
    bias = {"bias": BOOL}
    return st.one_of(
        every(whole(type="mlp"), some(activation=GATES[2:], **bias)),
        every(whole(type="gated_mlp"), some(activation=GATES, **bias)),
        every(whole(type="moe", moe=moe()), some(activation=GATES, **bias)),
        whole(type="none"),
    )


def norm():
    position = {"position": ("pre", "post", "sandwich", "post_branch")}
    return st.one_of(every(whole(type="rmsnorm"), some(unit_offset=BOOL, **position)), every(whole(type="layernorm"), some(bias=BOOL, **position)))


def memory():
    return whole(
        type=st.sampled_from(("neural_memory", "associative", "retrieval")),
        update_at_inference=BOOL,
        params=whole(hidden=st.integers(1, 12)),
        inner_lr=st.sampled_from((1e-3, 0.5)),
        persistence=st.sampled_from(("per_query", "session", "persistent")),
    )


def change():
    return whole(d_out=st.integers(2, 20), projection=st.sampled_from(("linear", "conv1d", "mlp")))


@st.composite
def template(draw, sizes: Sizes, residual: dict):
    extra = draw(st.sampled_from(((), (), ("memory",), ("shape_change",), ("memory", "shape_change"))))
    layer = {}
    if "memory" in extra:
        layer["memory"] = draw(memory())
    if "shape_change" in extra:
        layer["shape_change"] = draw(change())
        sizes = replace(sizes, width=layer["shape_change"]["d_out"])
    layer |= {"mixer": draw(mixer(sizes)), "ffn": draw(ffn()), "norm": draw(norm())}
    if layer["mixer"]["type"] == layer["ffn"]["type"] == "none":
        layer["ffn"] = {"type": "gated_mlp"}
    return layer | {"residual": residual | draw(some(scaling=(0.5, 1.5))) | _mixing(draw, residual)}


def _mixing(draw, residual: dict) -> dict:
    """Layers share the number of streams, and mix them each in its way."""
    if "hyper" not in residual:
        return {}
    kinds = st.sampled_from(("birkhoff", "unconstrained", "learned_lowrank"))
    return {"hyper": residual["hyper"] | draw(whole(mixing=kinds)) | draw(some(sinkhorn_iters=st.integers(0, 3)))}


def residuals():
    hyper = whole(type="hyper_connection", hyper=whole(expand=st.integers(1, 4)))
    return st.one_of(whole(type="sequential"), whole(type="sequential"), whole(type="parallel"), hyper)


@st.composite
def entry(draw, templates: dict):
    names = st.sampled_from(sorted(templates))
    kind = draw(st.sampled_from(("plain", "plain", "plain", "gated", "parallel", "integrator")))
    if kind == "parallel":
        body = st.lists(whole(template=names), min_size=1, max_size=2)
        bodies = draw(st.lists(body, min_size=2, max_size=3))
        return {"parallel": [{"stream": f"s{i}", "body": b} for i, b in enumerate(bodies)], "merge": draw(merge(len(bodies)))}
    if kind == "integrator":
        methods = st.sampled_from(("discrete", "ode_euler", "ode_rk4"))
        output = st.sampled_from(("token", "hidden"))
        return {"integrator": draw(whole(type=methods, steps=st.integers(1, 2), body=names, output=output))}
    name = draw(names)
    plain = {"template": name} | draw(some(repeat=(2,))) | draw(overrides(templates[name]))
    gates = some(capacity=(0.2, 0.5, 1.0), router=("top_k", "learned_gate"))
    return plain | ({"depth_gating": draw(gates)} if kind == "gated" else {})


def merge(streams: int):
    one = st.integers(0, streams - 1)
    pair = st.tuples(one, one).filter(lambda p: p[0] != p[1]).map(lambda p: {"from": f"s{p[0]}", "to": f"s{p[1]}"})
    others = every(whole(type=st.sampled_from(("add", "gated"))), some(projection=BOOL))
    crossed = every(whole(type="cross_attn"), some(projection=BOOL), pair)
    return st.one_of(whole(type="concat"), others, crossed)


def overrides(layer: dict):
    kinds = {"residual": some(scaling=(0.7,)), "norm": some(position=("pre", "post", "sandwich", "post_branch"))}
    if layer["mixer"]["type"] == "attention" and "window_mode" not in layer["mixer"].get("attention", {}):
        kinds["attention"] = some(window=st.one_of(st.none(), st.integers(1, 9)))
    if layer["ffn"]["type"] != "none":
        kinds["ffn"] = some(activation=("gelu_tanh", "relu"))
    return st.one_of(st.just({}), st.just({}), whole(override=some(**kinds)))


def scaling():
    original = whole(original_max_position_embeddings=16)
    yarn = some(attention_factor=(1.3,), beta_fast=(16.0,), truncate=BOOL)
    scales = st.one_of(st.just({}), whole(mscale=0.7, mscale_all_dim=0.8))
    return st.one_of(
        whole(type="linear", factor=2.0),
        whole(type="dynamic", factor=2.0),
        every(whole(type="yarn", factor=4.0), original, yarn, scales),
        every(whole(type="llama3", factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0), original),
    )


@st.composite
def embedding(draw):
    found = {"type": "learned", "positional": draw(st.sampled_from(("rope", "rope", "rope", "alibi", "none", "learned")))}
    if found["positional"] == "rope":
        found |= draw(some(rope_theta=(100.0,), rope_scaling=scaling(), rope_fraction=(0.5,)))
    return found | draw(some(scale=(3.0,)))


@st.composite
def presets(draw) -> dict:
    places = draw(embedding())
    rotary = places["positional"] == "rope"
    head_dim = draw(st.sampled_from((8, 8, 4, 16) if rotary else (4, 3, 6, 8)))
    kv, groups = draw(st.sampled_from((1, 2, 3))), draw(st.sampled_from((1, 2)))
    width = draw(st.sampled_from((12, 16, 20)))
    dynamic = places.get("rope_scaling", {}).get("type") == "dynamic"
    sizes = Sizes(width, head_dim, kv * groups, places["positional"], dynamic, places.get("rope_fraction", 1.0))
    residual = draw(residuals())
    layers = draw(st.lists(template(sizes, residual), min_size=1, max_size=3))
    templates = {f"t{i}": layer for i, layer in enumerate(layers)}
    model = {"name": "any", "d_model": width, "vocab_size": 270, "max_seq_len": LENGTH, "dtype": "float32"}
    model |= {"n_heads": kv * groups, "n_kv_heads": kv, "head_dim": head_dim} | draw(some(d_ff=st.integers(1, 20)))
    return {
        "schema_version": 1,
        "model": model,
        "tokenizer_contract": {"type": "byte_bpe"},
        "embedding": places,
        "layer_templates": templates,
        "layer_schedule": draw(st.lists(entry(templates), min_size=1, max_size=3)),
        "head": draw(head(sorted(templates))),
        "training_hints": {"init": {"std": 0.3}} | draw(some(router_aux_loss_coef=(0.0, 0.1))),
        "compatibility": draw(compatibility()),
    }


def head(templates: list[str]):
    options = some(tie_weights=BOOL, logit_softcap=(4.0,), bias=BOOL, final_norm=BOOL)
    mtp = whole(n_predict=st.integers(1, 2), head_layers=st.integers(1, 2), head_template=st.sampled_from(templates))
    return every(options, st.one_of(whole(type="causal_lm"), whole(type="causal_lm_mtp", mtp=mtp)))


def compatibility():
    rounding = every(whole(enabled=True), some(dtype=("fp4", "fp8", "int8"), dequant_to=("fp4", "fp8", "bf16", "fp32")))
    return every(some(dtype_policy=("uniform", "layered_safe")), some(quant_aware_training=rounding))
