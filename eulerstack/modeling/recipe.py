"""How a model with phases or extra prediction heads generates: what `custom_generate/generate.py` runs.

transformers puts that file's `generate` in place of a model's own when it loads the directory, and runs it where a call
names the directory, `model.generate(..., custom_generate=directory, trust_remote_code=True)`. The first must do what a
caller of plain `generate` expects, the second what the directory describes:

- a call that names the directory runs the phases of `config.execution_modes`, if there are any; `phases` True or False
  decides it for any call;
- a greedy call without phases is decoded with drafts of the extra heads, if there are any and `use_drafts` is not
  False: the same tokens in fewer passes;
- every other call is transformers' own.
"""

from functools import partial

from .draft_decoding import decode_with_drafts
from .phased_decoding import decode_in_phases

TEXT = '''"""How this model generates: transformers runs this in place of its own `generate`, or where a call names this
directory. What it does is said in `recipe.py`."""


def generate(inputs=None, *args, model, **kwargs):
    """Arguments of transformers' `generate`, and `phases`, `return_phases` and `use_drafts` of `recipe.py`."""
    return model.parts["recipe"](model, inputs, *args, **kwargs)
'''
# transformers passes every argument of its own `generate` on where a call names the directory, also those left out.
SIGN_OF_A_NAMED_CALL = "negative_prompt_ids"
# What a draft has no part in: other ways to choose a token, outputs of each pass, and prompts that are not token ids.
OTHER_CHOICES = ("do_sample", "penalty_alpha", "prompt_lookup_num_tokens", "assistant_early_exit", "use_mtp")
OTHER_CHOICES += ("dola_layers", "constraints", "force_words_ids", "guidance_scale", "return_dict_in_generate")
OTHER_CHOICES += ("cache_implementation", "stop_strings")
OTHER_INPUTS = (
    "assistant_model",
    "inputs_embeds",
    "position_ids",
    "past_key_values",
    "cache",
    "synced_gpus",
    "tokenizer",
)


def generate(
    model,
    inputs=None,
    generation_config=None,
    *args,
    phases: bool | None = None,
    return_phases: bool = False,
    use_drafts: bool = True,
    custom_generate=None,
    trust_remote_code: bool | None = None,
    **kwargs,
):
    """Token ids [B, P + n] as transformers' `generate`, whose arguments the others are; see above.

    Phases: `max_new_tokens` caps all new tokens, hidden ones too, by default at the sum of the budgets; hidden phases
    are left out of what is returned, and with `return_phases` it is a PhasedOutput, which has them. They run without
    drafts.
    Raises ValueError if phases are asked for and there are none, or with beams or an assistant.
    """
    plain, modes = partial(type(model).generate, model, inputs, generation_config, *args), model.config.execution_modes
    if custom_generate is not None:
        words = {"phases": (phases, None), "return_phases": (return_phases, False), "use_drafts": (use_drafts, True)}
        kwargs |= {name: value for name, (value, default) in words.items() if value is not default}
        return plain(custom_generate=custom_generate, trust_remote_code=trust_remote_code, **kwargs)
    options = Options(model, generation_config, kwargs)
    if phases is None:
        phases = bool(modes) and SIGN_OF_A_NAMED_CALL in kwargs
    if phases:
        if not modes:
            raise ValueError("this model has no execution_modes, so it generates without phases")
        if options.said("num_beams") not in (None, 1) or kwargs.get("assistant_model") is not None:
            raise ValueError("phases are generated token by token: leave out num_beams and assistant_model")
        if options.said("max_new_tokens") is None and kwargs.get("max_length") is None:
            kwargs["max_new_tokens"] = sum(mode["max_tokens"] for mode in modes)
        method = partial(decode_in_phases, streamer=kwargs.get("streamer"), return_phases=return_phases)
        return plain(custom_generate=method, **kwargs)
    if use_drafts and model.config.mtp and options.draftable():
        return plain(custom_generate=partial(decode_with_drafts, streamer=kwargs.get("streamer")), **kwargs)
    return plain(**kwargs)


generate.TEXT = TEXT


class Options:
    """What a call says, or its generation_config, or that of the model."""

    def __init__(self, model, generation_config, kwargs: dict):
        self.kwargs, self.configs = kwargs, [c for c in (generation_config, model.generation_config) if c is not None]

    def said(self, name: str):
        found = [self.kwargs.get(name), *(getattr(config, name, None) for config in self.configs)]
        return next((value for value in found if value is not None), None)

    def draftable(self) -> bool:
        """Whether this is greedy decoding of token ids with a cache, and nothing else is asked of it."""
        plain = self.said("num_beams") in (None, 1) and self.said("use_cache") is not False
        others = any(self.said(name) for name in OTHER_CHOICES)
        return plain and not others and all(self.kwargs.get(name) is None for name in OTHER_INPUTS)
