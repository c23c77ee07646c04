"""A program for inside the CPU image: what the installed vLLM's two Mamba functions answer. Sent by test_mamba_patches.py.

The functions are the release's own, with its own argument types. Worker state and scheduler are made without their
constructors (those want a model and a GPU) and get the attributes that the functions read. One JSON line is printed.
"""

import json
import sys
from types import SimpleNamespace

import torch
import vllm
from vllm.config import CacheConfig
from vllm.sampling_params import SamplingParams
from vllm.v1.core.sched.output import NewRequestData
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request
from vllm.v1.worker.gpu.model_states.mamba_hybrid import MambaHybridModelState

STEP = 2048
"""max_num_batched_tokens of the GB10 site."""


def cache_config(smallest_block: int, mamba_block: int) -> CacheConfig:
    """As the engine leaves it when the KV caches are made: block_size is the smallest group's block."""
    config = CacheConfig(block_size=smallest_block)
    config.mamba_block_size, config.mamba_cache_mode = mamba_block, "align"
    return config


def slot(config: CacheConfig, computed_tokens: int) -> int:
    """The Mamba state slot that a new request with a prefix hit of so many tokens starts from."""
    state = MambaHybridModelState.__new__(MambaHybridModelState)
    state.cache_config, state._align_mode = config, True
    state.rope_state = state.prompt_embeds_state = None
    state.num_accepted_tokens_gpu = torch.ones(4, dtype=torch.int32)
    state._mamba_state_idx_gpu = torch.zeros(4, dtype=torch.int32)
    request = NewRequestData(
        req_id="r",
        prompt_token_ids=[1],
        mm_features=[],
        sampling_params=None,
        pooling_params=None,
        block_ids=([],),
        num_computed_tokens=computed_tokens,
        lora_request=None,
    )
    state.add_request(2, request)
    return int(state._mamba_state_idx_gpu[2])


def chunk_ends(config: CacheConfig, prompt_tokens: int) -> list[int]:
    """Where the chunks of a prompt end when each step may take STEP tokens."""
    scheduler = Scheduler.__new__(Scheduler)
    scheduler.cache_config, scheduler.block_size = config, config.block_size
    scheduler.hash_block_size, scheduler.max_num_scheduled_tokens = config.block_size, STEP
    scheduler.scheduler_config = SimpleNamespace(long_prefill_token_threshold=0)
    scheduler.use_eagle_block_drop = scheduler.mamba_has_prefill_checkpoint_blocks = False
    scheduler.mamba_partial_cache_hit = scheduler.mamba_shared_prefix_checkpoint = False
    scheduler.mamba_prefill_checkpoint_alignment = None
    request = Request("r", [1] * prompt_tokens, SamplingParams(max_tokens=1), None)
    ends: list[int] = []
    while request.num_computed_tokens < prompt_tokens and len(ends) < 100:
        wanted = min(STEP, prompt_tokens - request.num_computed_tokens)
        request.num_computed_tokens += scheduler._mamba_block_aligned_split(request, wanted)
        ends.append(request.num_computed_tokens)
    return ends


if __name__ == "__main__":
    answers = {"vllm": vllm.__file__}
    for smallest, mamba in json.loads(sys.argv[1]):
        config = cache_config(smallest, mamba)
        answers[f"{smallest} of {mamba}"] = {"slot": slot(config, 24_000), "ends": chunk_ends(config, 10_000)}
    print(json.dumps(answers))
