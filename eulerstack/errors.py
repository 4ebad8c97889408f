"""What goes wrong and where: one exception per category, each a list of placed problems.

A problem prints as three lines (docs/language.md, section 10):

    presets/hybrid.yml:14:7: ValidationError: layer_templates.attn.mixer.attention.windw: unknown key
    Fix: did you mean 'window'? Allowed: attn_drop, latent_dim, qkv_bias, window, ...
    See: docs/language.md#mixer
"""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong, at one place.

    `where` is the dotted path inside the document ("" for the document itself); `line` and `column`
    count from 1 and are None where there is no text to point at.
    """

    category: str
    path: str
    line: int | None
    column: int | None
    where: str
    what: str
    fix: str
    see: str

    @property
    def place(self) -> str:
        parts = [self.path] + [str(n) for n in (self.line, self.column) if n is not None]
        return ":".join(parts)

    def __str__(self) -> str:
        subject = f"{self.where}: {self.what}" if self.where else self.what
        return f"{self.place}: {self.category}: {subject}\nFix: {self.fix}\nSee: {self.see}"


class EulerStackError(Exception):
    """The root of all errors we raise on purpose; `problems` is never empty."""

    def __init__(self, problems: Problem | Iterable[Problem]):
        found = (problems,) if isinstance(problems, Problem) else tuple(problems)
        self.problems = tuple(sorted(found, key=lambda p: (p.path, p.line or 0, p.column or 0)))
        super().__init__("\n".join(str(p) for p in self.problems))

    def __reduce__(self):
        return type(self), (self.problems,)

    @classmethod
    def at(
        cls,
        path,
        what: str,
        fix: str,
        see: str,
        *,
        where: str = "",
        line: int | None = None,
        column: int | None = None,
    ) -> "EulerStackError":
        """The error of this category with a single problem."""
        return cls(Problem(cls.__name__, str(path), line, column, where, what, fix, see))


class ParseError(EulerStackError):
    """The YAML itself."""


class ValidationError(EulerStackError):
    """One field."""


class CompatibilityError(EulerStackError):
    """Fields against each other."""


class NormalizationError(EulerStackError):
    """A checked preset that cannot be expanded."""


class CompileError(EulerStackError):
    """A valid architecture that cannot be built."""


class ExportError(EulerStackError):
    """A directory that cannot be written."""


class DataError(EulerStackError):
    """Training text or token ids."""


class SanityError(EulerStackError):
    """A model that does not link, compute or learn."""


class CacheError(EulerStackError):
    """The store of results."""


def raise_all(problems: Iterable[Problem]) -> None:
    """Raise every problem at once, as the category of the first in the file; nothing if there is none."""
    found = EulerStackError(problems).problems if (problems := tuple(problems)) else ()
    if found:
        raise CATEGORIES[found[0].category](found)


CATEGORIES = {cls.__name__: cls for cls in EulerStackError.__subclasses__()}
