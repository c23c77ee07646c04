"""The engine's own counters around a request, and its block size: prefix hits, preemptions, speculation. Used by runner.py."""

from __future__ import annotations

import re
from dataclasses import dataclass

from gb10.engine import client
from gb10.facts import Fact

NAMES = {
    "hit_tokens": "vllm:prefix_cache_hits_total",
    "query_tokens": "vllm:prefix_cache_queries_total",
    "preemptions": "vllm:num_preemptions_total",
    "drafted_tokens": "vllm:spec_decode_num_draft_tokens_total",
    "accepted_tokens": "vllm:spec_decode_num_accepted_tokens_total",
}
BLOCK_LABELS = ("effective_attention_block_size", "block_size")


@dataclass(frozen=True)
class Counters:
    """Values by the record's field names; a counter that the engine does not have is not in it."""

    values: dict[str, float]

    @classmethod
    def read(cls, url: str) -> Counters:
        """Now. Nothing at all when /metrics does not answer."""
        text = client.metrics(url) or ""
        found = {field: client.total(text, name) for field, name in NAMES.items()}
        return cls({field: value for field, value in found.items() if value is not None})

    def growth_since(self, before: Counters) -> dict[str, int | None]:
        """By how much each counter grew; None where it is unknown, also when it went back (the engine was restarted)."""
        result: dict[str, int | None] = {}
        for field in NAMES:
            now, then = self.values.get(field), before.values.get(field)
            result[field] = None if now is None or then is None or now < then else round(now - then)
        return result


def block_size(url: str) -> Fact[int]:
    """Tokens in a block of the prefix cache: a hit counts in whole ones. From the labels of vllm:cache_config_info."""
    for line in (client.metrics(url) or "").splitlines():
        if line.startswith("vllm:cache_config_info{"):
            labels = dict(re.findall(r'(\w+)="([^"]*)"', line))
            for name in BLOCK_LABELS:
                if labels.get(name, "").isdigit():
                    return Fact(int(labels[name]))
    return Fact(None, "GET /metrics has no vllm:cache_config_info with a block size")
