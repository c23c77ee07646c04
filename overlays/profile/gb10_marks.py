"""Ranges around functions of an engine whose source is not touched: NVTX for Nsight Systems, record_function for the torch profiler.

Stand-alone, for the engine's own Python (3.10 and later, standard library only). profile.yaml mounts this directory and names
the marks in GB10_MARKS. A module is never imported for a mark: its functions are wrapped when the engine has imported it.
"""

from __future__ import annotations

import enum
import functools
import inspect
import json
import numbers
import os
import sys
import types
from typing import Any, NamedTuple

VARIABLE = "GB10_MARKS"
MARKED = "__gb10_mark__"
UNKNOWN = "?"
LONGEST = 24
"""Characters of a shown value, at most."""
SIMPLE = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.+-")
OF_A_CACHE = ("cache_info", "cache_clear", "cache_parameters")


class NotApplied(Exception):
    """Why a function is not wrapped."""


class Mark(NamedTuple):
    """A range's name, the function it stands around, and what its name shows: key -> path."""

    name: str
    module: str
    qualname: str
    show: dict[str, list[str]]


def install(environment: Any = os.environ) -> None:
    """Wrap what GB10_MARKS names, as soon as it is imported. Never raises: an engine without marks is better than none."""
    text = environment.get(VARIABLE)
    if not text:
        return
    try:
        tool, marks = read(text)
        finder = Finder(marks, RANGES[tool])
    except Exception as error:
        say(f"not applied: {VARIABLE} cannot be read ({type(error).__name__}: {error})")
        return
    sys.meta_path.insert(0, finder)  # type: ignore[arg-type]
    for name in {mark.module for mark in marks} & set(sys.modules):
        finder.put_on(sys.modules[name])


def read(text: str) -> tuple[str, list[Mark]]:
    """The tool (nsys or torch) and the marks out of the variable's JSON."""
    document = json.loads(text)
    marks = []
    for entry in document["marks"]:
        module, _, qualname = entry["function"].partition(":")
        show = {key: path.split(".") for key, path in entry.get("show", {}).items()}
        marks.append(Mark(entry["name"], module, qualname, show))
    return document["tool"], marks


def say(text: str) -> None:
    """A line in the engine's log; a closed stderr is no reason to fail."""
    try:
        print(f"gb10-marks: {text}", file=sys.stderr, flush=True)
    except Exception:
        return


class Finder:
    """Finds a marked module as Python does without it, and has its functions wrapped when its code has run."""

    def __init__(self, marks: list[Mark], ranges: Any) -> None:
        self.ranges = ranges
        self.marks: dict[str, list[Mark]] = {}
        for mark in marks:
            self.marks.setdefault(mark.module, []).append(mark)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name not in self.marks:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else getattr(finder, "find_spec", lambda *_: None)(name, path, target)
            if spec is not None:
                if hasattr(spec.loader, "exec_module"):
                    spec.loader = Loader(spec.loader, self.put_on)
                return spec
        return None

    def put_on(self, module: types.ModuleType) -> None:
        """Wrap the functions of this module, one line each in the log."""
        for mark in self.marks[module.__name__]:
            try:
                apply(module, mark, self.ranges)
                say(f"{mark.name} wraps {mark.module}:{mark.qualname}")
            except NotApplied as why:
                say(f"{mark.name} not applied: {why}")
            except Exception as error:
                say(f"{mark.name} not applied: {type(error).__name__}: {error}")


