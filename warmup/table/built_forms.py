"""`BuiltForms`: in which form repeated layers were compiled when each bucket was built.

A table without a record is one of whole graphs, as all tables of an earlier warmup are. The first
build with layers compiled once begins the record.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from warmup.core.counted import counted
from warmup.core.json_node import MAX_STRING, Node
from warmup.core.layers_form import BUILT_FORMS, LayersForm, in_order

EARLIER: Final = "buckets of earlier builds"
OF_MISSES: Final = "misses of servers"
_MAX_NAMES: Final = 1024


@dataclass(frozen=True, slots=True)
class BuiltForms:
    """The forms of each bucket, by model and bucket such as ``llama seqlen=16``, sorted.

    ``by_bucket`` is empty where every bucket was built of whole graphs.
    """

    by_bucket: Mapping[str, tuple[LayersForm, ...]] = field(default_factory=dict)

    @property
    def all(self) -> tuple[LayersForm, ...]:
        """Every form that some bucket was built in."""
        found = {form for forms in self.by_bucket.values() for form in forms}
        return in_order(found or {LayersForm.WHOLE})

    def of(self, bucket: str | None) -> tuple[LayersForm, ...]:
        """Return the forms of *bucket*, such as ``seqlen=16``, of any model.

        Earlier builds, whose buckets are not on record, may have built it too. Without a bucket of
        that name, and for None, the forms of all buckets are returned.
        """
        own = [name for name in self.by_bucket if name.rpartition(" ")[2] == bucket]
        if not own:
            return self.all
        names = [*own, *({EARLIER} & self.by_bucket.keys())]
        return in_order(form for name in names for form in self.by_bucket[name])

    def __str__(self) -> str:
        if not self.by_bucket:
            return LayersForm.WHOLE.graphs
        return ", ".join(f"{form.graphs} ({self._where(form)})" for form in self.all)

    def _where(self, form: LayersForm) -> str:
        own = [name for name, forms in self.by_bucket.items() if form in forms]
        others = [name for name in (EARLIER, OF_MISSES) if name in own]
        count = len(own) - len(others)
        named = [counted(count, "bucket")] if count else []
        return ", ".join((*named, *others))

    def building(self, name: str, form: LayersForm, *, has_rows: bool) -> BuiltForms:
        """Return these forms, with *name* built in *form* too.

        *has_rows*: the table has rows of earlier builds. They were of whole graphs where there is
        no record.
        """
        if form is LayersForm.WHOLE and not self.by_bucket:
            return self
        return self.united(BuiltForms({name: (form,)}), has_rows=has_rows)

    def united(self, other: BuiltForms, *, has_rows: bool = True) -> BuiltForms:
        """Return the forms of both, of 1024 buckets at most.

        Where one of them has no record, and *has_rows*, it stands for whole graphs.
        """
        if not (self.by_bucket or other.by_bucket):
            return self
        earlier = {EARLIER: (LayersForm.WHOLE,)}
        union: dict[str, tuple[LayersForm, ...]] = {}
        for each in (self, other):
            for name, forms in (each.by_bucket or (earlier if has_rows else {})).items():
                union[name] = in_order({*union.get(name, ()), *forms})
        return BuiltForms(dict(sorted(union.items())[:_MAX_NAMES]))


def forms_to_json(forms: BuiltForms) -> dict[str, object]:
    """Return *forms* as JSON values."""
    return {name: [form.value for form in own] for name, own in forms.by_bucket.items()}


def forms_from_json(node: Node) -> BuiltForms:
    """Return the forms in *node*.

    Raises:
        TableFormatError: a name or a form is unknown, or there are too many.
    """
    members = list(node.items())
    if not 0 < len(members) <= _MAX_NAMES:
        node.fail(f"expected 1 to {_MAX_NAMES} buckets")
    return BuiltForms(dict(sorted(_read(*member) for member in members)))


def forms_in(node: Node) -> tuple[LayersForm, ...]:
    """Return the forms of graphs that *node* lists.

    Raises:
        TableFormatError: it lists something else, or not in order.
    """
    words = [each.string(16) for each in node.elements(len(BUILT_FORMS))]
    if words != [form for form in BUILT_FORMS if form in words]:
        node.fail(f"expected some of {', '.join(BUILT_FORMS)}, each once, in this order")
    return in_order(map(LayersForm, words))


def _read(name: str, node: Node) -> tuple[str, tuple[LayersForm, ...]]:
    if not name.isprintable() or len(name) > MAX_STRING:
        node.fail(f"expected a name of at most {MAX_STRING} printable characters")
    return name, forms_in(node)
