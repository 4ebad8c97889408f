import ast
from pathlib import Path

import pytest

from eulerstack.compiler import imports
from eulerstack.compiler.imports import meaning, package_closure, statements
from eulerstack.errors import CompileError

SOURCE = '''"""What the file is for."""
import math  # for pi

class Circle:
    """A circle."""

    def area(self, r):
        """Its area."""
        return math.pi * r**2
'''


@pytest.fixture
def tree(tmp_path: Path):
    """Writes a package `pack` from {relative file: source} and returns its folder."""

    def write(files: dict[str, str]) -> Path:
        for name, source in files.items():
            path = tmp_path / "pack" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(source)
        return tmp_path / "pack"

    return write


def of(tmp_path: Path, source: str) -> str:
    path = tmp_path / "file.py"
    path.write_text(source)
    return meaning(path)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("  # for pi", ""),
        ("A circle.", "A round thing."),
        ('        """Its area."""\n', ""),
        ("What the file", "Whatever it"),
        ("math.pi * r**2", "(math.pi * (r ** 2))"),
        ("import math", "\n\n\nimport math"),
    ],
)
def test_words_about_the_code_are_not_its_meaning(tmp_path, old, new):
    assert old in SOURCE
    assert of(tmp_path, SOURCE) == of(tmp_path, SOURCE.replace(old, new))


@pytest.mark.parametrize(
    ("old", "new"), [("r**2", "r**3"), ("area", "surface"), ("import math", "import cmath as math")]
)
def test_the_code_is_its_meaning(tmp_path, old, new):
    assert old in SOURCE
    assert of(tmp_path, SOURCE) != of(tmp_path, SOURCE.replace(old, new))


def test_a_string_that_is_no_docstring_counts(tmp_path):
    assert of(tmp_path, "x = 'a'") != of(tmp_path, "x = 'b'")


def test_a_file_that_is_not_python_is_placed(tmp_path):
    with pytest.raises(CompileError, match=r"file\.py:2:.*not valid Python") as caught:
        of(tmp_path, "x = 1\ny = (\n")
    assert caught.value.problems[0].line == 2


def test_closure_follows_every_form_of_import(tree):
    root = tree(
        {
            "__init__.py": "",
            "start.py": "import pack.a\nfrom pack import b\nfrom pack.sub.c import thing\nimport torch.nn",
            "a.py": "def late():\n    from .sub import d",
            "b.py": "",
            "unused.py": "from pack import start",
            "sub/__init__.py": "",
            "sub/c.py": "from ..e import x",
            "sub/d.py": "",
            "sub/unused.py": "",
            "e.py": "import os\ntry:\n    from pack.gone import y\nexcept ImportError:\n    y = None",
        }
    )
    found = package_closure(["pack.start"], root)
    assert list(found) == ["pack", *(f"pack.{n}" for n in ("a", "b", "e", "start", "sub", "sub.c", "sub.d"))]
    assert found["pack.sub.c"] == root / "sub/c.py"
    assert found["pack"] == root / "__init__.py"


def test_closure_of_mutual_imports_ends(tree):
    root = tree({"__init__.py": "", "a.py": "from pack import b", "b.py": "from pack import a"})
    assert list(package_closure(["pack.b"], root)) == ["pack", "pack.a", "pack.b"]


def test_a_package_taken_as_a_value_brings_all_its_files(tree):
    files = {
        "__init__.py": "",
        "a.py": "from pack import kinds",
        "kinds/__init__.py": "",
        "kinds/x.py": "import pack.b",
    }
    root = tree(files | {"b.py": "", "c.py": ""})
    assert list(package_closure(["pack.a"], root)) == ["pack", "pack.a", "pack.b", "pack.kinds", "pack.kinds.x"]
    (root / "kinds" / "y.py").write_text("")
    assert "pack.kinds.y" in package_closure(["pack.a"], root)


def test_an_edited_import_is_seen(tree):
    root = tree({"__init__.py": "", "a.py": "", "b.py": ""})
    assert "pack.b" not in package_closure(["pack.a"], root)
    (root / "a.py").write_text("import pack.b")
    assert "pack.b" in package_closure(["pack.a"], root)


def test_an_unknown_module_is_an_error(tree):
    with pytest.raises(ModuleNotFoundError, match=r"pack\.nothing"):
        package_closure(["pack.nothing"], tree({"__init__.py": ""}))


def test_the_package_itself():
    found = package_closure(["eulerstack.compiler.closure"])
    assert {"eulerstack", "eulerstack.compiler", "eulerstack.compiler.imports", "eulerstack.errors"} <= set(found)
    assert not [name for name in found if name.startswith(("eulerstack.modeling", "eulerstack.language"))]


NESTED = """
try:
    import a1
except ValueError:
    import a2
else:
    import a3
finally:
    import a4
if x:
    import a5
elif y:
    import a6
while x:
    with z:
        import a7
for _ in x:
    pass
else:
    def f():
        async def g():
            import a8
match x:
    case 1:
        class C:
            import a9
"""


def test_no_statement_is_overlooked_however_deep():
    found = {id(node) for node in statements(ast.parse(NESTED)) if isinstance(node, ast.Import)}
    assert len(found) == 9
    for path in Path(imports.__file__).parents[1].rglob("*.py"):
        syntax = ast.parse(path.read_bytes())
        assert {id(n) for n in ast.walk(syntax) if isinstance(n, ast.stmt)} <= {id(n) for n in statements(syntax)}
