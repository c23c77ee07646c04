"""A program for inside an engine image: are the marked functions there? Read from their source, nothing of it imported. Sent by marks.py.

Prints one JSON line: for each mark {"outcome": "found" | "refused" | "unknown", "key", "why", "mend"}.
"""

import ast
import difflib
import json
import pkgutil
import sys
from pathlib import Path

PROPERTIES = {"property", "cached_property", "setter", "getter", "deleter"}
KERNELS = {"jit", "autotune", "heuristics"}


class Refused(Exception):
    """What is wrong with the mark's key, and what to do."""

    def __init__(self, what, mend, key="function"):
        super().__init__(what, mend, key)
        self.what, self.mend, self.key = what, mend, key


class Unknown(Exception):
    """Why the source does not say it: the engine's start will."""


def guess(word, choices, otherwise):
    """`did you mean ...?`, or another mend."""
    near = difflib.get_close_matches(word, choices, n=1, cutoff=0.6)
    return f"did you mean {near[0]}?" if near else otherwise


def some(names):
    """A few names as a list in words."""
    names = sorted(name for name in names if not name.startswith("__"))
    return f"there are {', '.join(names[:6])}{', ...' if len(names) > 6 else ''}" if names else "look at its source"


def found_by(finders, name, path):
    """The spec of a module, as the import system would find it, with nothing loaded."""
    for finder in finders:
        spec = getattr(finder, "find_spec", lambda *_: None)(name, path)
        if spec is not None:
            return spec
    return None


def source_of(module):
    """The file with a module's source, its packages looked for one in the other and not imported."""
    path, whole = None, ""
    for part in module.split("."):
        if whole and path is None:
            raise Refused(f"{whole} is a module and no package, so there is no {module}", "name the module itself")
        inside, whole = whole, f"{whole}.{part}" if whole else part
        spec = found_by(sys.meta_path, whole, path)
        if spec is None:
            where = f"{inside} has no module {part}" if inside else f"the image has no module {part}"
            beside = [one.name for one in pkgutil.iter_modules(path)]
            near = difflib.get_close_matches(part, beside, n=1, cutoff=0.6)
            mend = (
                f"did you mean {inside + '.' if inside else ''}{near[0]}?" if near else elsewhere(module, path, inside)
            )
            raise Refused(where, mend)
        path = spec.submodule_search_locations
    if spec.origin is None or not spec.origin.endswith(".py"):
        raise Unknown(f"{module} has no Python source")
    return Path(spec.origin)


def elsewhere(module, path, inside):
    """A module of the same last name further down or up in the package, when there is one."""
    top, _, _ = module.partition(".")
    spec = found_by(sys.meta_path, top, None)
    for directory in (spec.submodule_search_locations or []) if spec else []:
        found = sorted(Path(directory).rglob(f"{module.rpartition('.')[2]}.py"))
        if found:
            return f"did you mean {'.'.join([top, *found[0].relative_to(directory).with_suffix('').parts])}?"
    return some(one.name for one in pkgutil.iter_modules(path)) if inside else "name one that the engine imports"


class Module:
    """A module's names, from its source."""

    def __init__(self, name):
        self.name = name
        self.file = source_of(name)
        self.tree = ast.parse(self.file.read_text(encoding="utf-8"))
        self.names, self.stars = names_in(self.tree.body)

    def absolute(self, node):
        """The module that a `from ... import` names."""
        if not node.level:
            return node.module
        package = self.name.split(".") if self.file.name == "__init__.py" else self.name.split(".")[:-1]
        base = package[: len(package) - node.level + 1]
        return ".".join([*base, node.module] if node.module else base)

    def functions(self):
        """Every function and method: its path in the module, and its node."""
        for name, node in self.names.items():
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield name, node
            elif isinstance(node, ast.ClassDef):
                for inner, method in names_in(node.body)[0].items():
                    if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef):
                        yield f"{name}.{inner}", method


