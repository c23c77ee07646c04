"""The start-up program of the marks, in Python processes of its own as the engine would be; torch is a stand-in that writes ranges down.

Against real torch it is held in tests/e2e/test_marks_on_vllm.py.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT

PROGRAM = ROOT / "overlays/profile"
TORCH = '''
"""Writes down ranges as they begin and end."""
import types
ranges = []
class record_function:
    def __init__(self, name): self.name = name
    def __enter__(self): ranges.append(("begin", self.name)); return self
    def __exit__(self, *_): ranges.append(("end", self.name))
profiler = types.SimpleNamespace(record_function=record_function)
open_names = []
def push(name): open_names.append(name); ranges.append(("begin", name))
def pop(): ranges.append(("end", open_names.pop()))
cuda = types.SimpleNamespace(nvtx=types.SimpleNamespace(range_push=push, range_pop=pop))
class Tensor:
    def __getitem__(self, index): return "looked-into"
    def __str__(self): return "printed"
    shape = (3, 4)
'''
MODULE = '''
from __future__ import annotations
import enum, functools, math
from typing import TYPE_CHECKING
import torch
from math import gcd
if TYPE_CHECKING:
    from nowhere import Secret
class Mode(enum.Enum):
    PIECEWISE = 1
class Base:
    def inherited(self, number: int = 1) -> int:
        return number + 1
class Plan:
    def __init__(self, tokens): self.tokens = tokens
class Engine(Base):
    prefix = "e"
    def dispatch(self, num_tokens: int, *, eager: bool = False) -> tuple[Mode, Plan]:
        """What it does."""
        return Mode.PIECEWISE, Plan(num_tokens + num_tokens % 2)
    @classmethod
    def named(cls, name): return cls.prefix + name
    @staticmethod
    def plain(x): return x * 2
    @property
    def size(self): return 3
    builtin = math.floor
class Child(Engine):
    pass
def op(x: torch.Tensor, scale: float = 2.0, other: Secret = None) -> list[torch.Tensor]:
    return [x]
def fails(x): raise ValueError(f"no {x}")
def generator(x): yield x
async def coroutine(x): return x
@functools.lru_cache(maxsize=None)
def cached(x): return x + 1
def takes(*items, **named): return len(items) + len(named)
'''


@pytest.fixture
def engine(tmp_path: Path):
    """Runs Python text in a fresh process that has the marks; returns what it prints last, as JSON, and its stderr."""
    (tmp_path / "torch.py").write_text(TORCH)
    (tmp_path / "engine.py").write_text(MODULE)

    def run(text: str, *marks: tuple[str, str, dict[str, str]] | str, tool: str = "torch", **more: str) -> Any:
        named = [{"name": m[0], "function": m[1], "show": m[2]} for m in marks]
        environment = {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join([str(PROGRAM), str(tmp_path)])}
        environment |= {"GB10_MARKS": json.dumps({"tool": tool, "marks": named}), "PYTHONDONTWRITEBYTECODE": "1"} | more
        result = subprocess.run(
            [sys.executable, "-c", f"import json, sys\n{text}"],
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert result.returncode == 0, result.stderr
        return json.loads(result.stdout.splitlines()[-1]), result.stderr

    return run


RANGES = "import torch; print(json.dumps(torch.ranges))"


def pairs(*names: str) -> list[list[str]]:
    return [[kind, name] for name in names for kind in ("begin", "end")]


@pytest.mark.parametrize("tool", ["torch", "nsys"])
def test_arguments_are_in_the_name_with_their_defaults_and_enums_by_name(engine, tool: str) -> None:
    mark = ("dispatch", "engine:Engine.dispatch", {"actual": "arguments.num_tokens", "eager": "arguments.eager"})
    ranges, err = engine(f"import engine; engine.Engine().dispatch(3); {RANGES}", mark, tool=tool)
    assert ranges == pairs("dispatch:actual=3,eager=False")
    assert err == "gb10-marks: dispatch wraps engine:Engine.dispatch\n"


def test_what_is_returned_stands_in_a_range_of_its_own_right_behind(engine) -> None:
    show = {"actual": "arguments.num_tokens", "padded": "returned.1.tokens", "mode": "returned.0"}
    ranges, _ = engine(
        f"import engine; engine.Engine().dispatch(num_tokens=3); {RANGES}", ("dispatch", "engine:Engine.dispatch", show)
    )
    assert ranges == pairs("dispatch", "dispatch:actual=3,padded=4,mode=PIECEWISE")


def test_a_call_that_raises_closes_its_range_and_shows_nothing_returned(engine) -> None:
    text = f"import engine\ntry: engine.fails(7)\nexcept ValueError as error: assert str(error) == 'no 7'\n{RANGES}"
    for show in ({}, {"x": "arguments.x", "r": "returned"}):
        ranges, _ = engine(text, ("fails", "engine:fails", show))
        assert ranges == pairs("fails")


def test_signature_annotations_and_everything_a_caller_can_see_stay(engine) -> None:
    text = """
