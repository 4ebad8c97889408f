"""Presets at the edges of what validates: full and small they learn, and decode token by token as they read at once."""

import pytest
import torch

from eulerstack.compiler.closure import parts
from eulerstack.compiler.runtime import runtime_config
from eulerstack.export.build import build
from eulerstack.ir.costs import costs
from eulerstack.ir.normalizer import normalize_to_ir
from eulerstack.ir.shrink import shrink

NOTHING = {"type": "none"}
PLAIN = {"mixer": {"type": "attention"}, "ffn": {"type": "gated_mlp"}}


def attention(**options):
    return {"mixer": {"type": "attention", "attention": options}, "ffn": {"type": "gated_mlp"}}


def mamba(ffn=NOTHING, **options):
    return {"mixer": {"type": "mamba", "mamba": options}, "ffn": ffn}


def moe(experts, top_k, **options):
    return {
        "mixer": {"type": "attention"},
        "ffn": {"type": "moe", "moe": {"experts": experts, "top_k": top_k} | options},
    }


def layers(*templates, schedule=None):
    """The keys of a model of these layers, one after the other or by `schedule`."""
    named = {f"t{i}": template for i, template in enumerate(templates)}
    return {"layer_templates": named, "layer_schedule": schedule or [{"template": name} for name in named]}


def mixer(kind, ffn=NOTHING, block=None, **options):
    """A template of one mixer; `block` names its block of options, its type by default."""
    return {"mixer": {"type": kind} | ({block or kind: options} if options else {}), "ffn": ffn}


def streams(merge, *names):
    """A schedule of one entry: streams of a layer of each template."""
    parallel = [{"stream": f"s{i}", "body": [{"template": name}]} for i, name in enumerate(names)]
    return [{"parallel": parallel, "merge": merge}]


def integrator(kind, body, steps=2, **options):
    return {"integrator": {"type": kind, "steps": steps, "body": body} | options}


