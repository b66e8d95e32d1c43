#!/usr/bin/env python3
"""Judges `validate_asset` by the package `jsonschema`.

    validation.py [--cases 10000] [--seed 1] BINARY

Left out is what `jsonschema` 4.23.0 gets wrong:

- `unevaluatedProperties` over `additionalProperties`: it takes the keywords of a schema there for
  names of properties that were evaluated, and tells what `false` refuses twice;
- `unevaluatedItems` and `unevaluatedProperties` that are a schema: the first counts as evaluated
  what the second, in the same place, does not, and names are told once for each of their errors;
- `unevaluatedItems` and `unevaluatedProperties` over `oneOf`: what a branch of it evaluates counts
  though more than one is valid, so that it is not.

And where a schema is `false` it tells the path of the value around, so there paths are not compared.
"""

import argparse
import json
import pathlib
import random
import tempfile
from fractions import Fraction

import jsonschema
import referencing
from adapter import answers, report

NAMES = ["a", "b", "ab", "x-1", "it's", "é", "a/b", "m~n", "items"]
SCALARS = [None, True, False, 0, 1, 2, 3, -1, 7, 1.0, 2.5, 1e16, 1.5e-7, 1e300, "", "a", "ab", "abc", "it's", 'say "x"', "it's \"x\"", "é\n\t\\", "\u00a0\u200b\u0301", "😀", "2\x00"]
TYPES = ["null", "boolean", "integer", "number", "string", "array", "object"]
PATTERNS = ["^a", "b$", "^[a-z]+$", "-", "'", "^.$"]

# Schemas by name; a name that ends in `!` stands without its `$id`, so that its file is its base.
WRITTEN = {
    "scalars": {
        "properties": {
            "a": {"type": "integer", "minimum": 2, "exclusiveMaximum": 7},
            "b": {"type": ["string", "null"], "minLength": 1, "maxLength": 2, "pattern": "^a"},
            "ab": {"enum": [1, "a", None, {"b": [True]}]},
            "x-1": {"const": {"a": [1, 2.5, None, "it's"]}},
            "it's": {"multipleOf": 2, "maximum": 2.5, "exclusiveMinimum": 0},
            "é": False,
            "a/b": {"type": "boolean"},
            "m~n": {"maxLength": 0},
        },
        "required": ["a", "b", "é"],
        "maxProperties": 3,
    },
    "closed": {"additionalProperties": False, "properties": {"a": True}, "minProperties": 1},
    "closed-patterns": {"additionalProperties": False, "patternProperties": {"^a": {"type": "null"}, "'": True}},
    "shut": {"additionalProperties": False},
    "open": {"additionalProperties": {"type": "integer"}, "patternProperties": {"^a": {"minimum": 1}}},
    "tuple": {"prefixItems": [{"type": "integer"}, {"type": "string"}], "items": False, "minItems": 1},
    "one-item": {"prefixItems": [True], "items": False},
    "no-items": {"items": False, "type": "array"},
    "unique": {"uniqueItems": True, "maxItems": 2, "items": {"type": ["integer", "string"]}},
    "empty": {"maxItems": 0, "maxProperties": 0, "maxLength": 0},
    "contains": {"contains": {"type": "integer"}},
    "contains-some": {"contains": {"type": "integer"}, "minContains": 2, "maxContains": 3},
    "contains-most": {"contains": {"minimum": 2}, "maxContains": 1},
    "contains-none": {"contains": {"type": "integer"}, "minContains": 0},
    "names": {"propertyNames": {"maxLength": 1, "pattern": "^a"}},
    "no-names": {"propertyNames": False},
    "needs": {"dependentRequired": {"a": ["b", "x-1"], "ab": ["b"]}, "dependentSchemas": {"b": {"required": ["ab"]}, "é": False}},
    "if": {"if": {"type": "object"}, "then": {"required": ["a"]}, "else": {"type": "string", "minLength": 2}},
    "if-else": {"if": {"properties": {"a": {"const": 1}}, "required": ["a"]}, "else": False},
    "combined": {"allOf": [{"type": "object"}, {"required": ["a"]}], "anyOf": [{"required": ["b"]}, {"maxProperties": 1}], "not": {"required": ["ab"]}},
    "one-of": {"oneOf": [{"type": "integer"}, {"minimum": 2}, {"type": ["string", "number"]}]},
    "not": {"not": {"type": ["string", "object"], "minLength": 0}},
    "never": {"allOf": [False]},
    "unevaluated": {"allOf": [{"properties": {"a": True}}], "if": {"required": ["b"]}, "then": {"properties": {"b": True}}, "unevaluatedProperties": False},
    "unevaluated-items": {"anyOf": [{"prefixItems": [{"type": "integer"}]}, {"prefixItems": [True, {"type": "string"}]}], "unevaluatedItems": False},
    "refers": {"properties": {"a": {"$ref": "tree.schema.json"}, "b": {"$ref": "https://judge.example/other/inner"}, "ab": {"$ref": "#/$defs/x~1y"}, "é": {"$ref": "#here"}}, "$defs": {"x/y": {"type": "null"}, "z": {"$anchor": "here", "minimum": 3}}},
    "tree": {"type": "object", "properties": {"a": {"$ref": "#"}, "b": {"items": {"$ref": "#"}}}, "maxProperties": 2},
    "parts": {"$defs": {"inner": {"$id": "https://judge.example/other/inner", "type": "array", "items": {"$ref": "#/$defs/n"}, "$defs": {"n": {"type": "integer"}}}}},
    "files!": {"properties": {"a": {"$ref": "filed.schema.json"}}, "items": {"$ref": "filed.schema.json#/$defs/n"}},
    "filed!": {"type": "string", "$defs": {"n": {"type": "integer", "minimum": 1}}},
    "dynamic": {"$dynamicAnchor": "node", "type": ["object", "array", "integer"], "properties": {"a": {"$dynamicRef": "#node"}}, "items": {"$dynamicRef": "#node"}},
    "strict": {"$dynamicAnchor": "node", "$ref": "dynamic.schema.json", "unevaluatedProperties": False},
    "format": {"format": "date-time", "contentEncoding": "base64", "contentMediaType": "application/json", "title": "judges nothing"},
}


