"""Hypothesis strategies over the mixers of the language, at tiny sizes, and the helpers they are written with."""

from dataclasses import dataclass

from hypothesis import strategies as st


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
    choices = {
        key: value if isinstance(value, st.SearchStrategy) else st.sampled_from(value)
        for key, value in optional.items()
    }
    return st.fixed_dictionaries({}, optional=choices)


def every(*mappings):
    """The union of mappings that are drawn."""
    return st.tuples(*mappings).map(lambda drawn: {key: value for one in drawn for key, value in one.items()})


def whole(**required):
    choices = {
        key: value if isinstance(value, st.SearchStrategy) else st.just(value) for key, value in required.items()
    }
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
    forms += [
        every(windows(), latent, decoupled(sizes)),
        every(norms, some(window=st.integers(1, 9)), compression(sizes)),
    ]
    return st.one_of(*(every(common, form) for form in (*forms, forms[-1])))  # compression has the most kinds


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
    sizes_of = some(
        q_latent_dim=st.integers(1, max(1, sizes.width - 1)),
        qk_nope_dim=st.integers(1, 7),
        v_head_dim=st.integers(1, 7),
        **rope,
    )
    return sizes_of.filter(bool)


def compression(sizes: Sizes):
    least = (4 if sizes.dynamic else 2) * (1 if sizes.fraction == 1 else 2)
    dims = (least, 8)
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
    return every(
        whole(filter_hidden=st.integers(1, 6), depth=st.integers(1, 3)),
        some(filter_decay=(0.0, 2.0), short_conv=st.integers(1, 4)),
    )


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
