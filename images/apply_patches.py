"""Apply patches.json (patches.yaml, checked and turned into JSON by gb10/patches.py) to the packages of an image.

A program for inside an image, run by its Dockerfile while it is built; standard library only. Every entry is judged
before a file is written: one line a fault and exit code 1, and nothing has changed. docs/decisions/patches.md says why.

Usage: python3 apply_patches.py [--patches patches.json] [--root DIRECTORY] [--manifest FILE]
"""

import argparse
import hashlib
import importlib.metadata
import importlib.util
import json
import py_compile
import sys
import tempfile
from pathlib import Path

SCHEMA = 1
MANIFEST = "/usr/local/share/gb10/patches.json"


class PatchError(Exception):
    """What is wrong with one entry, in words."""


def sha256(data):
    """The SHA-256 of bytes as 64 hex digits."""
    return hashlib.sha256(data).hexdigest()


def times(number):
    """A count in words."""
    return "once" if number == 1 else f"{number} times"


def shown(text):
    """The first line of an anchor, short enough for a message."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    more = " ..." if len(lines) > 1 or len(lines[0]) > 70 else ""
    return f'"{lines[0][:70]}"{more}'


def located(name, root):
    """The file `name` of an installed package, found without importing the package."""
    top = name.split("/", 1)[0]
    if Path(name).is_absolute() or ".." in Path(name).parts:
        raise PatchError(f"{name} is not a path inside a package")
    if root is None:
        spec = importlib.util.find_spec(top.removesuffix(".py"))
        places = list(spec.submodule_search_locations or [spec.origin]) if spec else []
        if not places:
            raise PatchError(f"{name}: no package {top} is installed for {sys.executable}")
        root = Path(places[0]).parent
    path = root / name
    if not path.is_file():
        raise PatchError(f"{name}: {path} is not there; correct `file`, or remove the entry")
    return path.resolve()


def marker_state(entry, text):
    """Does the file show that upstream has the fix already? One marker that fits is enough."""
    fixed = False
    for marker in entry["fixed_by"]:
        found = text.count(marker["find"])
        if found not in (0, marker["count"]):
            raise PatchError(
                f"{entry['file']}: the sign of the fix {shown(marker['find'])} is there {times(found)}, "
                f"not {times(marker['count'])}; look at the file and correct `fixed_by`"
            )
        fixed = fixed or found > 0
    return fixed


def fitting(entry, text):
    """The alternatives whose anchor is there exactly as often as it says; another number above 0 is a fault."""
    fits = []
    for alternative in entry["alternatives"]:
        found = text.count(alternative["find"])
        if found == alternative["count"]:
            fits.append(alternative)
        elif found:
            raise PatchError(
                f'{entry["file"]}: the anchor of "{alternative["seen_in"]}" {shown(alternative["find"])} is there '
                f"{times(found)}, not {times(alternative['count'])}; look at the file and correct `find` or `count`"
            )
    if len(fits) > 1:
        names = " and ".join(f'"{alternative["seen_in"]}"' for alternative in fits)
        raise PatchError(f"{entry['file']}: {names} both fit; make one anchor longer")
    return fits


def judged(entry, text):
    """Outcome, alternative, count and new text for one entry on the text of its file. Raises `PatchError`."""
    fixed = marker_state(entry, text)
    if "append" in entry:
        if fixed:
            return "already-fixed", None, 0, text
        if text.endswith(entry["append"]):
            raise PatchError(
                f"{entry['file']}: ends in that text already, and no manifest says why; look at the base image"
            )
        end = "" if not text or text.endswith("\n") else "\n"
        return "applied", "append", 1, text + end + entry["append"]
    fits = fitting(entry, text)
    if fits and fixed:
        raise PatchError(
            f"{entry['file']}: both the anchor {shown(fits[0]['find'])} and a sign of the fix are there: "
            "it is not clear whether it is fixed; look at the file and correct the entry"
        )
    if fixed:
        return "already-fixed", None, 0, text
    if not fits:
        anchors = "; ".join(f'"{a["seen_in"]}" {shown(a["find"])}' for a in entry["alternatives"])
        raise PatchError(
            f"{entry['file']}: no anchor is there ({anchors}) and no sign of the fix; "
            "look at the file and add an alternative, or turn the entry off"
        )
    chosen = fits[0]
    return "applied", chosen["seen_in"], chosen["count"], text.replace(chosen["find"], chosen["replace"])


def kept(entry, earlier):
    """Is the entry settled by the base image already? Raises `PatchError` when the base says something else."""
    if earlier is None or earlier["outcome"] == "off":
        return False
    if not entry["enabled"]:
        raise PatchError(f"is {earlier['outcome']} in the base image and cannot be off here; turn it off there")
    if earlier["entry"] != entry["entry"]:
        raise PatchError("is another entry in the base image; give one of the two another id")
    return True


class Run:
    """The entries judged one after the other: each sees what those before it made of the file."""

    def __init__(self, root, manifest):
        self.root = root
        self.entries = {entry["id"]: entry for entry in manifest.get("entries", [])}
        self.files = {file["path"]: file for file in manifest.get("files", [])}
        self.packages = dict(manifest.get("packages", {}))
        self.before = {}  # path -> bytes as found
        self.texts = {}  # path -> text as it will be
        self.owner = {}  # path -> id of the last entry that changed it
        self.faults = []

    def read(self, entry):
        path = located(entry["file"], self.root)
        key = str(path)
        if key not in self.texts:
            data = path.read_bytes()
            known = self.files.get(key)
            if known and known["sha256_after"] != sha256(data):
                raise PatchError(f"{entry['file']}: was changed since the base image's patches; mend the Dockerfile")
            try:
                self.texts[key] = data.decode("utf-8")
            except UnicodeDecodeError:
                raise PatchError(f"{entry['file']}: is not UTF-8 text") from None
            self.before[key] = data
            self.packages.update(owners(path, entry["file"]))
        return key

    def judge(self, entry):
        record = {"id": entry["id"], "file": entry["file"], "entry": entry["entry"]}
        try:
            if kept(entry, self.entries.get(entry["id"])):
                return
            if not entry["enabled"]:
                self.entries[entry["id"]] = {**record, "outcome": "off", "seen_in": None, "count": 0}
                return
            key = self.read(entry)
            outcome, seen_in, count, text = judged(entry, self.texts[key])
        except PatchError as error:
            self.faults.append(f"{entry['id']}: {error}")
            return
        if text != self.texts[key]:
            self.texts[key], self.owner[key] = text, entry["id"]
        self.entries[entry["id"]] = {**record, "outcome": outcome, "seen_in": seen_in, "count": count}

    def compile(self, directory):
        """Every changed Python file must still be one; tried on copies."""
        for key, identity in self.owner.items():
            if key.endswith(".py"):
                copy = Path(directory) / "copy.py"
                copy.write_bytes(self.texts[key].encode())
                try:
                    py_compile.compile(str(copy), cfile=str(copy) + "c", dfile=key, doraise=True)
                except py_compile.PyCompileError as error:
                    why = " ".join(str(error.exc_value).split())
                    self.faults.append(f"{identity}: {key} is no valid Python any more ({why}); mend the replacement")

    def write(self):
        """Replace every changed file, and its byte code with it: stale byte code would run in its place."""
        for key in self.owner:
            path = Path(key)
            staged = path.with_name(f".{path.name}.gb10")
            staged.write_bytes(self.texts[key].encode())
            staged.chmod(path.stat().st_mode & 0o7777)
            staged.replace(path)
            if key.endswith(".py"):
                for old in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
                    old.unlink()
                py_compile.compile(key, doraise=True)

    def manifest(self):
        for key, data in self.before.items():
            first = self.files.get(key, {}).get("sha256_before", sha256(data))
            after = sha256(self.texts[key].encode())
            self.files[key] = {"path": key, "sha256_before": first, "sha256_after": after}
        return {
            "schema": SCHEMA,
            "packages": dict(sorted(self.packages.items())),
            "entries": list(self.entries.values()),
            "files": [self.files[key] for key in sorted(self.files)],
        }


def owners(path, name):
    """Name and version of the installed distributions that a file belongs to."""
    root = Path(str(path).removesuffix(name))
    top = name.split("/", 1)[0]
    found = {}
    for one in importlib.metadata.distributions(path=[str(root)]):
        listed = (one.read_text("top_level.txt") or "").split()
        if top in (listed or {file.parts[0] for file in one.files or []}):
            found[one.metadata["Name"]] = one.version
    return found


def earlier_manifest(path):
    """The manifest of the image that this one is built from, or an empty one."""
    if not path.exists():
        return {}
    try:
        manifest = dict(json.loads(path.read_text()))
    except (TypeError, ValueError):
        raise PatchError(f"{path}: the base image's file is not a patch manifest; build it again") from None
    if manifest.get("schema") != SCHEMA:
        raise PatchError(
            f"{path}: the base image's manifest has schema {manifest.get('schema')}, not {SCHEMA}; build it again"
        )
    return manifest


def main(words):
    """Judge all, then write all; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--patches", type=Path, default=Path(__file__).with_name("patches.json"))
    parser.add_argument("--root", type=Path, help="the directory that holds the package; found by itself otherwise")
    parser.add_argument("--manifest", type=Path, default=Path(MANIFEST))
    options = parser.parse_args(words)
    own = str(Path(__file__).resolve().parent)
    sys.path[:] = [place for place in sys.path if place != own]  # no place of packages
    try:
        run = Run(options.root, earlier_manifest(options.manifest))
    except PatchError as error:
        print(f"patches: {error}", file=sys.stderr)
        return 1
    entries = json.loads(options.patches.read_text())
    for entry in entries:
        run.judge(entry)
    with tempfile.TemporaryDirectory() as directory:
        run.compile(directory)
    if run.faults:
        print("\n".join(f"patches: {fault}" for fault in run.faults), file=sys.stderr)
        return 1
    run.write()
    options.manifest.parent.mkdir(parents=True, exist_ok=True)
    staged = options.manifest.with_name(f".{options.manifest.name}.gb10")
    staged.write_text(json.dumps(run.manifest(), indent=2) + "\n")
    staged.replace(options.manifest)
    for entry in entries:
        record = run.entries[entry["id"]]
        print(f"{record['id']}: {record['outcome']}" + (f" ({record['seen_in']})" if record["seen_in"] else ""))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
