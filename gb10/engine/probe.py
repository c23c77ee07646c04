"""A program for inside an engine's container: what the server answers, as one JSON line. Sent by checks/ with `python3 -c`.

Arguments: port, served model name, seconds for the completion. Standard library only; changes nothing. At most 15 s more than these.
"""

import json
import sys
import urllib.error
import urllib.request

SHORT_S = 3.0


def ask(path, timeout_s=SHORT_S, body=None):
    """(HTTP status, text), or (0, why there is none)."""
    data = None if body is None else json.dumps(body).encode()
    url = f"http://127.0.0.1:{sys.argv[1]}{path}"
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=timeout_s) as response:
            return response.status, response.read().decode("utf-8", "replace")
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode("utf-8", "replace")
    except Exception as error:
        return 0, f"{type(error).__name__}: {getattr(error, 'reason', None) or error}"


def families(text):
    """The names of the engine's metrics, and its iteration counter (None when it has none)."""
    names = sorted({line.split()[2] for line in text.splitlines() if line.startswith("# TYPE vllm:")})
    counts = [line for line in text.splitlines() if line.startswith("vllm:iteration_tokens_total_count")]
    return names, sum(float(line.rsplit(" ", 1)[1]) for line in counts) if counts else None


def main():
    _, model, limit_s = sys.argv[1:4]
    found = {"health": ask("/health"), "models": ask("/v1/models"), "metrics_status": 0}
    found["metrics_status"], metrics = ask("/metrics")
    found["metrics"], before = families(metrics)
    messages = [{"role": "user", "content": "Say hello."}]
    body = {"model": model, "messages": messages, "max_tokens": 8, "temperature": 0, "seed": 42}
    found["completion"] = ask("/v1/chat/completions", float(limit_s), body)
    found["iterations"] = [before, families(ask("/metrics")[1])[1]]
    found["start_profile"] = ask("/start_profile")  # GET: 404 or 405, and nothing is started
    print(json.dumps(found))


if __name__ == "__main__":
    main()
