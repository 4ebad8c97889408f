"""IR -> directory: payload, tokenizer, write. The stages and `eulerstack compile --output-dir` end here."""

from collections.abc import Callable
from pathlib import Path

from eulerstack.compiler.runtime import runtime_config
from eulerstack.export.directory import Exported, check_free, write_directory
from eulerstack.export.tokenizer import Contract, extra_tokens, resolve
from eulerstack.ir.costs import costs
from eulerstack.ir.types import IR, digest


def export_model(
    ir: IR,
    name: str,
    target: Path,
    *,
    variant: str = "full",
    progress: Callable[[int, int], None] | None = None,
) -> Exported:
    """Write the model of `ir`, of the preset called `name`, into the new directory `target`.

    Raises CompileError for what is not built yet, ExportError when the tokenizer does not fit or a write fails.
    """
    check_free(target, replace=False)
    payload = runtime_config(ir)
    contract = Contract.of(ir.tokenizer_contract)
    extra = extra_tokens(ir.transition)
    tokenizer = resolve(contract, ir.model.vocab_size, extra_tokens=extra, max_length=ir.model.max_seq_len, fetch=True)
    return write_directory(
        payload,
        tokenizer,
        target,
        preset_name=name,
        ir_digest=digest(ir),
        seed=ir.training_hints.seed,
        predicted_params=costs(ir).total,
        variant=variant,
        progress=progress,
    )
