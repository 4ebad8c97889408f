"""Hypothesis strategies over whole presets: combinations of everything the language has, at tiny sizes.

Nearly all that is drawn validates.
"""

from dataclasses import replace
from pathlib import Path
from runpy import run_path

from hypothesis import strategies as st

MIXERS = run_path(str(Path(__file__).with_name("strategies_of_mixers.py")))
some, every, whole, mixer = (MIXERS[name] for name in ("some", "every", "whole", "mixer"))
Sizes, BOOL = MIXERS["Sizes"], MIXERS["BOOL"]
LENGTH = 64  # max_seq_len, so that learned positions and dynamic scaling see no token beyond it
GATES = ("swiglu", "geglu", "swiglu_clamped", "gelu", "gelu_tanh", "relu", "relu2")


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
        router_bias=BOOL,
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
        every(whole(type="mlp"), some(activation=GATES[3:], **bias)),
        every(whole(type="gated_mlp"), some(activation=GATES, **bias)),
        every(whole(type="moe", moe=moe()), some(activation=GATES, **bias)),
        whole(type="none"),
    )


def norm():
    position = {"position": ("pre", "post", "sandwich", "post_branch")}
    return st.one_of(
        every(whole(type="rmsnorm"), some(unit_offset=BOOL, **position)),
        every(whole(type="layernorm"), some(bias=BOOL, **position)),
    )


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
        return {
            "parallel": [{"stream": f"s{i}", "body": b} for i, b in enumerate(bodies)],
            "merge": draw(merge(len(bodies))),
        }
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
    found = {
        "type": "learned",
        "positional": draw(st.sampled_from(("rope", "rope", "rope", "alibi", "none", "learned"))),
    }
    if found["positional"] == "rope":
        found |= draw(some(rope_theta=(100.0,), rope_scaling=scaling(), rope_fraction=(0.5,)))
    return found | draw(some(scale=(3.0,)))


@st.composite
def presets(draw) -> dict:
    places = draw(embedding())
    rotary = places["positional"] == "rope"
    kv, groups = draw(st.sampled_from((1, 2, 3))), draw(st.sampled_from((1, 2)))
    width = draw(st.sampled_from((12, 16, 20)))
    dynamic = places.get("rope_scaling", {}).get("type") == "dynamic"
    head_dim = draw(st.sampled_from((8, 16) if dynamic else (8, 8, 4, 16) if rotary else (4, 3, 6, 8)))
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
