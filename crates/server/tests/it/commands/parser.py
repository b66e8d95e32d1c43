"""Reads words with Zyra's own parser: tells what each command takes, and what it made of calls."""

import argparse
import json
import sys

from zyra.wizard.manifest import _safe_register_all


class Refused(Exception):
    pass


def refuse(self, message):
    raise Refused(message)


argparse.ArgumentParser.error = refuse
root = argparse.ArgumentParser(prog="zyra")
_safe_register_all(root.add_subparsers(dest="cmd", required=True))


def leaf(words):
    parser = root
    for word in words:
        within = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
        if not within or word not in within[0].choices:
            return parser
        parser = within[0].choices[word]
    return parser


def name_of(action):
    longs = [option for option in action.option_strings if option.startswith("--")]
    return longs[0][2:].replace("-", "_") if longs else action.dest


def takes(words):
    actions = [a for a in leaf(words)._actions if a.dest != "help"]
    return {
        "names": sorted(map(name_of, actions)),
        "required": sorted(name_of(a) for a in actions if a.required),
    }


def read(call):
    try:
        given = root.parse_args(call["argv"])
    except Refused as refused:
        return {"refused": str(refused)}
    named = [a for a in leaf(call["argv"])._actions if name_of(a) == call["name"]]
    # The search has its query as an option and in a place.
    action = max(named, key=lambda a: len(a.option_strings))
    return {"value": getattr(given, action.dest), "default": action.default}


asked = json.load(sys.stdin)
json.dump(
    {
        "takes": {words: takes(words.split(" ")) for words in asked["commands"]},
        "read": [read(call) for call in asked["calls"]],
    },
    sys.stdout,
)