MAMBA1 = {"variant": "mamba1", "d_state": 5}
MAMBA2 = {"d_state": 5, "head_dim": 8}
POST = {"norm": {"type": "layernorm", "position": "post"}}
FFN_ONLY = {"mixer": NOTHING, "ffn": {"type": "mlp", "activation": "relu2", "bias": True}}
TTT = mixer("ttt_layer", block="ttt", mini_batch=5, inner_model={"type": "linear"})
RETNET = mixer("retnet", chunk_size=7)
HYENA = mixer("hyena", filter_hidden=6, depth=3)
BRANCHES = {"near": {"type": "attention", "attention": {"window": 4}}, "far": {"type": "mamba", "mamba": MAMBA2}}
BRANCHED = mixer("branched", branches=BRANCHES, selector={"type": "top_k"})
HYPER = {"residual": {"type": "hyper_connection", "hyper": {"expand": 3}}}
WRITTEN = {"update_at_inference": True, "params": {"hidden": 5}}
NEURAL, DELTA, LOOKUP = ({"type": kind} | WRITTEN for kind in ("neural_memory", "associative", "retrieval"))
CSA = {"type": "csa", "m_block": 4, "top_k_blocks": 2, "pool": "softmax_gated"}
CSA |= {"indexer": {"arch": "relu_mha", "n_heads": 2, "d_per_head": 4}}
EXTREMES = {
    "all recurrent": layers(mamba(**MAMBA1), mamba(**MAMBA2), RETNET, TTT, HYENA) | {"embedding.positional": "none"},
    "all attention": layers(
        attention(attention_sinks={"n_per_head": 2}),
        attention(latent_dim=8, q_latent_dim=9, qk_rope_dim=4, qk_nope_dim=5, v_head_dim=7),
        attention(compression=CSA, window=5),
        attention(compression={"type": "hca", "m_block": 3}),
    ),
    "every mixer and memory in hyper-connections": layers(
        *(
            template | HYPER
            for template in (PLAIN | {"memory": NEURAL}, TTT, RETNET | {"memory": LOOKUP}, HYENA, BRANCHED)
        )
    ),
    "hyper-connections with experts": layers(moe(4, 2) | HYPER, PLAIN | HYPER),
    "hyper-connections in streams and integrators": layers(
        PLAIN | HYPER,
        mamba(**MAMBA2) | HYPER,
        schedule=[
            *streams({"type": "gated"}, "t0", "t1"),
            *streams({"type": "cross_attn", "from": "s1", "to": "s0"}, "t0", "t1"),
            integrator("ode_euler", "t1"),
        ],
    ),
    "memories inside integrators": layers(
        PLAIN | {"memory": NEURAL},
        mamba(**MAMBA2) | {"memory": DELTA},
        {"mixer": NOTHING, "ffn": {"type": "mlp"}, "memory": LOOKUP},
        schedule=[
            integrator("ode_rk4", "t0", steps=1),
            integrator("discrete", "t1", output="hidden"),
            integrator("ode_euler", "t2", output="hidden"),
        ],
    ),
    "branches inside a stream": layers(
        BRANCHED, PLAIN, schedule=[*streams({"type": "concat"}, "t0", "t1", "t0"), {"template": "t1"}]
    ),
    "gates over everything": layers(
        PLAIN | {"memory": DELTA, "shape_change": {"d_out": 8, "projection": "conv1d"}},
        moe(4, 2) | {"residual": {"type": "sequential"}},
        TTT,
        schedule=[
            {"template": name, "depth_gating": {"capacity": 0.5, "router": router}}
            for name, router in (("t0", "top_k"), ("t1", "learned_gate"), ("t2", "top_k"))
        ],
    ),
    "other widths inside": layers(
        PLAIN | {"shape_change": {"d_out": 6}},
        mamba(**MAMBA2) | {"shape_change": {"d_out": 48, "projection": "mlp"}},
        PLAIN | {"shape_change": {"d_out": 9, "projection": "conv1d"}},
    ),
    "one width inside both halves": layers(
        PLAIN
        | {"shape_change": {"d_out": 9, "projection": "conv1d"}, "residual": {"type": "parallel"}, "memory": DELTA},
    ),
    "extra heads over a hybrid": layers(PLAIN, mamba(**MAMBA2), moe(3, 1))
    | {"head": {"type": "causal_lm_mtp", "mtp": {"n_predict": 2, "head_template": "t2", "head_layers": 2}}},
    "quantised weights": layers(PLAIN, moe(3, 1))
    | {"compatibility.quant_aware_training": {"enabled": True, "dtype": "fp8"}},
    "experts by hash and by group": layers(
        moe(4, 2, routing={"type": "hash", "hash_salt": 3}),
        moe(8, 2, balance={"groups": 4, "group_limit": 2, "sequence_aux_coef": 0.1}),
    ),
    "one layer": layers(PLAIN),
    "all mamba1": layers(*[mamba(**MAMBA1)] * 3) | {"embedding.positional": "none"},
    "every layer another": layers(
        attention(window=9),
        moe(5, 2) | {"norm": {"position": "sandwich"}},
        mamba(**MAMBA1),
        mamba(**MAMBA2),
        attention(latent_dim=7, qk_norm="rmsnorm") | {"norm": {"type": "layernorm", "position": "post_branch"}},
        FFN_ONLY,
    )
    | {"embedding.positional": "alibi"},
    "a window of one": layers(attention(window=1), mamba(**MAMBA2), attention(window=1)),
    "one key head": {"model.n_kv_heads": 1},
    "odd heads": {"embedding.positional": "none", "model.head_dim": 7},
    "wide heads": {"model.head_dim": 24, "model.n_kv_heads": 2},
    "one pair turns": {"model.head_dim": 16, "embedding.rope_fraction": 0.125},
    "an FFN of one": {"model.d_ff": 1},
    "all experts": layers(moe(3, 3)),
    "one expert": layers(moe(1, 1)),
    "shared experts": layers(
        moe(6, 2, shared_experts=3, shared_d_ff=5, d_ff=9, affinity="sigmoid", bias_correction={"enabled": True})
    ),
    "dropped tokens": layers(moe(4, 1, capacity_factor=0.1, capacity_drop_policy="drop")),
    "padded experts": layers(moe(4, 2, capacity_factor=1e300, capacity_drop_policy="pad", router_jitter=0.9)),
    "halves apart": layers({"mixer": {"type": "attention"}, "ffn": NOTHING}, FFN_ONLY),
    "ffn only": layers(FFN_ONLY, FFN_ONLY) | {"embedding.positional": "none"},
    "post everywhere": layers(PLAIN | POST, PLAIN | POST),
    "alibi of six heads in a window": layers(attention(window=5))
    | {"embedding.positional": "alibi", "model.n_heads": 6, "model.head_dim": 4},
    "sparse windows": layers(
        attention(window=4, window_mode="nsa", window_dilation=2),
        attention(window=9, window_mode="dilated", window_dilation=3),
    ),
    "an odd vocabulary and a head of its own": {
        "head": {"type": "causal_lm", "tie_weights": False, "bias": True},
        "model.vocab_size": 331,
    },
    "one tap, one state": layers(
        mamba({"type": "mlp"}, variant="mamba1", d_conv=1, d_state=1, dt_rank=1, inner_norm=True, conv_bias=False),
        mamba(d_conv=1, d_state=1, head_dim=32, chunk_size=1, bias=True),
    ),
    "parallel halves": layers(
        PLAIN | {"residual": {"type": "parallel"}},
        FFN_ONLY | {"residual": {"type": "parallel"}, "norm": {"position": "sandwich"}},
    ),
    "a latent of one": layers(attention(latent_dim=1, window=3)),
    "wide stream": {"compatibility.dtype_policy": "layered_safe", "head.logit_softcap": 3.0, "embedding.scale": 4.0},
}


