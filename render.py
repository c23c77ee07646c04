#!/usr/bin/env python3
"""vars.yaml -> compose.yaml and overlays/: the whole story. The work is in gb10/variables/ and gb10/rendering.py."""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from gb10 import rendering
from gb10.errors import Gb10Error
from gb10.variables import load


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, epilog="example: python render.py --site examples/cpu --check"
    )
    parser.add_argument(
        "--site", type=Path, default=rendering.REPOSITORY, help="directory with vars.yaml (default: the GB10 site)"
    )
    parser.add_argument("--vars", type=Path, help="another variables file (default: SITE/vars.yaml)")
    parser.add_argument("--out", type=Path, help="write there instead of into the site")
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--check", action="store_true", help="write nothing; exit 1 when a file differs")
    mode.add_argument("--diff", action="store_true", help="write nothing; print what would change")
    options = parser.parse_args()
    directory = options.out or options.site
    given = {"--site": options.site, "--vars": options.vars, "--out": options.out}
    again = " ".join(["python render.py", *(f"{name} {value}" for name, value in given.items() if value)])
    try:
        loaded = load(options.vars or options.site / "vars.yaml", options.site)
        for warning in loaded.warnings:
            print(f"warning: {warning}", file=sys.stderr)
        rendered = rendering.render(loaded.variables)
        if options.diff:
            print(rendering.diff(rendered, directory), end="")
        elif options.check:
            for output in (stale := rendering.differing(rendered, directory)):
                print(f"{output}: differs from vars.yaml; run: {again}", file=sys.stderr)
            return 1 if stale else 0
        else:
            changed = rendering.write(rendered, directory)
            print("\n".join(f"wrote {directory / output}" for output in changed) or "nothing to change")
    except Gb10Error as error:
        print("\n".join(map(str, error.faults)), file=sys.stderr)
        return 2
    except OSError as error:
        print(
            f"{directory}: cannot be used ({error}); remove what is in the way, or name another --out", file=sys.stderr
        )
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
