"""A model as text: the embedding, its layers with repeats folded, streams and integrators, the head."""

from collections.abc import Hashable, Iterator, Sequence
from typing import Any

from eulerstack.cli.folding import Fold, fold
from eulerstack.cli.kinds import Kind
from eulerstack.cli.tables import labelled
from eulerstack.cli.words import brief_layer, options, short
from eulerstack.ir.alike import same
from eulerstack.ir.types import IR

STEM = "  | "
INDENT = "|  "


class Diagram:
    """The diagram of a model, and its schedule with repeats folded."""

    def __init__(self, ir: IR, kinds: tuple[Kind, ...]):
        self.ir, self.kinds = ir, kinds
        self.kind_of = {index: number for number, kind in enumerate(kinds) for index in kind.layers}
        self.runs: list[tuple[Hashable, Any]] = []  # what makes two entries alike, and the first of them
        self.folds = fold(list(self._items()))

    def _items(self) -> Iterator[tuple[str, int]]:
        """The schedule: a kind of layer for each plain layer, and a number for each other entry, the same if alike."""
        for run in self.ir.schedule:
            if run.type == "plain":
                yield from (("kind", self.kind_of[index]) for index in run.layers)
                continue
            key = self._key(run)
            if key not in (known := [key for key, _ in self.runs]):
                self.runs.append((key, run))
                known.append(key)
            yield "run", known.index(key)

    def _key(self, run: Any) -> Hashable:
        if run.type == "integrator":
            return self.kind_of[run.layer], run.options
        return run.merge, tuple((s.stream, *(self.kind_of[index] for index in s.layers)) for s in run.streams)

    def tree(self, folds: Sequence[Fold] | None = None) -> list[dict]:
        """The folded schedule as plain values: {times, layer}, {times, group}, {times, streams, merge} or
        {times, layer, integrator}."""
        found = []
        for one in self.folds if folds is None else folds:
            if one.body:
                found.append({"times": one.times, "group": self.tree(one.body)})
            elif one.item[0] == "kind":
                found.append({"times": one.times, "layer": self.kinds[one.item[1]].name})
            else:
                found.append({"times": one.times} | self._run_tree(self.runs[one.item[1]][1]))
        return found

    def _run_tree(self, run: Any) -> dict:
        if run.type == "integrator":
            own = {"type": run.options.type, "steps": run.options.steps, "output": run.options.output}
            return {"layer": self.kinds[self.kind_of[run.layer]].name, "integrator": own}
        return {"streams": {s.stream: self.tree(self._stream(s)) for s in run.streams}, "merge": run.merge.type}

    def _stream(self, stream: Any) -> tuple[Fold, ...]:
        return fold([("kind", self.kind_of[index]) for index in stream.layers])

    def lines(self) -> list[str]:
        return [*self._way_in(), STEM.rstrip(), *self._drawn(self.folds, STEM), STEM.rstrip(), *self._way_out()]

    def _way_in(self) -> list[str]:
        m, embedding, hyper = self.ir.model, self.ir.embedding, self.ir.layers[0].residual.hyper
        words = [f"{m.vocab_size:,} x {m.d_model:,}"]
        words.append("no positions" if embedding.positional == "none" else embedding.positional)
        if embedding.positional == "learned":
            words[-1] = f"and a table of {m.max_seq_len:,} positions"
        untold = ["positional", "tie_word_embeddings"]
        words += options(embedding, untold if embedding.positional == "rope" else [*untold, "rope_theta"])
        lines = ["  tokens", STEM.rstrip(), *labelled("  ", "embedding", words)]
        return lines + (labelled("  ", "", [f"copied to {hyper.expand} residual streams"]) if hyper else [])

    def _way_out(self) -> list[str]:
        m, head, hyper = self.ir.model, self.ir.head, self.ir.layers[0].residual.hyper
        lines = labelled("  ", "mean", [f"of the {hyper.expand} streams"]) if hyper else []
        lines += labelled("  ", "final norm", [self.ir.layers[-1].norm.type]) if head.final_norm else []
        words = [f"{m.d_model:,} x {m.vocab_size:,}", "tied to the embedding" if head.tie_weights else "of its own"]
        lines += labelled("  ", "head", words + list(options(head, ("tie_weights", "final_norm", "mtp", "type"))))
        if head.mtp:
            kind = next(kind for kind in self.kinds if same(kind.layer, self.ir.mtp_layer))
            words = [f"each {head.mtp.head_layers} x {short(kind.name)}, on hidden state and next token"]
            lines += labelled("  ", f"extra heads x {head.mtp.n_predict}", words)
        return [*lines, STEM.rstrip(), "  logits"]

    def _drawn(self, folds: Sequence[Fold], stem: str) -> Iterator[str]:
        for one in folds:
            if not one.body and one.item[0] == "kind":
                kind = self.kinds[one.item[1]]
                name = short(kind.name) + _times(one.times)
                yield from labelled(stem, name, brief_layer(kind.layer), _column(stem))
                continue
            inner = stem + INDENT
            if one.body:
                yield f"{stem}+-- {one.times:,} times"
                yield from self._drawn(one.body, inner)
            elif (run := self.runs[one.item[1]][1]).type == "integrator":
                yield f"{stem}+-- {_integrator(run.options)}{_times(one.times)}"
                yield from self._drawn((Fold(1, ("kind", self.kind_of[run.layer])),), inner)
            else:
                yield f"{stem}+-- {len(run.streams)} streams that read the same input{_times(one.times)}"
                for stream in run.streams:
                    yield f"{stem}|-> {short(stream.stream)}"
                    yield from self._drawn(self._stream(stream), inner)
            yield f"{stem}+-- {self._end(one)}".rstrip()

    def _end(self, one: Fold) -> str:
        """What a group, a step or streams end with."""
        if one.body:
            return ""
        run = self.runs[one.item[1]][1]
        if run.type == "integrator":
            return self.ir.layers[run.layer].norm.type if run.options.output == "token" else ""
        merge = run.merge
        words = [f"merge {merge.type}"]
        words += [f"{short(merge.to)} reads {short(merge.from_)}"] if merge.type == "cross_attn" else []
        return ", ".join(words + (["projection"] if merge.projection else []))


def _times(times: int) -> str:
    return f" x {times:,}" if times > 1 else ""


def _column(stem: str) -> int:
    """Where the words begin: at one place, unless the stem needs more room."""
    return max(40, len(stem) + 34)


def _integrator(own: Any) -> str:
    each = f", {own.evaluations:,} evaluations" if own.evaluations != own.steps else ""
    return f"{own.type}, {own.steps:,} steps{each} with the same weights"
