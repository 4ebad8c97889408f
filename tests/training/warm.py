"""Runs a script many times in one process that loads torch once: `warm.py SCRIPT`, a list of argument lists on stdin.

Like `python SCRIPT ARGUMENTS...` for each list, in a forked child; a child that fails fails the whole.
"""

import json
import os
import runpy
import sys
import traceback
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationMixin  # noqa: F401  loaded once, for all

torch.set_num_threads(1)
script = sys.argv[1]
for arguments in json.load(sys.stdin):
    child = os.fork()
    if child == 0:
        sys.argv = [script, *arguments]
        sys.path.insert(0, str(Path(script).parent))
        try:
            runpy.run_path(script, run_name="__main__")
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        sys.exit(f"{arguments} failed")