class Loader:
    """A module's own loader, with one more step after its code has run. The module never sees this one."""

    def __init__(self, loader: Any, then: Any) -> None:
        self.loader, self.then = loader, then

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loader, name)

    def create_module(self, spec: Any) -> Any:
        create = getattr(self.loader, "create_module", None)
        return create(spec) if create else None

    def exec_module(self, module: types.ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = self.loader
        module.__loader__ = self.loader
        self.loader.exec_module(module)
        self.then(module)


def apply(module: types.ModuleType, mark: Mark, ranges: Any) -> None:
    """Put the wrapper in the function's place. Raises `NotApplied` for what cannot have a range around its calls."""
    *outer, last = mark.qualname.split(".")
    owner: Any = module
    for part in outer:
        owner = found_in(owner, part)
        if isinstance(owner, types.ModuleType):
            raise NotApplied(f"{part} is another module: mark the function that calls it")
        if not isinstance(owner, type):
            raise NotApplied(f"{part} is not a class")
    raw = found_in(owner, last)
    if isinstance(raw, staticmethod | classmethod):
        setattr(owner, last, type(raw)(wrapped(raw.__func__, mark, ranges, module)))
    elif isinstance(owner, type) and callable(raw) and not hasattr(type(raw), "__get__"):
        setattr(owner, last, staticmethod(wrapped(raw, mark, ranges, module)))  # one that takes no self, as before
    else:
        setattr(owner, last, wrapped(raw, mark, ranges, module))


def found_in(owner: Any, name: str) -> Any:
    """What stands under a name in a module or a class (or one that it inherits from), descriptors as they are."""
    for scope in owner.__mro__ if isinstance(owner, type) else (owner,):
        if name in vars(scope):
            return vars(scope)[name]
    raise NotApplied(f"{owner.__name__} has no {name}")


def wrapped(function: Any, mark: Mark, ranges: Any, module: types.ModuleType) -> Any:
    """`function` with a range around each call: same signature, same annotations, same globals.

    Its annotations are resolved here: torch.library.infer_schema evaluates those that are text in the globals of the
    function it is given, so the wrapper's globals are the function's own too.
    """
    refuse(function, mark)
    begin, end = steps(function, mark, ranges)

    def call(*args: Any, **kwargs: Any) -> Any:
        range_ = begin(args, kwargs)
        returned = range_
        try:
            returned = function(*args, **kwargs)
            return returned
        finally:
            end(range_, returned)

    namespace = getattr(function, "__globals__", None) or vars(module)
    wrapper = types.FunctionType(call.__code__, namespace, call.__name__, None, call.__closure__)
    functools.update_wrapper(wrapper, function)
    annotations = annotations_of(function)
    if annotations:
        wrapper.__annotations__ = annotations
    signature = signature_of(function)
    if signature is not None:
        parameters = [
            parameter.replace(annotation=annotations.get(name, parameter.annotation))
            for name, parameter in signature.parameters.items()
        ]
        returns = annotations.get("return", signature.return_annotation)
        wrapper.__signature__ = signature.replace(parameters=parameters, return_annotation=returns)  # type: ignore[attr-defined]
    for name in OF_A_CACHE:
        if hasattr(function, name):
            setattr(wrapper, name, getattr(function, name))
    setattr(wrapper, MARKED, mark.name)
    return wrapper


def refuse(function: Any, mark: Mark) -> None:
    """Raise `NotApplied` for what is not simply called and done when it returns."""
    if isinstance(function, type):
        raise NotApplied("it is a class: mark one of its methods")
    if isinstance(function, types.ModuleType):
        raise NotApplied("it is a module: mark a function")
    if isinstance(function, property | functools.cached_property):
        raise NotApplied("it is a property: mark a function that reads it")
    if not callable(function):
        raise NotApplied("it cannot be called")
    if hasattr(type(function), "__getitem__"):
        raise NotApplied(f"it is called through an index ({type(function).__name__}): mark the function that starts it")
    if vars_of(function).get(MARKED) == mark.name:
        raise NotApplied("it is wrapped already")
    inner = inspect.unwrap(function)
    if inspect.iscoroutinefunction(inner) or inspect.isasyncgenfunction(inner):
        raise NotApplied("it is async: its range would stay open while other work runs on the same thread")
    if inspect.isgeneratorfunction(inner):
        raise NotApplied("it is a generator: it returns before its work begins")


def vars_of(function: Any) -> dict[str, Any]:
    return getattr(function, "__dict__", None) or {}


def signature_of(function: Any) -> Any:
    """Its signature, or None: some built-in functions have none."""
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):
        return None


def annotations_of(function: Any) -> dict[str, Any]:
    """Its annotations as objects; one that cannot be evaluated (imported for a type checker only) stays text."""
    try:
        return inspect.get_annotations(function, eval_str=True)
    except Exception:
        try:
            given = inspect.get_annotations(function)
        except Exception:
            return {}
    resolved = {}
    for name, value in given.items():
        resolved[name] = value
        if isinstance(value, str):
            try:
                resolved[name] = eval(value, getattr(function, "__globals__", {}))
            except Exception:
                continue
    return resolved


