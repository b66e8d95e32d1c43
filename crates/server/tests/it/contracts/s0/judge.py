"""Judges what the adapter says by other people's libraries: `judge.py validate|patch SCHEMAS`.

`validate` reads lines of `{"schema", "asset"}` and writes `[[path, message], ...]` for each, in the
words of `jsonschema`. `patch` reads lines of `{"base", "patch"}` and writes what `jsonpatch` makes
of them.
"""

import json
import pathlib
import sys

word, folder = sys.argv[1], pathlib.Path(sys.argv[2])


def pointer(path):
    parts = (str(part).replace("~", "~0").replace("/", "~1") for part in path)
    return "".join("/" + part for part in parts)


def validator():
    from jsonschema import Draft202012Validator
    from referencing import Registry, Resource
    from referencing.jsonschema import DRAFT202012

    schemas = {}
    for file in folder.glob("*.schema.json"):
        schemas[file.name.removesuffix(".schema.json")] = json.loads(file.read_text("utf-8"))
    resources = ((it["$id"], Resource(it, DRAFT202012)) for it in schemas.values())
    registry = Registry().with_resources(resources)

    def judge(asked):
        judge = Draft202012Validator(schemas[asked["schema"]], registry=registry)
        return [[pointer(it.absolute_path), it.message] for it in judge.iter_errors(asked["asset"])]

    return judge


def patcher():
    import jsonpatch

    return lambda asked: jsonpatch.apply_patch(asked["base"], asked["patch"])


judge = {"validate": validator, "patch": patcher}[word]()
for line in sys.stdin:
    print(json.dumps(judge(json.loads(line))))
