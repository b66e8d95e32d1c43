#!/usr/bin/env python3
"""Judges `diff_assets` by the package `jsonpatch`.

    patches.py [--cases 10000] [--seed 1] BINARY

Left out is what `jsonpatch` 1.33 gets wrong: it takes the key `-` of an object for the end of an
array.
"""

import argparse
import copy
import random
import tempfile

import jsonpatch
from adapter import answers, report

KEYS = ["", "a", "b", "a/b", "m~n", "~1", "~", "/", "0", "--", "a!", "a0", "é", "\u2028", "\uffff", "😀"]
SCALARS = [None, True, False, 0, 1, -1, 1.0, 0.5, "", "a", "é", 2**53 + 1, 2**63, 1e300, 5e-324]
RANK = {"remove": 0, "add": 1, "replace": 2}
SHUFFLED = 10


def main():
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--cases", type=int, default=10_000)
    arguments.add_argument("--seed", type=int, default=1)
    arguments.add_argument("binary")
    options = arguments.parse_args()
    chance = random.Random(options.seed)
    pairs = [pair(chance) for _ in range(options.cases)]
    turned = [(shuffled(chance, a), shuffled(chance, b)) for a, b in pairs[::SHUFFLED]]
    calls = [("diff_assets", {"base": base, "new": new}) for base, new in pairs + turned]
    with tempfile.TemporaryDirectory() as folder:
        results = answers(options.binary, folder, calls)
    failures = []
    for (base, new), result in zip(pairs, results):
        wrong = judged(base, new, result)
        if wrong:
            failures.append(f"{wrong}: base {base!r}, new {new!r}: {result}")
    for first, second in zip(results[: len(pairs) : SHUFFLED], results[len(pairs) :]):
        if [kept(op) for op in first["patch"]] != [kept(op) for op in second["patch"]]:
            failures.append(f"the order of keys changes the patch: {first} and {second}")
    report("pairs", len(pairs), failures)


def judged(base, new, result):
    """What is wrong with the patch, if something is."""
    if list(result) != ["ok", "patch"] or result["ok"] is not True:
        return "it is no patch"
    patch = result["patch"]
    for op in patch:
        members = ["op", "path"] if op["op"] == "remove" else ["op", "path", "value"]
        if op["op"] not in RANK or list(op) != members:
            return f"{op} is no operation"
        if through_array(base, op["path"]):
            return f"{op} changes a part of an array"
    if patch != sorted(patch, key=lambda op: (op["path"], RANK[op["op"]])):
        return "it is not sorted"
    if same(base, new) != (patch == []):
        return "there is a patch where nothing differs, or none where something does"
    if not same(jsonpatch.apply_patch(copy.deepcopy(base), patch), new):
        return "it gives something else"
    return None


def through_array(value, path):
    for step in path.split("/")[1:]:
        if isinstance(value, list):
            return True
        value = value.get(step.replace("~1", "/").replace("~0", "~"))
    return False


def same(one, other):
    """Whether two values are equal, and of one type: to Python `1`, `1.0` and `True` are equal."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


def kept(op):
    """An operation with types told apart."""
    return repr({**op, "value": canonical(op.get("value"))})


def canonical(value):
    if isinstance(value, dict):
        return {key: canonical(value[key]) for key in sorted(value)}
    return [canonical(item) for item in value] if isinstance(value, list) else value


def pair(chance):
    base = document(chance, 4)
    return base, document(chance, 4) if chance.random() < 0.2 else changed(chance, base, 4)


def document(chance, depth):
    kind = chance.random()
    if depth and kind < 0.5:
        keys = chance.sample(KEYS, chance.randint(0, 5))
        return {key: document(chance, depth - 1) for key in keys}
    if depth and kind < 0.7:
        return [document(chance, depth - 1) for _ in range(chance.randint(0, 3))]
    if kind < 0.8:
        return chance.uniform(-1, 1) * 10 ** chance.randint(-20, 20)
    return chance.choice(SCALARS)


def changed(chance, value, depth):
    if chance.random() < 0.1:
        return document(chance, depth)
    if isinstance(value, dict):
        found = {}
        for key, inner in value.items():
            if chance.random() < 0.8:
                found[key] = changed(chance, inner, depth - 1) if chance.random() < 0.5 else inner
        if chance.random() < 0.3:
            found[chance.choice(KEYS)] = document(chance, max(depth - 1, 0))
        return found
    if isinstance(value, list) and value and chance.random() < 0.5:
        return [changed(chance, item, max(depth - 1, 0)) for item in value]
    return value


def shuffled(chance, value):
    if isinstance(value, dict):
        keys = list(value)
        chance.shuffle(keys)
        return {key: shuffled(chance, value[key]) for key in keys}
    return [shuffled(chance, item) for item in value] if isinstance(value, list) else value


if __name__ == "__main__":
    main()
