"""Which files of `eulerstack/modeling` a model ships with, their digests, and the entry file that binds them.

A file ships if the payload names it (`mixer_<type>.py`, `run_<type>.py`, ...) or a shipped file imports it. All of them
are flat and import each other as `from .name import x`: transformers finds such imports by a regular expression, copies
those files beside the entry, and demands that any other library be installed unless its import stands in a `try`.
"""

import ast
import hashlib
import json
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from eulerstack.compiler.imports import ROOT, meaning, parse, statements
from eulerstack.errors import CompileError, Problem, raise_all

MODELING = ROOT / "modeling"
ALWAYS = ("configuration_eulerstack", "decoder", "causal_lm")
LIBRARIES = {"torch", "transformers"}
ROLES = ("mixer", "ffn", "memory")
# Keys of a block that wrap its parts, and the module that does it.
WRAPPERS = {"shape_change": "shape_change", "depth_gating": "depth_gate"}
# What a module of each kind exports, by the first word of its name or by all of it.
EXPORTS = {"mixer": "Mixer", "ffn": "FFN", "memory": "Memory", "residual": "Residual", "run": "Run", "head": "Head"}
EXPORTS |= {"shape_change": "ShapeChange", "depth_gate": "DepthGate", "fake_quant": "quantise", "recipe": "generate"}
SEE = "docs/language.md#layer_templates"
# What transformers' dynamic_module_utils.get_relative_imports looks for, which sees docstrings too.
RELATIVE = (
    re.compile(r"^\s*import\s+\.(\w+)\s*$", re.MULTILINE),
    re.compile(r"^\s*from\s+\.(\w+)\s+import", re.MULTILINE),
)

ENTRY = '''"""The model of preset {preset}: EulerStack's decoder with the parts that its layers use.

Generated. Every file is imported here by name, since transformers before 5.9 copies only the files that this one names.
The configuration is a class of this file, since transformers remembers which model belongs to which configuration, also
when another model is loaded from another directory of the same name.
"""

{imports}

PARTS = {{
{parts}
}}


class EulerStackConfig(Configuration):
    def __init__(self, **settings):  # without one of its own, transformers 5 would write another
        super().__init__(**settings)


class EulerStackModel(Decoder):
    config_class = EulerStackConfig
    parts = PARTS


class EulerStackForCausalLM(CausalLM):
    config_class = EulerStackConfig
    parts = PARTS
    backbone = EulerStackModel
'''


@dataclass(frozen=True)
class FileDigest:
    """sha256 of a file as it ships, and of what it means: without comments and docstrings."""

    bytes: str
    meaning: str


@dataclass(frozen=True)
class Closure:
    """The entry module of a model, its text, and every other file it ships with: file name -> digests."""

    entry_name: str
    entry_text: str
    files: dict[str, FileDigest]


def entry_name(preset: str) -> str:
    """The module name of the entry of a preset, its own in a cache that directories of equal names share."""
    slug = re.sub(r"\W", "_", preset, flags=re.ASCII).lower()
    unique = slug if slug == preset else f"{slug}_{hashlib.sha256(preset.encode()).hexdigest()[:8]}"
    return f"modeling_eulerstack_{unique}"


def auto_map(entry: str) -> dict[str, str]:
    """The `auto_map` of a configuration whose model's entry module is `entry`."""
    return {
        "AutoConfig": f"{entry}.EulerStackConfig",
        "AutoModel": f"{entry}.EulerStackModel",
        "AutoModelForCausalLM": f"{entry}.EulerStackForCausalLM",
    }


def closure(payload: dict, preset: str, modeling: Path = MODELING) -> Closure:
    """The files of the folder `modeling` that the model of a preset, with this `config.json` payload, needs.

    Raises CompileError, with every problem at once, if a part has no file, or a file imports what may not ship.
    """
    files, problems = _reachable(parts(payload), modeling)
    problems += [problem for path in files for problem in _wrong(path.read_bytes(), path)]
    raise_all(problems)
    digests = {path.name: FileDigest(hashlib.sha256(path.read_bytes()).hexdigest(), meaning(path)) for path in files}
    return Closure(entry_name(preset), entry(payload, preset, [path.stem for path in files]), digests)


def parts(payload: dict) -> list[str]:
    """The modules that a payload names, sorted; each is a part of its own name."""
    found = {f"run_{run['type']}" for run in payload.get("schedule") or () if run["type"] != "plain"}
    for block in payload["blocks"].values():
        found |= {f"{role}_{kind}" for role in ROLES if role in block for kind in _types(block[role])}
        found |= {"residual_hyper_connection"} if block["residual"]["type"] == "hyper_connection" else set()
        found |= {module for key, module in WRAPPERS.items() if block.get(key)}
    found |= {f"head_{payload['head_type']}"} if payload["head_type"] != "causal_lm" else set()
    found |= {"recipe"} if payload["head_type"] != "causal_lm" or payload.get("execution_modes") else set()
    return sorted(found | ({"fake_quant"} if payload.get("quantisation") else set()))