import engine, inspect, torch
op, dispatch = engine.op, engine.Engine.dispatch
signature = inspect.signature(op)
assert signature.parameters["x"].annotation is torch.Tensor, signature
assert signature.parameters["scale"].default == 2.0
assert signature.parameters["other"].annotation == "Secret", "one that only a type checker can resolve stays text"
assert op.__annotations__["return"] == list[torch.Tensor]
assert op.__globals__ is vars(engine), "text annotations are evaluated in these"
assert eval("Mode", op.__globals__) is engine.Mode
assert (op.__name__, op.__module__, op.__qualname__) == ("op", "engine", "op")
assert dispatch.__doc__ == "What it does."
assert str(inspect.signature(engine.Engine().dispatch)).startswith("(num_tokens: int, *, eager: bool = False) -> tuple[")
assert engine.__spec__.loader.__class__.__name__ == "SourceFileLoader" == engine.__loader__.__class__.__name__
assert "def op(" in inspect.getsource(op)
try: op()
except TypeError as error: assert "op() missing 1 required positional argument: 'x'" in str(error), error
print(json.dumps("kept"))
"""
    engine(text, ("op", "engine:op", {"x": "arguments.x"}), ("dispatch", "engine:Engine.dispatch", {}))


def test_methods_of_every_kind_keep_their_kind(engine) -> None:
    text = """
import engine
assert engine.Engine.named("x") == engine.Engine().named("x") == "ex"
assert engine.Engine.plain(2) == engine.Engine().plain(2) == 4
assert engine.Engine().builtin(2.5) == 2
assert engine.Child().inherited() == 2
assert engine.Engine().inherited(2) == 3
import torch; print(json.dumps([name for kind, name in torch.ranges if kind == "begin"]))
"""
    marks = [
        ("named", "engine:Engine.named", {"name": "arguments.name"}),
        ("plain", "engine:Engine.plain", {"x": "arguments.x"}),
        ("builtin", "engine:Engine.builtin", {}),
        ("child", "engine:Child.inherited", {"number": "arguments.number"}),
    ]
    names, _ = engine(text, *marks)
    assert names == ["named:name=x", "named:name=x", "plain:x=2", "plain:x=2", "builtin", "child:number=1"]


def test_a_function_that_is_only_imported_there_is_wrapped_there_alone(engine) -> None:
    text = f"import engine, math; assert engine.gcd(4, 6) == math.gcd(4, 6) == 2; {RANGES}"
    ranges, _ = engine(text, ("gcd", "engine:gcd", {}))
    assert ranges == pairs("gcd"), "one range for two calls"


def test_a_cache_can_still_be_cleared(engine) -> None:
    text = "import engine; engine.cached(1); engine.cached(1); print(json.dumps(engine.cached.cache_info().hits))"
    assert engine(text, ("cached", "engine:cached", {}))[0] == 1
    engine("import engine; engine.cached.cache_clear(); print(1)", ("cached", "engine:cached", {}))


@pytest.mark.parametrize(
    ("function", "why"),
    [
        ("engine:generator", "it is a generator: it returns before its work begins"),
        ("engine:coroutine", "it is async: its range would stay open while other work runs on the same thread"),
        ("engine:Engine", "it is a class: mark one of its methods"),
        ("engine:Engine.size", "it is a property: mark a function that reads it"),
        ("engine:torch.cuda", "torch is another module: mark the function that calls it"),
        ("engine:Engine.absent", "Engine has no absent"),
        ("engine:absent", "engine has no absent"),
        ("engine:Mode.PIECEWISE", "it cannot be called"),
    ],
)
def test_what_cannot_have_a_range_is_left_as_it_is_and_told(engine, function: str, why: str) -> None:
    ranges, err = engine(f"import engine; engine.Engine().dispatch(1); {RANGES}", ("mark", function, {}))
    assert ranges == []
    assert err == f"gb10-marks: mark not applied: {why}\n"


def test_values_are_short_and_simple_and_a_tensor_is_never_looked_into(engine) -> None:
    text = f"""
import engine, torch
engine.takes(torch.Tensor(), text="a b;c=d,{"x" * 40}", shape=torch.Tensor(), none=None, ratio=1/3)
{RANGES}
"""
    show = {
        "tensor": "arguments.items.0",
        "inside": "arguments.items.0.0",
        "shape": "arguments.named.shape.shape",
        "text": "arguments.named.text",
        "none": "arguments.named.none",
        "ratio": "arguments.named.ratio",
        "missing": "arguments.named.absent",
    }
    ranges, _ = engine(text, ("takes", "engine:takes", show))
    wanted = "tensor=Tensor,inside=?,shape=3x4,text=a_b_c_d_xxxxxxxxxxxxxxxx,none=None,ratio=0.333333,missing=?"
    assert ranges == pairs(f"takes:{wanted}")


def test_a_defect_of_the_mark_costs_the_range_and_not_the_answer(engine) -> None:
    text = """