def names_in(body):
    """What the statements of a module or a class define, also inside `if`, `try` and `with`; and what they import with a star."""
    names, stars = {}, []
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names[node.name] = node
        elif isinstance(node, ast.Import):
            for alias in node.names:
                names[alias.asname or alias.name.partition(".")[0]] = (
                    "module",
                    alias.name if alias.asname else alias.name.partition(".")[0],
                )
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if alias.name == "*":
                    stars.append(node)
                else:
                    names[alias.asname or alias.name] = ("from", node, alias.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                if isinstance(target, ast.Name):
                    names[target.id] = ("value",)
        for part in ("body", "orelse", "finalbody"):
            if isinstance(node, ast.If | ast.Try | ast.With | ast.For | ast.While):
                if part == "body" and isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
                    continue  # not there when the engine runs
                inner, more = names_in(getattr(node, part, []))
                names, stars = names | inner, stars + more
        for handler in getattr(node, "handlers", []):
            inner, more = names_in(handler.body)
            names, stars = inner | names, stars + more
    return names, stars


def follow(module, item, depth=0):
    """What an imported name stands for: (module, node of a function or class), or a `Module`. Raises `Unknown`."""
    if not isinstance(item, tuple):
        return module, item
    if item[0] == "value" or depth > 8:
        raise Unknown("it is assigned, not defined")
    if item[0] == "module":
        return Module(item[1])
    _, node, name = item
    source = module.absolute(node)
    try:
        other = Module(source)
        if name in other.names:
            return follow(other, other.names[name], depth + 1)
        return Module(f"{source}.{name}")
    except Refused as error:
        raise Unknown(f"{source} has no {name} in its source") from error


def method_of(module, node, name, depth=0):
    """A name of a class or of what it inherits from; None when no class has it. Raises `Unknown` for a base that is not found."""
    names, _ = names_in(node.body)
    if name in names or depth > 8:
        return module, names.get(name)
    unknown = None
    for base in node.bases:
        try:
            word = ast.unparse(base).partition("[")[0]
            if word in {"object", "ABC", "Protocol", "Generic"}:
                continue
            other, kind = class_named(module, word)
            found = method_of(other, kind, name, depth + 1)
            if found[1] is not None:
                return found
        except (Unknown, Refused, LookupError):
            unknown = ast.unparse(base)
    if unknown is not None:
        raise Unknown(f"{node.name} may inherit {name} from {unknown}, which cannot be looked into")
    return module, None


def class_named(module, word):
    """The class that a dotted name means in a module, as (module, node)."""
    first, *rest = word.split(".")
    found = follow(module, module.names[first])
    for part in rest:
        if not isinstance(found, Module):
            raise Unknown(word)
        found = follow(found, found.names[part])
    if isinstance(found, Module) or not isinstance(found[1], ast.ClassDef):
        raise Unknown(word)
    return found


def callers(module, call):
    """Functions of a module whose source calls `call`."""
    for name, node in module.functions():
        if any(isinstance(one, ast.Call) and ast.unparse(one.func) == call for one in ast.walk(node)):
            yield name


def resolve(function):
    """The function's node, or None for one that is there and has no Python source. Raises `Refused` or `Unknown`."""
    name, _, qualname = function.partition(":")
    module = Module(name)
    first, *rest = qualname.split(".")
    if first not in module.names:
        if module.stars:
            raise Unknown(f"{first} may come from {module.absolute(module.stars[0])}, of which all is imported")
        everywhere = dict(module.functions())
        same = [one for one in everywhere if one.rpartition(".")[2] == qualname]
        mend = f"did you mean {same[0]}?" if same else guess(qualname, [*everywhere, *module.names], some(module.names))
        raise Refused(f"{name} has no {first}", mend)
    item = module.names[first]
    if rest:
        return inner(module, first, item, rest)
    if isinstance(item, tuple) and item[0] == "from":
        try:
            found = follow(module, item)
        except Unknown:
            return None  # imported from a compiled module: it can be wrapped under its name here
        if isinstance(found, Module):
            raise Refused(f"{first} is a module", f"mark a function: {found.name}:...")
        item = found[1]
    if isinstance(item, tuple):
        if item[0] == "module":
            raise Refused(f"{first} is a module", f"mark a function: {item[1]}:...")
        raise Unknown(f"{first} is assigned there, not defined")
    return item


def inner(module, first, item, rest):
    """A method: `rest` is what stands behind the first name."""
    whole = ".".join([first, *rest])
    if isinstance(item, tuple):
        target = item[1] if item[0] == "module" else None
        if item[0] == "value":
            raise Unknown(f"{first} is assigned there, not defined")
        if target is None:
            found = follow(module, item)
            if not isinstance(found, Module):
                kind = "class" if isinstance(found[1], ast.ClassDef) else "function"
                mend = f"write {found[0].name}:{'.'.join([found[1].name, *rest])}"
                raise Refused(f"{first} is a {kind} of another module", mend)
            target = found.name
        near = list(callers(module, whole))
        what = f"{first} is another module ({target}): everyone's calls of {'.'.join(rest)} would be in the range"
        mend = (
            f"mark the function that calls it: {' or '.join(near[:3])}" if near else "mark the function that calls it"
        )
        raise Refused(what, mend)
    for index, part in enumerate(rest):
        if not isinstance(item, ast.ClassDef):
            raise Refused(f"{item.name} is a function: what is defined inside it cannot be marked", "mark it itself")
        holder, owner = item, module
        module, item = method_of(module, item, part)
        if item is None:
            names = list(names_in(holder.body)[0])
            before = ".".join([first, *rest[:index], ""])
            mend = guess(before + part, [before + one for one in names], some(names))
            raise Refused(f"{holder.name} of {owner.name} has no {part}", mend)
    if isinstance(item, tuple):
        raise Unknown(f"{whole} is assigned there, not defined")
    return item


def check(function, node, show):
    """Raise `Refused` for what cannot have a range, and for an argument that is shown and not there."""
    if isinstance(node, ast.ClassDef):
        methods = [name for name, one in names_in(node.body)[0].items() if isinstance(one, ast.FunctionDef)]
        raise Refused(f"{node.name} is a class", f"mark a method: {some(methods)}")
    words = {ast.unparse(one).partition("(")[0].rpartition(".")[2] for one in node.decorator_list}
    if words & PROPERTIES:
        raise Refused(f"{node.name} is a property", "mark a function that reads it")
    if words & KERNELS:
        what = f"{node.name} is a kernel: it is started through an index, and runs on the GPU"
        raise Refused(what, "mark the function that starts it")
    if isinstance(node, ast.AsyncFunctionDef):
        what = f"{node.name} is async: its range would stay open while other work runs on the same thread"
        raise Refused(what, "mark a function that it calls")
    if any(isinstance(one, ast.Yield | ast.YieldFrom) for one in own(node)):
        raise Refused(f"{node.name} is a generator: it returns before its work begins", "mark a function that it calls")
    given = node.args
    names = [one.arg for one in [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg] if one]
    for key, path in show.items():
        root, _, rest = path.partition(".")
        name = rest.partition(".")[0]
        if root == "arguments" and name not in names:
            mend = guess(name, names, f"it has {', '.join(names) or 'none'}")
            raise Refused(f"{node.name} has no argument {name}", mend, f"show.{key}")


def own(node):
    """The nodes of a function's own body, without those of functions inside it."""
    left = list(node.body)
    while left:
        one = left.pop()
        yield one
        if not isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            left += list(ast.iter_child_nodes(one))


def judged(mark):
    """One mark's verdict."""
    verdict = {"outcome": "found", "key": "function", "why": "", "mend": ""}
    try:
        node = resolve(mark["function"])
        if node is not None:
            check(mark["function"], node, mark["show"])
    except Refused as error:
        return verdict | {"outcome": "refused", "key": error.key, "why": error.what, "mend": error.mend}
    except Unknown as error:
        return verdict | {"outcome": "unknown", "why": str(error)}
    except (OSError, SyntaxError, ValueError) as error:
        return verdict | {"outcome": "unknown", "why": f"{type(error).__name__}: {error}"}
    return verdict


if __name__ == "__main__":
    print(json.dumps([judged(mark) for mark in json.loads(sys.argv[1])]))
