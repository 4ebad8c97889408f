"""Which source files a piece of this package reads, and what they mean; by AST, importing nothing.

Libraries are not followed: they enter a key by version. An import by a computed name is invisible here, with one rule
to make up for it: whoever imports a *package* as a value (`from eulerstack.language import mixers`) does so to find its
files by name, so all modules directly in it belong to the closure.
"""

import ast
import hashlib
import sys
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from eulerstack.errors import CompileError

ROOT = Path(__file__).resolve().parents[1]  # the package's own directory
SEE = "docs/language.md#layer_templates"
BODIES = ("body", "orelse", "finalbody", "handlers", "cases")  # where statements hold others
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def meaning(path: Path) -> str:
    """The sha256 of what the Python file at `path` means: of its AST, which has no comments, without its docstrings.

    `ast.dump` differs between minor versions of Python, so the version is part of the digest. CompileError if the
    file is not Python.
    """
    return _meaning(Path(path).read_bytes(), str(path))


@lru_cache(maxsize=1024)
def _meaning(source: bytes, path: str) -> str:
    tree = parse(source, path)
    for node in statements(tree):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            del node.body[0]
    version = "{}.{}".format(*sys.version_info[:2])
    return hashlib.sha256(f"python {version}\n{ast.dump(tree)}".encode()).hexdigest()


def parse(source: bytes, path: str | Path) -> ast.Module:
    """The AST of `source`; CompileError, placed in `path`, if it is not Python."""
    try:
        return ast.parse(source, filename=str(path))
    except SyntaxError as error:
        what = f"not valid Python: {error.msg}"
        raise CompileError.at(path, what, "correct the file", SEE, line=error.lineno, column=error.offset) from None


def statements(tree: ast.AST) -> Iterator[ast.AST]:
    """`tree` and every statement in it, at any depth; an expression, of which there are many more, holds none."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        for name in BODIES:
            waiting += getattr(node, name, ())


def package_closure(modules: list[str], root: Path = ROOT) -> dict[str, Path]:
    """Every module of the package at `root` that the named `modules` import, directly or not: name -> file.

    Modules are named in full, as `eulerstack.stages.compile`, and are part of the answer, as is the `__init__` of each
    package above them. Imports within functions count. ModuleNotFoundError if one of `modules` does not exist.
    """
    found: dict[str, Path] = {}
    waiting = list(modules)
    for name in modules:
        if _file(name, root) is None:
            raise ModuleNotFoundError(f"no module {name} under {root}", name=name)
    while waiting:
        name = waiting.pop()
        path = _file(name, root)
        if path is None or name in found:
            continue
        found[name] = path
        package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        waiting.extend(_ancestors(name))
        for imported, is_value in _imports(path.read_bytes(), str(path), package):
            waiting.extend([imported, *(_parts(imported, root) if is_value else ())])
    return dict(sorted(found.items()))


@lru_cache(maxsize=1024)
def _imports(source: bytes, path: str, package: str) -> tuple[tuple[str, bool], ...]:
    """All names in this source that may be modules, in full, and whether the source takes them as a value."""
    found = []
    for node in statements(parse(source, path)):
        if isinstance(node, ast.Import):
            found += [(alias.name, True) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = _absolute(node, package)
            found += [(base, False), *((f"{base}.{alias.name}", True) for alias in node.names)]
    return tuple(found)


def _absolute(node: ast.ImportFrom, package: str) -> str:
    """The full name of the module a `from` import reads, where `package` holds the importing module."""
    if not node.level:
        return node.module
    above = package.split(".")[: len(package.split(".")) - node.level + 1]
    return ".".join(above + ([node.module] if node.module else []))


def _parts(name: str, root: Path) -> list[str]:
    """All modules directly in `name` if that is a package of ours: its importer finds them by file name."""
    path = _file(name, root)
    if path is None or path.name != "__init__.py":
        return []
    return [f"{name}.{part.stem}" for part in sorted(path.parent.glob("*.py")) if part != path]


def _ancestors(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[:n]) for n in range(1, len(parts))]


def _file(name: str, root: Path) -> Path | None:
    """Where the module `name` lies, or None if the package at `root` has no such module."""
    first, *rest = name.split(".")
    stem = root.joinpath(*rest)
    candidates = (stem / "__init__.py", stem.with_name(f"{stem.name}.py"))
    return next((path for path in candidates if first == root.name and path.is_file()), None)