def test_every_part_stands_in_an_extreme(preset, part_modules):
    trees = (preset(keys) for keys in EXTREMES.values())
    found = {part for tree in trees for part in parts(runtime_config(normalize_to_ir(tree)))}
    assert found == part_modules


@pytest.fixture(params=["full", "small"])
def size(request):
    return {"full": lambda ir: ir, "small": shrink}[request.param]


@pytest.mark.parametrize("name", EXTREMES)
def test_an_extreme_works(name, size, preset):
    ir = size(normalize_to_ir(preset(EXTREMES[name])))
    torch.manual_seed(0)
    model = build(runtime_config(ir), torch.float64)
    assert sum(p.numel() for p in model.parameters()) == costs(ir).total
    ids = torch.randint(0, ir.model.vocab_size, (2, 26))
    model(input_ids=ids, labels=ids).loss.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())

    model.eval()
    with torch.no_grad():
        whole, past, steps = model(input_ids=ids).logits, None, []
        for token in ids.split([1, 1, 7, *[1] * 17], dim=1):
            out = model(input_ids=token, past_key_values=past, use_cache=True)
            past = out.past_key_values
            steps.append(out.logits)
    assert whole.std() > 1e-3
    exact = {"rtol": 0, "atol": 1e-9 * float(whole.abs().max())}
    assert torch.cat(steps, 1).allclose(whole, **exact)

    with torch.no_grad():
        alone = model(input_ids=ids[:1, :15]).logits
        padded = torch.cat((ids.new_full((1, 4), 3), ids[:1, :15], ids.new_full((1, 2), 3)), 1)
        mask = torch.tensor([[0] * 4 + [1] * 15 + [0] * 2])
        assert model(input_ids=padded, attention_mask=mask).logits[:, 4:19].allclose(alone, **exact)
        packed = torch.cat((ids[:1, :15], ids[1:, :9]), 1)
        places = torch.cat((torch.arange(15), torch.arange(9)))[None]
        together = model(input_ids=packed, position_ids=places).logits
        apart = torch.cat((alone, model(input_ids=ids[1:, :9]).logits), 1)
        assert together.allclose(apart, **exact)
