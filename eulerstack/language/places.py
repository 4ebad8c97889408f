"""Where a key that stands in the wrong place belongs: every key of the language with its address, nearest first."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, get_args, get_origin

from eulerstack.language.dialects import NOTES, ours
from eulerstack.language.locate import Located, fields_of, is_block
from eulerstack.language.schema import Model, Spec
from eulerstack.language.sentences import nearest
from eulerstack.language.template import FFNS, MIXERS
from eulerstack.language.where import Where

KIND_OF = {block: name for family in (MIXERS, FFNS) for name, block in family.items()}
# Keys of so many blocks that the same word elsewhere tells nothing.
EVERYWHERE = ("type", "name", "enabled")
# How far a place is from where its key stands.
SAME_BLOCK, CHILD, ABOVE, MODEL, SAME_PART, ELSEWHERE, OVERRIDE = range(7)
MOST = 3
TYPE = "<type>"
CALLED, BELONGS = "here it is called ", "it belongs "


@dataclass(frozen=True)
class Place:
    """A key of a block: `path` leads there from the top, `kind` is the type of mixer or ffn that it is an option of."""

    path: tuple[str, ...]
    owner: type
    kind: str | None

    @property
    def address(self) -> str:
        return _dotted(self.path)


@dataclass(frozen=True)
class Site:
    """A block as somebody writes it: its class, the path of its own keys without the key, and its kind."""

    owner: type | None
    path: tuple[str, ...]
    kind: str | None


def advice(at: Located, known: Iterable[str] = ()) -> str:
    """Where the last key of an address belongs or what it is called here, and the keys that may stand there.

    Without an owner it stands in a mixer or an ffn of no known type, whose keys are `known`.
    """
    key = at.where[-1]
    allowed = sorted(fields_of(at.owner) if at.owner else known)
    said, rank = _directions(key, _site(at.where, at.owner))
    if key in NOTES and rank > SAME_BLOCK:
        said = NOTES[key]
    elif rank >= ELSEWHERE:
        said = nearest(key, allowed) + said
    return f"{said}Allowed: {', '.join(allowed)}"


def renamed(owner: type | None, key: Any, present: Iterable[str]) -> bool:
    """Whether one of the keys that are there is what others call `key` of this block."""
    homes = {place.address for place in places() if place.owner is owner and place.path[-1] == key}
    return any(address in homes for word in present for address in ours().get(word, ()))


@cache
def places() -> tuple[Place, ...]:
    """Every key of the language, each mixer once: not again inside a branched one."""
    return tuple(_walk(Spec, (), None))


@cache
def _by_key() -> dict[str, list[Place]]:
    found: dict[str, list[Place]] = {}
    for place in places():
        found.setdefault(place.path[-1], []).append(place)
    return found


def _walk(block: type, path: tuple[str, ...], kind: str | None) -> Iterator[Place]:
    kind = KIND_OF.get(block, kind)
    for key, field in fields_of(block).items():
        yield Place((*path, key), block, kind)
        for steps, inner in _inside(field.annotation):
            yield from _walk(inner, (*path, key, *steps), kind)


def _inside(kind: Any) -> Iterator[tuple[tuple[str, ...], type]]:
    """The blocks that a type of the schema holds, and what leads to them from the key."""
    if is_block(kind):
        yield (), kind
        return
    step = {dict: ("<name>",), tuple: ("[]",)}.get(get_origin(kind), ())
    for part in get_args(kind):
        yield from ((step + steps, block) for steps, block in _inside(part))


def _site(where: Where, owner: type | None) -> Site:
    """`owner` is None for a mixer or an ffn of no known kind."""
    return _sites().get(owner) or Site(None, ("layer_templates", "<name>", where[2]), None)


@cache
def _sites() -> dict[type, Site]:
    return {place.owner: Site(place.owner, place.path[:-1], place.kind) for place in places()}


def _directions(key: str, site: Site) -> tuple[str, int]:
    """A sentence that leads from a block to the places that a key may mean, and how far away the nearest are."""
    addresses = ours().get(key, ())
    found = [] if key in EVERYWHERE else list(_by_key().get(key, ()))
    # The key may have our name in this block too, which nobody lists.
    for address in addresses:
        same = _by_key()[address.rpartition(".")[2]]
        found += [p for p in same if (p.address == address or p.owner is site.owner) and p not in found]
    if any(place.path == site.path and place.path[-1] == key for place in found):
        return f"it stands inside {key} already. ", SAME_BLOCK
    found = [place for place in found if place.path != site.path]  # no block belongs into itself
    nearest_rank = min((_rank(place, site) for place in found), default=OVERRIDE)
    phrases = _phrases(key, [place for place in found if _rank(place, site) == nearest_rank], site)
    if not phrases or len(phrases) > MOST:
        return "", OVERRIDE
    # What others call one of our keys is sure, what only sounds like one is not.
    return _either(phrases) + ". ", min(nearest_rank, SAME_PART) if addresses else nearest_rank


def _rank(place: Place, site: Site) -> int:
    if place.owner is site.owner:
        return SAME_BLOCK
    below = _below(place, site)
    if below and len(place.path) == len(site.path) + 2:
        return CHILD
    if _above(place, site):
        return ABOVE
    if place.owner is Model:
        return MODEL
    if "override" in place.path:
        return OVERRIDE
    return SAME_PART if below or _same_part(place, site) else ELSEWHERE


def _below(place: Place, site: Site) -> bool:
    return place.path[: len(site.path)] == site.path and site.kind in (None, place.kind)


def _above(place: Place, site: Site) -> bool:
    """Whether the block of a key holds the site."""
    holder = place.path[:-1]
    return len(holder) < len(site.path) and site.path[: len(holder)] == holder and place.kind in (None, site.kind)


def _same_part(place: Place, site: Site) -> bool:
    """Whether both lie in a mixer, or both in an ffn."""
    return place.kind is not None and len(site.path) > 2 and place.path[:3] == site.path[:3]


def _phrases(key: str, found: list[Place], site: Site) -> list[str]:
    """`it belongs inside attention`, one phrase for places that differ in the type of mixer or ffn alone."""
    kinds: dict[tuple[str, str], list[str]] = {}
    for place in found:
        called = "" if place.path[-1] == key else f"{CALLED}{place.path[-1]!r}"
        kinds.setdefault((called, _belonging(place, site)), []).append(place.kind or "")
    phrases = []
    for (called, belonging), names in kinds.items():
        verb = (f"{called} and belongs " if called else BELONGS) if belonging else called
        phrases.append(verb + belonging.replace(TYPE, f"to type {' or '.join(names)}"))
    return phrases


def _either(phrases: list[str]) -> str:
    """One sentence of several that may begin alike."""
    start = next((start for start in (CALLED, BELONGS) if all(p.startswith(start) for p in phrases)), "")
    return start + (" or " if start else ", or ").join(phrase.removeprefix(start) for phrase in phrases)


def _belonging(place: Place, site: Site) -> str:
    """`inside moe.balance` as seen from the site, with TYPE where another type has the key; "" at the site itself."""
    if place.owner is site.owner:
        return ""
    if _below(place, site):
        return f"inside {_dotted(place.path[len(site.path) : -1])}"
    if _above(place, site):
        return f"beside {site.path[len(place.path) - 1]}"
    if not _same_part(place, site):
        return f"inside {_dotted(place.path[:-1])}"
    inside = f"inside {_dotted(place.path[3:-1])}" if len(place.path) > 4 else ""
    return inside if place.kind == site.kind else ", ".join(filter(None, (TYPE, inside)))


def _dotted(path: Iterable[str]) -> str:
    return ".".join(path).replace(".[]", "[]")
