"""Judges instances by the package `jsonschema`.

Each line of the input is `{"schema": S, "instance": I}`; each line of the output the list of what
is wrong with it. Without an instance it is the schema that is judged.
"""

import json
import sys

import jsonschema

for line in sys.stdin:
    asked = json.loads(line)
    validator = jsonschema.Draft202012Validator
    if "instance" not in asked:
        try:
            validator.check_schema(asked["schema"])
            print("[]")
        except jsonschema.SchemaError as wrong:
            print(json.dumps([wrong.message]))
        continue
    errors = validator(asked["schema"]).iter_errors(asked["instance"])
    print(json.dumps([f"{error.json_path}: {error.message}" for error in errors]))
