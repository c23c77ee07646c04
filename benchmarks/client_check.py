"""Our client against `vllm bench serve` of the same image, on the same server: the same prompts in alternating blocks of one run. Prints ratios.

Ours asks the container's address, past the published port's proxy: theirs runs inside. Then what our client costs at four streams: CPU time over wall time.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from gb10.bench import imports  # noqa: E402
from gb10.bench.imports import Column  # noqa: E402
from gb10.engine import client, stream  # noqa: E402
from gb10.engine.stream import Completion  # noqa: E402
from gb10.errors import Gb10Error  # noqa: E402
from gb10.node import Node  # noqa: E402
from gb10.site import Site  # noqa: E402

BLOCKS, REQUESTS, TOKENS = 24, 2, 32
STREAMS, ROUNDS, LONG = 4, 3, 160
LISTS = ("ttfts", "itls", "output_lens", "input_lens", "generated_texts", "errors")

PEER = """
import argparse, contextlib, json, pathlib, sys, tempfile
from vllm.benchmarks.serve import add_cli_args, main
parser = argparse.ArgumentParser()
add_cli_args(parser)
for line in sys.stdin:
    asked = json.loads(line)
    with tempfile.TemporaryDirectory() as directory:
        prompts, result = pathlib.Path(directory, "prompts.json"), pathlib.Path(directory, "result.json")
        turns = [[{"from": "human", "value": text}, {"from": "gpt", "value": ""}] for text in asked["prompts"]]
        prompts.write_text(json.dumps([{"conversations": pair} for pair in turns]))
        told = ["--dataset-path", str(prompts), "--result-dir", directory, "--result-filename", result.name]
        with contextlib.redirect_stdout(sys.stderr):
            main(parser.parse_args(asked["arguments"] + told))
        print(json.dumps(json.loads(result.read_text())), flush=True)
"""
"""Runs in the engine's container and imports vLLM once: a line with prompts and arguments in, a line with the result out.

The ShareGPT format sends each prompt as it is; `--dataset-name custom` needs pandas, which the image does not have.
"""

TOPICS = """a lighthouse keeper, the first snow, a slow train, a market at dawn, an old violin, a river in spring, a lost key, a winter garden,
a night at sea, a small bakery, the road home, a broken clock, a letter from abroad, the tallest tree, an empty theatre, a summer storm,
a paper boat, the village school, a blue door, a long bridge, the last bus, a honey jar, a stone wall, a quiet library,
a red kite, the morning ferry, a glass bell, an apple orchard, a warm coat, a mountain hut, a silver coin, the north wind"""
PROMPTS = [
    f"Tell a story about {topic.strip()}. Say where it happens and who is there, what the weather is like, what somebody wants and why "
    "it is hard, what goes wrong first, who helps, and how it ends. Use plain words and short sentences, and do not explain the story."
    for topic in TOPICS.split(",")
]


def body_of(model: str, prompt: str, tokens: int, salt: str) -> dict[str, Any]:
    """What `vllm bench serve --backend openai-chat` sends, key by key. A salt keeps a block from the others' prefix cache."""
    messages = [{"role": "user", "content": [{"type": "text", "text": prompt}]}]
    sampling = {"max_completion_tokens": tokens, "ignore_eos": True, "temperature": 0}
    return {"model": model, "messages": messages, **sampling, "cache_salt": salt}


@contextlib.contextmanager
def peer(container: str, model: str, model_path: str) -> Iterator[Callable[[list[str], str], dict[str, Any]]]:
    """`vllm bench serve` in the container: one process, one call of its `main` a block."""
    arguments = [
        *("--backend", "openai-chat", "--endpoint", "/v1/chat/completions", "--base-url", "http://127.0.0.1:8000"),
        *("--model", model_path, "--served-model-name", model, "--tokenizer", model_path, "--temperature", "0"),
        *("--dataset-name", "sharegpt", "--disable-shuffle", "--no-oversample", "--sharegpt-output-len", str(TOKENS)),
        *("--max-concurrency", "1", "--ignore-eos", "--save-result", "--save-detailed", "--disable-tqdm"),
    ]
    command = ["docker", "exec", "--interactive", container, "python3", "-c", PEER]

    def measure(prompts: list[str], salt: str) -> dict[str, Any]:
        more = ["--num-prompts", str(len(prompts)), "--extra-body", json.dumps({"cache_salt": salt})]
        with contextlib.suppress(BrokenPipeError):
            print(json.dumps({"prompts": prompts, "arguments": arguments + more}), file=process.stdin, flush=True)
        if line := process.stdout.readline():
            return json.loads(line)
        log.seek(0)
        said = log.read().decode("utf-8", "replace").strip().splitlines()
        sys.exit(f"client_check: vllm bench serve ended in the container: {said[-1] if said else 'it said nothing'}")

    with (
        tempfile.TemporaryFile() as log,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True) as process,
    ):
        yield measure


def asked(http: httpx.Client, url: str, body: dict[str, Any]) -> Completion:
    answer = stream.chat(http, url, body, limit_s=120, stall_s=60)
    if answer.failure:
        sys.exit(f"client_check: our client: {answer.failure}")
    return answer


def ours(url: str, model: str, prompts: list[str], salt: str) -> list[Completion]:
    """One block, one stream, on a connection of its own, as each call of theirs has."""
    with stream.connect() as http:
        return [asked(http, url, body_of(model, prompt, TOKENS, salt)) for prompt in prompts]


