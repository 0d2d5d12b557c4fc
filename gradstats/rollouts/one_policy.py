"""Whether tables that are to be joined record the same policy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


def refuse_different_policies(metadata: Iterable[Mapping[str, Any]], what: str) -> None:
    """Refuse to join tables whose recorded policies differ in weights, adapter or tokenizer.

    Tables that record no digest of a part, as those of version 0.1, are not compared in it.

    Args:
        metadata: of each table, with the ``policy`` that drew or scored it.
        what: the tables, as in "rollouts".

    Raises:
        ValueError: naming the part that differs.
    """
    policies = [entries.get("policy") for entries in metadata]
    digests = [policy.get("digests") or {} for policy in policies if isinstance(policy, Mapping)]
    known = [entries for entries in digests if entries]
    for part in sorted({part for entries in known for part in entries}):
        # Where one has an adapter and another does not, that is a difference as well.
        having = known if part == "adapter" else [entries for entries in known if part in entries]
        values = {str(entries.get(part, "none"))[:12] for entries in having}
        if len(values) > 1:
            raise ValueError(
                f"the {what} come from policies with different {part} (SHA-256 {', '.join(sorted(values))}): their "
                "gradients are of different functions; keep them apart, or join them with allow_policy_mismatch=True"
            )
