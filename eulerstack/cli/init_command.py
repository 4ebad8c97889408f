"""`eulerstack init`: a workspace for presets of one's own."""

import json
from pathlib import Path
from shlex import quote

import click

from eulerstack.atomic import whole
from eulerstack.cli.options import DirectoryPath
from eulerstack.errors import ExportError
from eulerstack.paths import docs_dir

SEE = "docs/tutorials/02_presets.md#your-own-presets"

DODO = '''"""Build graph of this workspace: `doit list`, `doit`, `doit export:my_model`."""

from eulerstack.graph.tasks import *  # noqa: F403  the task creators and DOIT_CONFIG
'''

IGNORE = "/build/\n/cache/\n__pycache__/\n"

README = """# Presets

    eulerstack validate --preset my_model    # is it right
    eulerstack explain --preset my_model     # what it costs
    doit cpu_sanity                          # does each preset link, compute and learn
    doit export:my_model                     # build/my_model/hf, a Hugging Face directory at full size
    doit list                                # where every preset stands

Each file in `presets/` is one architecture; `docs/schema.json` lets an editor complete and check it. `docs/` is where
the `See:` line of an error leads: `language.md` holds every key, `building.md` the build graph, and `tutorials/`, from
`00_where_it_fits.md` on, are lessons to follow.
"""

PRESET = """# yaml-language-server: $schema=../docs/schema.json
#
# One architecture. Change anything; `doit cpu_sanity:my_model` says within seconds whether it still works.
schema_version: 1

let:
  width: 512                      # a number with a name, used below as ${let.width}

model:
  name: my_model
  d_model: ${let.width}
  vocab_size: 32000
  max_seq_len: 2048
  n_heads: 8
  n_kv_heads: 4                   # grouped-query attention
  d_ff: ${let.width * 11 // 4}

tokenizer_contract:
  type: byte_bpe                  # trained when the model is exported; or: {type: hf, pretrained: gpt2}
  add_eos: false                  # a prompt is not a finished text
  pad_token: <|pad|>

embedding:
  type: learned
  positional: rope                # or alibi, learned, none

layer_templates:                  # the kinds of layers
  local:
    mixer:
      type: attention
      attention: {window: 256}    # sees the last 256 tokens
    ffn: {type: gated_mlp}
  state:
    mixer:
      type: mamba
      mamba: {variant: mamba2, d_state: 64}
    ffn: {type: gated_mlp}

layer_schedule:                   # which layer is of which kind, in order
  - {template: state, repeat: 3}
  - {template: local}
  - {template: state, repeat: 3}
  - {template: local, override: {attention: {window: null}}}   # the same, but global

head:
  type: causal_lm
"""


def pages() -> dict[str, str]:
    """What users read, by its place in the workspace; a page for maintainers (`decisions.md`) stays where it is."""
    from eulerstack.language.schema_json import json_schema

    folder = docs_dir()
    found = [folder / "language.md", folder / "building.md", *sorted(folder.glob("tutorials/*.md"))]
    texts = {f"docs/{page.relative_to(folder).as_posix()}": page.read_text(encoding="utf-8") for page in found}
    return texts | {"docs/schema.json": json.dumps(json_schema(), indent=1, sort_keys=True) + "\n"}


@click.command("init")
@click.argument("directory", type=DirectoryPath())
def command(directory: Path) -> None:
    """Make a workspace in DIRECTORY: presets/, dodo.py, .gitignore, README.md, docs/ with its lessons."""
    files = {"presets/my_model.yml": PRESET, "dodo.py": DODO, ".gitignore": IGNORE, "README.md": README, **pages()}
    taken = [name for name in files if (directory / name).exists()]
    if taken:
        raise ExportError.at(directory / taken[0], "exists already", "name an empty or a new directory", SEE)
    try:
        for name, text in files.items():
            path = directory / name
            path.parent.mkdir(parents=True, exist_ok=True)
            with whole(path) as file:
                file.write(text.encode())
    except OSError as error:
        what = f"cannot be written: {error.strerror}"
        raise ExportError.at(directory, what, "name a directory you can write to", SEE) from error
    click.echo(f"{directory}: a workspace with one preset. Next: cd {quote(str(directory))} && doit cpu_sanity")
