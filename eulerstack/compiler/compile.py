"""IR -> what is built: the payload of config.json, its costs, and the modeling files it needs."""

import json
from dataclasses import asdict, dataclass

from eulerstack.compiler.closure import closure
from eulerstack.compiler.runtime import runtime_config
from eulerstack.ir.costs import Costs, costs
from eulerstack.ir.types import IR, digest


@dataclass(frozen=True)
class Compiled:
    """`files` maps each modeling file to its byte digest and meaning digest; `entry` is the generated one."""

    name: str
    config: dict
    costs: Costs
    ir_digest: str
    entry: str
    files: dict[str, dict[str, str]]

    def to_json(self) -> str:
        """compile.json: all but the files, which are an artifact of their own."""
        document = {
            "preset": self.name,
            "config": self.config,
            "costs": self.costs.to_dict(),
            "ir_digest": self.ir_digest,
        }
        return json.dumps(document, indent=1, sort_keys=True) + "\n"

    def code_json(self) -> str:
        """code.json: what the model's code is made of."""
        return json.dumps({"entry": self.entry, "files": self.files}, indent=1, sort_keys=True) + "\n"


def compile_ir(ir: IR, *, name: str) -> Compiled:
    """Compile `ir` of the preset called `name`. Raises CompileError for what is not built yet."""
    config = runtime_config(ir)
    code = closure(config, name)
    files = {file: asdict(digests) for file, digests in code.files.items()}
    return Compiled(name, config, costs(ir), digest(ir), code.entry_name, files)
