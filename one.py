import sys, json; sys.path.insert(0,"/tmp/dev/comb"); import laws, torch
from eulerstack.ir.normalizer import normalize_to_ir
t = {"schema_version":1,"model": {"name": "any", "d_model": 12, "vocab_size": 270, "max_seq_len": 64, "n_heads": 1}, "tokenizer_contract":{"type":"byte_bpe"},"embedding": {"type": "learned", "positional": "none"}, "layer_templates": {"t0": {"mixer": {"type": "attention"}, "ffn": {"type": "gated_mlp"}}}, "layer_schedule": [{"template": "t0"}], "head": {"mtp": {"head_template": "t0", "n_predict":2}, "type": "causal_lm_mtp"}}
ir = normalize_to_ir(t)
m = laws.model_of(ir).train()
for T in (2,3,4):
    m.zero_grad(set_to_none=True)
    ids = torch.arange(T)[None]
    o = m(input_ids=ids, labels=ids); o.loss.backward()
    print(T, o.loss, [(n, p.grad is None) for n,p in m.named_parameters() if p.grad is None or not p.grad.isfinite().all()][:4])
