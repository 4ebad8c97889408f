"""A preset becomes a Hugging Face directory: check it, count it, write it.

    python examples/01_compile_and_export.py llm_0p1b_simple out/simple
    python examples/01_compile_and_export.py examples/primitives/hyena.yml out/hyena --small

`eulerstack compile --output-dir` does the same from the shell, and `doit export:NAME` with a cache.
"""

import argparse
import sys
from pathlib import Path

from eulerstack.compiler.judge import judge
from eulerstack.errors import EulerStackError
from eulerstack.export.model import export_model
from eulerstack.ir.costs import costs
from eulerstack.ir.shrink import shrink
from eulerstack.paths import find_preset


def main() -> None:
    parser = argparse.ArgumentParser(description="Export a preset as a Hugging Face directory.")
    parser.add_argument("preset", help="a name of the catalogue or of ./presets, or the path of a file")
    parser.add_argument("directory", type=Path, help="a new directory")
    parser.add_argument("--small", action="store_true", help="the same topology at about 50 thousand parameters")
    args = parser.parse_args()

    preset = find_preset(args.preset)

    # Nothing is built yet: the file is read, checked and counted. A mistake is an error with its line.
    judged = judge(preset)
    for warning in judged.warnings:
        print(warning, file=sys.stderr)
    print(f"{preset.stem}: {len(judged.ir.layers)} layers, {judged.costs.total:,} parameters")

    # The IR holds every default and every layer. `shrink` gives the IR of a small model of the same kind.
    ir = shrink(judged.ir) if args.small else judged.ir

    # Weights are drawn tensor by tensor and written as they come, so a large model needs little memory.
    exported = export_model(ir, preset.stem, args.directory, variant="small" if args.small else "full")

    assert exported.parameters == costs(ir).total  # the prediction is exact; export_model would have refused otherwise
    print(f"{exported.path}: {exported.parameters:,} parameters, {exported.bytes:,} bytes")
    print("tokenizer:", exported.tokenizer.source)
    print("files:", ", ".join(sorted(path.name for path in exported.path.iterdir())))


if __name__ == "__main__":
    try:
        main()
    except EulerStackError as error:
        sys.exit(str(error))