def steps(function: Any, mark: Mark, ranges: Any) -> tuple[Any, Any]:
    """What is done before a call and after it. Neither ever raises, so that a defect here costs a range and no answer.

    A range has to have its name when it begins. So where something of what is returned is shown, the range has the bare
    name, and a second one of no length, right behind it, has the whole.
    """
    of_arguments = {key: path[1:] for key, path in mark.show.items() if path[0] == "arguments"}
    later = len(of_arguments) < len(mark.show)
    signature = signature_of(function) if of_arguments else None
    told: list[str] = []

    def tell(error: Exception) -> None:
        if not told:
            told.append(mark.name)
            say(f"{mark.name} is called without its range: {type(error).__name__}: {error}")

    def begin(args: Any, kwargs: Any) -> Any:
        try:
            if "torch" not in sys.modules:
                return None
            values = arguments_of(signature, args, kwargs) if of_arguments else {}
            shown = {key: value_at(values, path) for key, path in of_arguments.items()}
            return ranges.begin(mark.name if later else name_of(mark, shown)), shown
        except Exception as error:
            tell(error)
            return None

    def end(range_: Any, returned: Any) -> None:
        if range_ is None:
            return
        try:
            ranges.end(range_[0])
            if later and returned is not range_:  # it did not raise
                rest = {key: path[1:] for key, path in mark.show.items() if key not in of_arguments}
                shown = range_[1] | {key: value_at(returned, path) for key, path in rest.items()}
                ranges.end(ranges.begin(name_of(mark, shown)))
        except Exception as error:
            tell(error)

    return begin, end


def arguments_of(signature: Any, args: Any, kwargs: Any) -> dict[str, Any]:
    """The arguments by name, defaults included; empty for a call that does not fit (the function says so itself)."""
    try:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return dict(bound.arguments)
    except (AttributeError, TypeError):
        return {}


def value_at(value: Any, path: list[str]) -> str:
    """What is shown of the value at a path of indices, keys and attributes; `?` when there is no such thing."""
    try:
        for step in path:
            if isinstance(value, dict):
                value = value[step]
            elif step.isdigit():
                if not isinstance(value, tuple | list):  # an index into a tensor would start work on the GPU
                    return UNKNOWN
                value = value[int(step)]
            else:
                value = getattr(value, step)
        return text_of(value)
    except Exception:
        return UNKNOWN


def text_of(value: Any) -> str:
    """A short name in simple characters: numbers, text and enums as they are, a shape as 3x4, of anything else its type."""
    if isinstance(value, enum.Enum):
        text = str(value.name)
    elif value is None or isinstance(value, bool | str):
        text = str(value)
    elif isinstance(value, numbers.Integral):
        text = str(int(value))
    elif isinstance(value, float):
        text = f"{value:.6g}"
    elif isinstance(value, tuple | list) and 0 < len(value) <= 4 and all(type(one) is int for one in value):
        text = "x".join(map(str, value))
    else:
        text = type(value).__name__
    return "".join(character if character in SIMPLE else "_" for character in text[:LONGEST])


def name_of(mark: Mark, shown: dict[str, str]) -> str:
    """`name:key=value,key=value`, in the order of the mark."""
    return f"{mark.name}:{','.join(f'{key}={shown[key]}' for key in mark.show)}" if mark.show else mark.name


class Nvtx:
    """Ranges on the thread's NVTX stack, for Nsight Systems."""

    @staticmethod
    def begin(name: str) -> Any:
        sys.modules["torch"].cuda.nvtx.range_push(name)

    @staticmethod
    def end(_: Any) -> None:
        sys.modules["torch"].cuda.nvtx.range_pop()


class RecordFunction:
    """Ranges of the torch profiler."""

    @staticmethod
    def begin(name: str) -> Any:
        range_ = sys.modules["torch"].profiler.record_function(name)
        range_.__enter__()
        return range_

    @staticmethod
    def end(range_: Any) -> None:
        range_.__exit__(None, None, None)


RANGES = {"nsys": Nvtx, "torch": RecordFunction}