def main():
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--cases", type=int, default=10_000)
    arguments.add_argument("--seed", type=int, default=1)
    arguments.add_argument("binary")
    options = arguments.parse_args()
    chance = random.Random(options.seed)
    schemas = dict(WRITTEN)
    for number in range(200):
        schemas[f"random-{number}"] = spared(schema(chance, 3))
    names = list(schemas)
    cases = [(names[number % len(names)], instance(chance, 3)) for number in range(options.cases)]
    with tempfile.TemporaryDirectory() as folder:
        home = pathlib.Path(folder).resolve() / "schemas"
        home.mkdir()
        documents = {}
        for name, document in schemas.items():
            if not name.endswith("!") and isinstance(document, dict):
                document = {"$id": f"https://judge.example/{name}.schema.json", **document}
            path = home / f"{name.rstrip('!')}.schema.json"
            path.write_text(json.dumps(document))
            # `jsonschema` takes references as relative to an `$id` alone.
            documents[name] = document if "$id" in document else {"$id": path.as_uri(), **document}
        calls = [("validate_asset", {"asset": asset, "schema": name.rstrip("!")}) for name, asset in cases]
        results = answers(options.binary, folder, calls, SYN_SCHEMAS_DIR=str(home))
    contents = [(document["$id"], referencing.Resource(document, referencing.jsonschema.DRAFT202012)) for document in documents.values()]
    registry = referencing.Registry().with_resources(contents).crawl()
    # `multipleOf` with exact numbers: the library divides floats, which rounds large ones.
    exact = jsonschema.validators.extend(jsonschema.Draft202012Validator, {"multipleOf": multiple_of})
    judges = {name: exact(document, registry=registry) for name, document in documents.items()}
    failures, invalid, told = [], 0, 0
    for (name, asset), result in zip(cases, results):
        errors = sorted((pointer(error.absolute_path), error.message) for error in judges[name].iter_errors(asset))
        expected = {"ok": True, "errors": []}
        if errors:
            invalid, told = invalid + 1, told + len(errors)
            listed = [{"path": path, "msg": msg} for path, msg in errors]
            expected = {"ok": False, "reason": "validation_failed", "errors": listed}
        if compared(result) != compared(expected):
            failures.append(f"{json.dumps(schemas[name])} on {json.dumps(asset)}:\n  ours   {result}\n  theirs {expected}")
    print(f"{invalid} invalid, {told} errors")
    report("instances", len(cases), failures)