def _types(spec: dict) -> set[str]:
    """The type of a part, and those of its branches; none is no part."""
    inner = (_types(branch) for branch in spec.get("branches", {}).values())
    return ({spec["type"]} - {"none"}).union(*inner)


def exported(module: str) -> str:
    """The name under which the module of a part exports it."""
    return EXPORTS.get(module) or EXPORTS[module.split("_")[0]]


def entry(payload: dict, preset: str, names: list[str]) -> str:
    """The text of the entry file of a preset, where `names` are all modules that ship."""
    chosen = parts(payload)
    imported = {"configuration_eulerstack": "EulerStackConfig as Configuration", "decoder": "Decoder"}
    imported |= {"causal_lm": "CausalLM"} | {name: f"{exported(name)} as {name}" for name in chosen}
    lines = [f"from .{name} import {imported.get(name, f'__name__ as {name}')}" for name in sorted({*names, *imported})]
    table = [f'    "{name}": {name},' for name in chosen]
    return ENTRY.format(preset=json.dumps(preset), imports="\n".join(lines), parts="\n".join(table))


def reachable_files(parts: Iterable[str], modeling: Path = MODELING) -> list[Path]:
    """The files of the named part modules and of what always ships, closed over sibling imports; sorted.

    Fast: imports are found by text, as transformers finds them; `closure` makes sure that the text is the truth.
    Raises CompileError if a file is missing.
    """
    files, problems = _reachable(parts, modeling)
    raise_all(problems)
    return files


def _reachable(parts: Iterable[str], modeling: Path) -> tuple[list[Path], list[Problem]]:
    waiting = [(name, "", None) for name in (*ALWAYS, *parts)]
    files, missing = {}, {}
    while waiting:
        name, importer, line = waiting.pop()
        path = modeling / f"{name}.py"
        if path in files or name in missing:
            continue
        if path.is_file():
            files[path] = _siblings(path.read_text(encoding="utf-8"))
            waiting += [(sibling, path.name, line) for sibling, line in files[path].items()]
        else:
            what = f"there is no modeling file {name}.py"
            missing[name] = _problem(modeling / importer, line, what, "add the file")
    return sorted(files), list(missing.values())


def _siblings(source: str) -> dict[str, int]:
    """The sibling modules that transformers will think this source imports, each with its line."""
    found = (match for pattern in RELATIVE for match in pattern.finditer(source))
    return {match[1]: source.count("\n", 0, match.start(1)) + 1 for match in found}


@lru_cache(maxsize=1024)
def _wrong(source: bytes, path: Path) -> tuple[Problem, ...]:
    """What is wrong with the imports of a file that is to ship."""
    tree = parse(source, path)
    nodes = list(statements(tree))
    guarded = {id(n) for t in nodes if isinstance(t, ast.Try) for body in t.body for n in statements(body)}
    siblings, problems = set(), []
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.level:
            if node.level > 1 or not node.module or "." in node.module:
                text = f"'from {'.' * node.level}{node.module or ''} import' cannot ship"
                problems.append(_problem(path, node.lineno, text, "write 'from .name import x', with one dot"))
            siblings.add(node.module)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            problems += _absolute(path, node, id(node) in guarded)
    seen = set(_siblings(source.decode()))
    if not problems and seen != siblings:
        text = f"by text this file imports {sorted(seen)}, in truth {sorted(siblings)}"
        problems.append(_problem(path, None, text, "write each import as 'from .name import x' on a line of its own"))
    return tuple(problems)


def _absolute(path: Path, node: ast.Import | ast.ImportFrom, guarded: bool) -> list[Problem]:
    """What is wrong with an absolute import of a shipped file."""
    names = [node.module] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
    problems = []
    for name in (name.partition(".")[0] for name in names):
        if name in {"eulerstack", "importlib"}:
            problems.append(_problem(path, node.lineno, f"'{name}' cannot ship", "write 'from .name import x'"))
        elif not guarded and name not in LIBRARIES and name not in sys.stdlib_module_names:
            text = f"'{name}' may not be installed where the model is read"
            problems.append(_problem(path, node.lineno, text, "import it inside a try"))
    return problems


def _problem(path: Path, line: int | None, what: str, fix: str) -> Problem:
    return Problem(CompileError.__name__, str(path), line, None, "", what, fix, SEE)
