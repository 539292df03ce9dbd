"""`ImportedAnswers`: what the imported configs of a table say about a key that has no row."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from warmup.core.imported_config import ImportedConfig, PickedConfig
from warmup.core.rows import Family, Winner


@dataclass(frozen=True, slots=True)
class ImportedAnswers:
    """Imported configs by key, which are unverified: nobody measured them on this machine.

    A search measures the candidates that the imported configs of a key name; serving takes the
    first config of a key.
    """

    configs: Mapping[str, tuple[ImportedConfig, ...]] = field(default_factory=dict)

    def __contains__(self, key: str) -> bool:
        return key in self.configs

    def __len__(self) -> int:
        return len(self.configs)

    def winners(self, key: str) -> tuple[Winner, ...]:
        """Return the imported winners of *key*, the fastest first."""
        return tuple(config.winner for config in self.configs.get(key, ()))

    def described(self, key: str) -> tuple[str, ...]:
        """Return a line for each config of *key*: where it comes from, and that it is unverified.

        The key is one of those that have a config.
        """
        return tuple(
            f"imported {config.winner} from {config.origin}, unverified"
            for config in self.configs[key]
        )

    def served(self, key: str) -> Winner | None:
        """Return the first winner of *key* if a row could hold it: no template is complete."""
        first = next(iter(self.winners(key)), None)
        return None if first is None or first.family is Family.TEMPLATE else first

    def named(self, key: str, candidates: Sequence[Winner]) -> Collection[Winner]:
        """Return those of *candidates* that an imported config of *key* names."""
        wanted = self.configs.get(key, ())
        return [each for each in candidates if any(config.names(each) for config in wanted)]

    def config(self, key: str) -> PickedConfig | None:
        """Return the first config of *key* if it is a template's, None otherwise."""
        first = next(iter(self.configs.get(key, ())), None)
        if first is None or first.winner.family is not Family.TEMPLATE:
            return None
        kwargs = tuple((name, value) for name, value in first.winner.kwargs if type(value) is int)
        winner = first.winner
        return PickedConfig(uid=winner.uid, kwargs=kwargs, source_hash=winner.source_hash)