def multiple_of(validator, divisor, value, _schema):
    if validator.is_type(value, "number") and Fraction(repr(value)) % Fraction(repr(divisor)):
        yield jsonschema.ValidationError(f"{value!r} is not a multiple of {divisor}")


def compared(result):
    """A result as it is held against another: with the order of its members."""
    falsely = lambda error: error["msg"].startswith("False schema does not allow")
    errors = [(None if falsely(error) else error["path"], error["msg"]) for error in result["errors"]]
    return [*result, result["ok"], result.get("reason"), sorted(errors, key=repr)]


def pointer(path):
    return "".join("/" + str(step).replace("~", "~0").replace("/", "~1") for step in path)


def instance(chance, depth):
    kind = chance.random()
    if depth and kind < 0.4:
        names = chance.sample(NAMES, chance.randint(0, 4))
        return {name: instance(chance, depth - 1) for name in names}
    if depth and kind < 0.65:
        return [instance(chance, depth - 1) for _ in range(chance.randint(0, 4))]
    return chance.choice(SCALARS)


def schema(chance, depth):
    """A schema of a few keywords; always an object."""
    found = {}
    inner = lambda: inner_schema(chance, depth - 1)
    many = lambda: [inner() for _ in range(chance.randint(1, 3))]
    number = lambda: chance.choice([0, 1, 2, 2.5, 3, -1])
    count = lambda: chance.randint(0, 3)
    names = lambda: chance.sample(NAMES, chance.randint(1, 3))
    keywords = {
        "type": lambda: chance.choice([chance.choice(TYPES), chance.sample(TYPES, 2)]),
        "enum": lambda: [instance(chance, 1) for _ in range(3)],
        "const": lambda: instance(chance, 2),
        "minimum": number,
        "maximum": number,
        "exclusiveMinimum": number,
        "exclusiveMaximum": number,
        "multipleOf": lambda: chance.choice([1, 2, 3, 0.5]),
        "minLength": count,
        "maxLength": count,
        "pattern": lambda: chance.choice(PATTERNS),
        "minItems": count,
        "maxItems": count,
        "uniqueItems": lambda: True,
        "minProperties": count,
        "maxProperties": count,
        "required": names,
        "dependentRequired": lambda: {name: names() for name in names()},
    }
    if depth:
        keywords |= {
            "properties": lambda: {name: inner() for name in names()},
            "patternProperties": lambda: {chance.choice(PATTERNS): inner()},
            "additionalProperties": lambda: chance.choice([False, inner()]),
            "propertyNames": inner,
            "items": lambda: chance.choice([False, inner()]),
            "prefixItems": many,
            "contains": inner,
            "allOf": many,
            "anyOf": many,
            "oneOf": many,
            "not": inner,
            "if": inner,
            "then": inner,
            "else": inner,
            "dependentSchemas": lambda: {name: inner() for name in names()},
            "unevaluatedProperties": lambda: False,
            "unevaluatedItems": lambda: False,
        }
    for keyword in chance.sample(list(keywords), chance.randint(1, 4)):
        found[keyword] = keywords[keyword]()
    if "contains" in found and chance.random() < 0.5:
        found["minContains"], found["maxContains"] = chance.randint(0, 2), chance.randint(1, 3)
    return found


def spared(schema):
    """A schema without what `jsonschema` gets wrong in it."""
    return without(schema) if '"unevaluated' in json.dumps(schema) else schema


def without(value):
    if isinstance(value, dict):
        wrong = ("oneOf", "additionalProperties")
        return {name: without(inner) for name, inner in value.items() if name not in wrong}
    return [without(item) for item in value] if isinstance(value, list) else value


def inner_schema(chance, depth):
    return chance.choice([True, False]) if chance.random() < 0.15 else schema(chance, depth)


if __name__ == "__main__":
    main()
