"""A program for inside the CPU image: does vLLM enable breakable graphs for a model by itself, and does an eager engine log it?

The method is the release's own; the configuration object is made without its constructor, which wants a model's files.
Usage: python3 breakable_probe.py ARCHITECTURE
"""

import logging
import sys
from types import SimpleNamespace

from vllm.config import VllmConfig

logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(message)s", force=True)
logging.getLogger("vllm").setLevel(logging.INFO)
config = VllmConfig.__new__(VllmConfig)
config.model_config = SimpleNamespace(architectures=[sys.argv[1]], enforce_eager=True)
config.compilation_config = SimpleNamespace(mode=None)
print("enabled:", config._maybe_enable_breakable_cudagraph())
