"""The model of a `config.json` payload, built in this process from the very files that ship.

Inside the package there is no generated entry file: the same two classes are made here, with the same parts.
"""

from contextlib import contextmanager
from importlib import import_module

import torch

from eulerstack.compiler.closure import exported, parts
from eulerstack.errors import CompileError
from eulerstack.export.draws import Planned
from eulerstack.modeling.initial import Init, rules_of

PACKAGE = "eulerstack.modeling"


def model_class(payload: dict) -> type:
    """The causal language model class with the parts that `payload` names, as the entry file defines it."""
    decoder, causal_lm = (import_module(f"{PACKAGE}.{name}") for name in ("decoder", "causal_lm"))
    chosen = {part: _part(part) for part in parts(payload)}
    backbone = type("EulerStackModel", (decoder.Decoder,), {"parts": chosen, "__module__": decoder.__name__})
    body = {"parts": chosen, "backbone": backbone, "__module__": causal_lm.__name__}
    return type("EulerStackForCausalLM", (causal_lm.CausalLM,), body)


def _part(module: str) -> type:
    try:
        found = import_module(f"{PACKAGE}.{module}")
    except ModuleNotFoundError as error:
        what = f"there is no modeling file {module}.py"
        raise CompileError.at(f"{module}.py", what, "add the file", "docs/language.md#layer_templates") from error
    return getattr(found, exported(module))


def build_on_meta(payload: dict) -> torch.nn.Module:
    """The model without memory for its tensors, each in the dtype it is stored in."""
    with torch.device("meta"):
        return build(payload, getattr(torch, payload["dtype"]))


def build(payload: dict, dtype: torch.dtype = torch.float32) -> torch.nn.Module:
    """The model in `dtype` on the current device, freshly initialised by torch's generator."""
    config = import_module(f"{PACKAGE}.configuration_eulerstack").EulerStackConfig(**payload)
    with _default_dtype(dtype):
        return model_class(payload)(config)


@contextmanager
def _default_dtype(dtype: torch.dtype):
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def plan(model: torch.nn.Module) -> list[Planned]:
    """Every tensor of the model's checkpoint, in the order of its modules, with the rule it is drawn by.

    A tied tensor appears once, under its first name. CompileError if a module says no rule for one of its tensors.
    """
    init = Init(**model.config.init, n_layers=model.config.num_hidden_layers)
    rules = {
        f"{prefix}.{name}" if prefix else name: rule
        for prefix, module in model.named_modules()
        for name, rule in rules_of(module, init).items()
    }
    model.tie_weights()
    once = {id(tensor): name for name, tensor in reversed(model.state_dict(keep_vars=True).items())}
    planned = []
    for name, tensor in model.state_dict(keep_vars=True).items():
        if once[id(tensor)] != name:
            continue
        if name not in rules:
            what = f"no rule says how '{name}' starts"
            fix = "return a rule for it from its module's method 'initial'"
            raise CompileError.at(type(model).__name__, what, fix, "docs/language.md#layer_templates")
        planned.append(Planned(name, tuple(tensor.shape), tensor.dtype, rules[name]))
    return planned
