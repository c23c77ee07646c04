"""A program for inside an engine image: vLLM's own flag parser on the arguments, nothing loaded. Sent by flags.py with `python3 -c`.

Prints one JSON line: {"outcome": "accepted" | "refused" | "unknown", "why": text}. Ranges are not judged: vLLM does that later.
"""

import contextlib
import importlib
import io
import json
import os
import sys

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
PARSERS = ("vllm.entrypoints.launchers.cli_args", "vllm.entrypoints.openai.cli_args")


def first(attribute, *modules):
    """`attribute` from the first module that has it; modules moved between versions."""
    for name in modules:
        with contextlib.suppress(ImportError, AttributeError):
            return getattr(importlib.import_module(name), attribute)
    raise LookupError(f"this image has no {attribute}")


def one_line(text):
    """A message of several lines as one, at most 300 characters."""
    return " ".join(text.split())[:300] or "no reason given"


def judge(words):
    """The verdict on a list of arguments, as (outcome, why)."""
    errors = io.StringIO()
    with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(io.StringIO()):
        try:
            parser_type = first("FlexibleArgumentParser", "vllm.utils.argparse_utils", "vllm.utils")
            parser = first("make_arg_parser", *PARSERS)(parser_type(prog="vllm", add_help=False))
            validate = first("validate_parsed_serve_args", *PARSERS)
        except Exception as error:  # another version builds its parser in another way: no verdict on the flags
            return "unknown", one_line(f"{type(error).__name__}: {error}")
        parser.print_usage = lambda *_: None
        try:
            validate(parser.parse_args(words))
        except SystemExit:
            return "refused", one_line(errors.getvalue().rpartition("error:")[2])
        except (TypeError, ValueError) as error:
            return "refused", one_line(str(error))
    return "accepted", ""


if __name__ == "__main__":
    outcome, why = judge(sys.argv[1:])
    print(json.dumps({"outcome": outcome, "why": why}))
