"""Flags of the engine that vars.yaml has a key for. Used by crosscheck.py (not to be repeated) and gb10/comparison.py (may be shown)."""

OWNED_FLAGS = {
    "--model": "model.path",
    "--served-model-name": "model.served_name",
    "--host": "listen.address",
    "--port": "listen.port",
    "--kv-cache-dtype": "engine.kv_cache_dtype",
    "--max-model-len": "engine.max_model_len",
    "--gpu-memory-utilization": "engine.gpu_memory_utilization",
    "--max-num-seqs": "engine.max_num_seqs",
    "--max-num-batched-tokens": "engine.max_num_batched_tokens",
    "--enable-prefix-caching": "engine.prefix_caching",
    "--no-enable-prefix-caching": "engine.prefix_caching",
    "--speculative-config": "engine.speculative",
    "--reasoning-parser": "engine.reasoning_parser",
    "--tool-call-parser": "engine.tool_call_parser",
    "--enable-auto-tool-choice": "engine.tool_call_parser",
    "--enforce-eager": "engine.graph (null: eager)",
    "--compilation-config": "graph, or engine.graph,",
    "--cudagraph-capture-sizes": "capture_sizes of graph, or of engine.graph,",
    "--profiler-config": "profile",
}
