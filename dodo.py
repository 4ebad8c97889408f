"""Build graph: `doit list`, `doit`, `doit export:llm_0p1b_simple`."""

from eulerstack.graph.tasks import *  # noqa: F403  the task creators and DOIT_CONFIG
