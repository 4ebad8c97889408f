"""Presets at the edges of what validates: full and small they learn, and decode token by token as they read at once."""

import pytest
import torch

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


def layers(*templates):
    """The keys of a model of these layers."""
    named = {f"t{i}": template for i, template in enumerate(templates)}
    return {"layer_templates": named, "layer_schedule": [{"template": name} for name in named]}


MAMBA1 = {"variant": "mamba1", "d_state": 5}
MAMBA2 = {"d_state": 5, "head_dim": 8}
POST = {"norm": {"type": "layernorm", "position": "post"}}
FFN_ONLY = {"mixer": NOTHING, "ffn": {"type": "mlp", "activation": "relu2", "bias": True}}
EXTREMES = {
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
    assert torch.cat(steps, 1).allclose(whole, rtol=0, atol=1e-9 * float(whole.abs().max()))