import engine, torch
def defect(name): raise RuntimeError("NVTX functions not installed")
torch.cuda.nvtx.range_push = defect
print(json.dumps([engine.Engine.plain(2), engine.Engine.plain(3)]))
"""
    answers, err = engine(text, ("plain", "engine:Engine.plain", {}), tool="nsys")
    assert answers == [4, 6]
    told = "gb10-marks: plain is called without its range: RuntimeError: NVTX functions not installed\n"
    assert err.count("without its range") == 1
    assert told in err


def test_nothing_is_imported_for_a_mark_and_a_function_called_before_torch_has_no_range(engine, tmp_path: Path) -> None:
    (tmp_path / "early.py").write_text("def f(): return 1\n")
    loaded, err = engine(
        "import early; early.f(); print(json.dumps([n for n in ('torch', 'engine') if n in sys.modules]))",
        ("early", "early:f", {}),
        ("op", "engine:op", {}),
    )
    assert loaded == []
    assert err == "gb10-marks: early wraps early:f\n"


def test_the_next_sitecustomize_runs_too_and_keeps_its_name(engine, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nMINE = 1\nsys.ran = __file__\nimport early\n")
    (tmp_path / "early.py").write_text("def f(): return 1\n")
    text = (
        "import sitecustomize, early, torch; early.f(); print(json.dumps([sys.ran, sitecustomize.MINE, torch.ranges]))"
    )
    (ran, mine, ranges), _ = engine(text, ("early", "early:f", {}))
    assert (ran, mine) == (str(tmp_path / "sitecustomize.py"), 1)
    assert ranges == pairs("early"), "a module that it imported is wrapped as well"


def test_a_next_sitecustomize_that_fails_fails_as_without_us_and_the_marks_are_there(engine, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("raise RuntimeError('theirs')\n")
    ranges, err = engine(f"import engine; engine.Engine.plain(1); {RANGES}", ("plain", "engine:Engine.plain", {}))
    assert ranges == pairs("plain")
    assert "RuntimeError: theirs" in err


def test_a_finder_that_stands_before_ours_is_asked_through_ours(engine, tmp_path: Path) -> None:
    """An image's own import hook goes on working, whichever of the two was put in first."""
    (tmp_path / "sitecustomize.py").write_text(
        """
import sys, importlib.machinery
class Theirs:
    seen = []
    def find_spec(self, name, path=None, target=None):
        self.seen.append(name)
        return None
sys.theirs = Theirs()
sys.meta_path.insert(0, sys.theirs)
"""
    )
    text = "import engine; engine.Engine.plain(1); import torch; print(json.dumps(['engine' in sys.theirs.seen, torch.ranges]))"
    (seen, ranges), _ = engine(text, ("plain", "engine:Engine.plain", {}))
    assert seen
    assert ranges == pairs("plain")


def test_a_module_that_is_loaded_again_is_wrapped_again_once(engine) -> None:
    text = f"import engine, importlib; importlib.reload(engine); engine.Engine.plain(1); {RANGES}"
    ranges, err = engine(text, ("plain", "engine:Engine.plain", {}))
    assert ranges == pairs("plain")
    assert err.count("plain wraps") == 2


def test_spawned_and_forked_workers_have_the_marks(engine, tmp_path: Path) -> None:
    (tmp_path / "worker.py").write_text(
        "def work(queue):\n    import engine, torch\n    engine.Engine.plain(1)\n    queue.put(torch.ranges)\n"
    )
    (tmp_path / "main.py").write_text(
        """
import json, multiprocessing, worker
if __name__ == "__main__":
    found = []
    for method in ("spawn", "fork"):
        context = multiprocessing.get_context(method)
        queue = context.Queue()
        child = context.Process(target=worker.work, args=(queue,))
        child.start()
        found.append(queue.get())
        child.join()
    print(json.dumps(found))
"""
    )
    found, _ = engine("import runpy; runpy.run_path('main.py', run_name='__main__')", ("p", "engine:Engine.plain", {}))
    assert found == [pairs("p"), pairs("p")]


def test_a_variable_that_cannot_be_read_is_told_and_nothing_else_happens(engine) -> None:
    for broken in ("{", '{"tool": "vtune", "marks": []}', '{"tool": "torch", "marks": [{}]}'):
        answer, err = engine("import engine; print(json.dumps(engine.Engine.plain(2)))", GB10_MARKS=broken)
        assert answer == 4
        assert err.startswith("gb10-marks: not applied: GB10_MARKS cannot be read (")
    answer, err = engine("print(1)", GB10_MARKS="")
    assert err == ""