def own(answers: list[Completion]) -> dict[str, float]:
    """Medians by the formulas of docs/metrics.md."""
    ttft = [(a.first_token_ns - a.sent_ns) / 1e9 for a in answers]  # type: ignore[operator]
    tokens = [a.usage["completion_tokens"] - (a.first_tokens or 1) for a in answers]  # type: ignore[index]
    speed = [n * 1e9 / (a.last_token_ns - a.first_token_ns) for n, a in zip(tokens, answers, strict=True)]  # type: ignore
    return {"ttft_s": statistics.median(ttft), "decode_tokens_per_s": statistics.median(speed)}


def theirs(results: list[dict[str, Any]]) -> Column:
    """Results of several blocks, their lists joined, as the import reads them."""
    joined: dict[str, Any] = {name: [item for result in results for item in result[name]] for name in LISTS}
    joined |= {name: sum(result[name] for result in results) for name in ("completed", "failed", "duration")}
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        print(json.dumps(results[0] | joined), file=file, flush=True)
        return imports.vllm_bench(Path(file.name))


def compare(measure: Callable[..., dict[str, Any]], url: str, model: str) -> Iterator[str]:
    """Ours and theirs in turns, who is first changing every block; the lines of the table."""
    started = time.time_ns()
    blocks: list[tuple[list[Completion], dict[str, Any]]] = []
    for number in range(BLOCKS + 1):  # block 0 warms both up and is in no number
        prompts = PROMPTS[number * REQUESTS % len(PROMPTS) :][:REQUESTS]
        told, salt = (prompts, f"theirs-{started}-{number}"), f"ours-{started}-{number}"
        if number % 2:
            result, answers = measure(*told), ours(url, model, prompts, salt)
        else:
            answers, result = ours(url, model, prompts, salt), measure(*told)
        if result["input_lens"] != [answer.usage["prompt_tokens"] for answer in answers]:  # type: ignore[index]
            sys.exit("client_check: the server counted other prompt tokens for theirs than for ours")
        blocks += [(answers, result)] if number else []
    every, results = [answer for answers, _ in blocks for answer in answers], [result for _, result in blocks]
    column, mine = theirs(results), own(every)
    same = [answer.text for answer in every] == [text for result in results for text in result["generated_texts"]]
    yield f"our client against vllm bench serve, one stream, {BLOCKS} blocks of {REQUESTS} prompts each in turns ({'all' if same else 'not all'} answers equal):"
    yield f"  {'median':<22}{'ours':>9}{'theirs':>9}{'ratio':>8}   {'blocks':<16}n"
    for name, what in (("ttft_s", "TTFT, s"), ("decode_tokens_per_s", "decode, tokens/s")):
        ratios = [own(answers)[name] / theirs([result]).values[name] for answers, result in blocks]
        a, b = mine[name], column.values[name]
        spread = f"{min(ratios):.3f} to {max(ratios):.3f}"
        yield f"  {what:<22}{a:>9.3f}{b:>9.3f}{a / b:>7.3f}x   {spread:<16}{len(every)} + {column.requests}"
    yield "  target: within 5%. Theirs starts at the first chunk with choices (the role, sent with the first token), ours at the first token with text."


def cost(url: str, model: str) -> Iterator[str]:
    """CPU time of this process, all threads, over wall time, while the runner's way reads four streams."""
    shares, each = [], []
    with stream.connect() as http:
        asked(http, url, body_of(model, PROMPTS[0], 1, "warm-up"))
        for _ in range(ROUNDS):
            bodies = [body_of(model, prompt, LONG, f"cost-{time.time_ns()}") for prompt in PROMPTS[:STREAMS]]
            wall, used = time.perf_counter(), time.process_time()
            with ThreadPoolExecutor(STREAMS) as pool:
                answers = list(pool.map(lambda body: asked(http, url, body), bodies))
            used, wall = time.process_time() - used, time.perf_counter() - wall
            shares.append(used / wall)
            each.append(used / sum(len(answer.token_ns) for answer in answers))
    share, chunk_s = statistics.median(shares), statistics.median(each)
    yield f"our client's CPU time at {STREAMS} streams, over wall time, {ROUNDS} rounds of {LONG} tokens a stream:"
    yield f"  {share:.1%} of a core ({min(shares):.1%} to {max(shares):.1%}); {chunk_s * 1e6:.0f} us a token, so 10% is {0.1 / chunk_s:.0f} tokens/s"
    yield "  target: under 10%"


def main() -> None:
    try:
        site = Site.load(ROOT / "examples/cpu")
        url, model = site.url, site.variables.model
        running = client.is_healthy(url) and [c for c in Node().containers(site.project) if c.running]
    except Gb10Error as error:
        sys.exit(f"client_check: {error}")
    if not running:
        sys.exit(f"client_check: the CPU site does not serve at {url}; run: make deploy-baseline SITE=examples/cpu")
    networks = running[0].raw["NetworkSettings"]["Networks"].values()
    url = next((f"http://{network['IPAddress']}:8000" for network in networks if network["IPAddress"]), url)
    with peer(running[0].id, model.served_name, model.path) as measure:
        for line in compare(measure, url, model.served_name):
            print(line, flush=True)
    for line in cost(url, model.served_name):
        print(line, flush=True)


if __name__ == "__main__":
    main()
