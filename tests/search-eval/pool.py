"""Writes pool.txt, the names from which the packages of `fresh` are drawn.

    apt-get update
    python3 tests/search-eval/pool.py PYTHON_NAMES > pool.txt

PYTHON_NAMES has the 1,500 most downloaded packages of Python, one name a line. The other names are
those of the packages that Debian offers. The head of pool.txt explains which of them are left out.
"""

import hashlib
import re
import subprocess
import sys
import tomllib
from pathlib import Path

HERE = Path(__file__).parent
EACH = 100
WHEEL_NAMES = 1_500
KIB_MIN = 200
# The name of a package of Debian. The name of a crate may end with its version.
DEBIAN_KINDS = {
    "rust-deb": r"librust-([a-z0-9-]+?)(-[0-9][0-9.]*)?-dev",
    "node-deb": r"node-(.+)",
    "go-deb": r"golang-(.+)-dev",
    "ruby-deb": r"ruby-(.+)",
}
# Crates whose code is in packages.toml by another name: hickory and syn.
RENAMED_CRATES = ("trust-dns-", "cpp-syn")
HEAD = """\
# Packages from which the split `fresh` of the code search evaluation is drawn, one a line: kind and name.
# Written by pool.py.
#
# Each kind has the hundred names with the smallest SHA-256 of these:
# - rust-deb, node-deb, go-deb, ruby-deb: Debian's `librust-*-dev`, `node-*`, `golang-*-dev` and `ruby-*`
#   of at least 200 KiB. Smaller ones rarely have forty functions with a comment. Of a crate in several
#   versions, only the package without a version in its name counts.
# - wheel: the 1,500 most downloaded packages of Python, without stubs (`types-*`) and binary libraries
#   (`nvidia-*`), which have no functions.
#
# No package is in packages.toml, as a crate or wheel of the same name, or by a former name.
"""


def plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def used_names(kind: str) -> set[str]:
    """Returns the names of all packages of `kind` in packages.toml."""
    lists = tomllib.loads((HERE / "packages.toml").read_text())
    return {plain(it["name"]) for split in lists.values() for it in split if it["kind"] == kind}


def debian_sizes() -> dict[str, int]:
    """Returns the installed size of each package of Debian in KiB."""
    text = subprocess.run(
        ["apt-cache", "dumpavail"], check=True, capture_output=True, text=True
    ).stdout
    sizes = {}
    for record in text.split("\n\n"):
        name = re.search(r"^Package: (.+)$", record, re.M)
        size = re.search(r"^Installed-Size: (\d+)$", record, re.M)
        if name and size:
            sizes[name[1]] = max(int(size[1]), sizes.get(name[1], 0))
    return sizes


def main() -> None:
    used_crates, used_wheels = used_names("crate"), used_names("wheel")
    sizes = debian_sizes()
    found: dict[str, list[str]] = {}
    for kind, pattern in DEBIAN_KINDS.items():
        for name, size in sizes.items():
            match = re.fullmatch(pattern, name)
            if not match or size < KIB_MIN:
                continue
            crate = plain(match[1])
            is_known = crate in used_crates or crate.startswith(RENAMED_CRATES)
            if kind == "rust-deb" and (match[2] or is_known):
                continue
            found.setdefault(kind, []).append(name)
    wheels = Path(sys.argv[1]).read_text().split()[:WHEEL_NAMES]
    found["wheel"] = [
        it
        for it in wheels
        if not it.startswith(("types-", "nvidia-")) and plain(it) not in used_wheels
    ]
    print(HEAD, end="")
    for kind, names in found.items():
        names.sort(key=lambda it: hashlib.sha256(it.encode()).digest())
        for name in sorted(names[:EACH]):
            print(kind, name)


main()
