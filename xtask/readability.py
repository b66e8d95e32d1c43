#!/usr/bin/env python3
"""Measures how readable the names, comments and docs of a Rust workspace are.

    python3 xtask/readability.py .              print the figures
    python3 xtask/readability.py . --check      also exit 1 if a figure misses its limit
    python3 xtask/readability.py . --list KEY   print what a figure counts, for example `participle_types`

`cargo xtask tidy` runs the check.

The figures are signs, not proofs: a limit that is met by tricks is not met. Compare ROOT with
ripgrep, nextest or rust-analyzer to see what usual code looks like.
"""

import collections
import re
import subprocess
import sys
from pathlib import Path

FUNCTION_WORDS = set(
    "Who Which What When Where Whose Whom Whence Why How Is As At By Of Does Within Via Way Ways Beside"
    " Ahead Apart Around Aside All Each Many Among Beneath Outside Inside Out Over Under Now Never Nowhere"
    " Anybody Nobody Other Others Ours Theirs Nothing Something Last Next Late Later Soft Loose".split()
)
PARTICIPLES = set(
    "Told Said Heard Seen Kept Given Gone Ran Known Taken Held Left Meant Made Sent Spent Spelt Spoken"
    " Sought Swept Torn Worn Written Laid Lost Drawn Driven Found Begun Got Hid Become".split()
)
PARTICIPLE_EXCEPTIONS = {"Embed", "Feed", "String", "Setting", "Encoding", "Listing", "Heading", "Warning"}
SHARED_NAMES = set("Input Output Args Settings Config Error Kind State Options Params Row Item Entry Test Fixture".split())
QUESTION_START = re.compile(r"^(What|Whatever|Who|Whoever|Whose|Where|Wherever|Which|How|Whether)\b")
DANGLING_START = re.compile(r"^(The same|And|But|Its|Others?|Else|So|Nor)\b")

LIMITS = {  # figure: highest allowed value
    "one_word_type_share_percent": 40,
    "function_word_types": 0,
    "participle_types": 10,
    "ambiguous_type_share_percent": 15,
    "functions_named_of": 0,
    "predicates_that_return_nothing": 0,
    "tuple_lets": 60,
    "functions_over_100_lines": 4,
    "files_over_600_lines": 0,
    "doc_comment_question_starts_percent": 3,
    "doc_comment_dangling_starts": 30,
    "doc_comment_what_per_10k_words": 40,
    "doc_comment_told_said_per_10k_words": 25,
    "guide_question_starts_percent": 4,
    "guide_what_per_10k_words": 50,
    "guide_told_said_per_10k_words": 35,
    "guides_over_1200_words": 0,
}
LEAST = {"guide_you_per_10k_words": 50}  # figure: lowest allowed value


def git_files(root, pattern):
    done = subprocess.run(["git", "ls-files", pattern], cwd=root, capture_output=True, text=True, check=True)
    return [path for path in (Path(root, name) for name in done.stdout.splitlines()) if path.is_file()]


def is_test(path):
    return "tests" in path.parts or path.stem.endswith("tests") or path.stem == "test"


def without_tests(text):
    return re.split(r"#\[cfg\(test\)\]\s*(?:pub(?:\([^)]*\))? )?mod \w+ \{", text)[0]


def sentences(text):
    text = re.sub(r"`[^`]*`", "CODE", text)
    return [part.strip() for part in re.split(r"(?<=[.!?])\s+|\n\n+", text) if re.search(r"[A-Za-z]", part)]


def per_10k(words, *wanted):
    hits = sum(1 for word in words if word in wanted)
    return round(10_000 * hits / max(1, len(words)))


def word_list(text):
    return re.findall(r"[a-z']+", text.lower())


def doc_comments(text):
    """Yields each block of `///` or `//!` lines as one string, without code blocks."""
    block, in_code = [], False
    for line in text.splitlines() + [""]:
        match = re.match(r"\s*//[/!] ?(.*)", line)
        if match:
            content = match.group(1)
            if content.startswith("```"):
                in_code = not in_code
            elif not in_code:
                block.append(content)
        elif block:
            yield "\n".join(block).strip()
            block, in_code = [], False


def guide_text(path):
    text = path.read_text(encoding="utf-8", errors="replace")
    text = re.sub(r"```.*?```", "", text, flags=re.S)
    text = re.sub(r"^\s*(\||#|- type:|- default:|- environment:|<!--).*$", "", text, flags=re.M)
    return re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)


def prose_word_count(path):
    """Returns the number of words of a page, with tables and without code blocks."""
    text = re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.S | re.M)
    return sum(1 for word in text.split() if re.search(r"\w", word))


def measure(root):
    found = collections.OrderedDict()
    sources = [path for path in git_files(root, "crates/*/src/*.rs") if not is_test(path)]
    if len(sources) < 50:
        sys.exit(f"only {len(sources)} source files under {root}/crates/*/src: nothing to judge")
    types, functions = collections.defaultdict(list), collections.Counter()
    mutating_predicates, tuple_lets, long_functions, long_files, comments = [], [], [], [], []
    for path in sources:
        full = path.read_text(encoding="utf-8")
        text = without_tests(full)
        where = str(path.relative_to(root))
        if full.count("\n") > 600:
            long_files.append(where)
        for match in re.finditer(r"^\s*(?:pub(?:\([^)]*\))? )?(?:struct|enum|trait) (\w+)", text, re.M):
            types[match.group(1)].append(where)
        for match in re.finditer(r"^( *)(?:pub(?:\([^)]*\))? )?(?:const )?(?:async )?(?:unsafe )?fn (\w+)([^{;]*)([{;])", text, re.M):
            indent, name, signature, opening = match.groups()
            functions[name] += 1
            if re.match(r"(is|has|can)_", name) and "->" not in signature and opening == "{":
                mutating_predicates.append(f"{where}: {name}")
            if opening == "{":
                end = re.search(rf"^{indent}}}", text[match.end():], re.M)
                lines = text[match.end():match.end() + (end.start() if end else 0)].count("\n")
                if lines > 100:
                    long_functions.append(f"{where}: {name} ({lines})")
        tuple_lets += [f"{where}: {line}" for line in re.findall(r"let \([a-z_ ,]+\) = \([^()]*(?:\([^()]*\)[^()]*)*\);", text)]
        comments += [(where, comment) for comment in doc_comments(text)]

    single = {name for name in types if re.fullmatch(r"[A-Z][a-z0-9]+", name)}
    participles = {name for name in single if name in PARTICIPLES or re.search(r"(ed|ing)$", name)} - PARTICIPLE_EXCEPTIONS
    counted = {name: places for name, places in types.items() if name not in SHARED_NAMES}
    ambiguous = {name: places for name, places in counted.items() if len(places) > 1}
    total = sum(map(len, counted.values()))
    found["one_word_type_share_percent"] = (round(100 * len(single) / max(1, len(types))), sorted(single))
    found["function_word_types"] = (len(single & FUNCTION_WORDS), sorted(single & FUNCTION_WORDS))
    found["participle_types"] = (len(participles), sorted(participles))
    found["ambiguous_type_share_percent"] = (
        round(100 * sum(map(len, ambiguous.values())) / max(1, total)),
        [f"{name} x{len(places)}" for name, places in sorted(ambiguous.items(), key=lambda it: -len(it[1]))],
    )
    found["functions_named_of"] = (functions["of"], [])
    found["predicates_that_return_nothing"] = (len(mutating_predicates), mutating_predicates)
    found["tuple_lets"] = (len(tuple_lets), tuple_lets)
    found["functions_over_100_lines"] = (len(long_functions), long_functions)
    found["files_over_600_lines"] = (len(long_files), long_files)

    starts = [(where, first) for where, comment in comments for first in sentences(comment)]
    questions = [f"{where}: {text}" for where, text in starts if QUESTION_START.match(text)]
    dangling = [f"{where}: {comment.splitlines()[0]}" for where, comment in comments if DANGLING_START.match(comment)]
    words = word_list(" ".join(comment for _, comment in comments))
    found["doc_comment_question_starts_percent"] = (round(100 * len(questions) / max(1, len(starts)), 1), questions)
    found["doc_comment_dangling_starts"] = (len(dangling), dangling)
    found["doc_comment_what_per_10k_words"] = (per_10k(words, "what", "whatever"), [])
    found["doc_comment_told_said_per_10k_words"] = (per_10k(words, "told", "tell", "tells", "said", "say", "says"), [])

    pages = [path for path in git_files(root, "*.md") if path.name not in ("CHANGELOG.md", "LICENSE.md") and "tests" not in path.parts]
    texts = [(str(path.relative_to(root)), guide_text(path)) for path in pages]
    starts = [(where, text) for where, page in texts for text in sentences(page)]
    questions = [f"{where}: {text}" for where, text in starts if QUESTION_START.match(text)]
    words = word_list(" ".join(page for _, page in texts))
    found["guide_question_starts_percent"] = (round(100 * len(questions) / max(1, len(starts)), 1), questions)
    found["guide_what_per_10k_words"] = (per_10k(words, "what", "whatever"), [])
    found["guide_told_said_per_10k_words"] = (per_10k(words, "told", "tell", "tells", "said", "say", "says"), [])
    found["guide_you_per_10k_words"] = (per_10k(words, "you", "your"), [])
    guides = ((path, prose_word_count(path)) for path in git_files(root, "docs/guide/*.md"))
    long_guides = [f"{path.relative_to(root)} ({count})" for path, count in guides if count > 1200]
    found["guides_over_1200_words"] = (len(long_guides), long_guides)
    return found


def main(arguments):
    if not arguments or arguments[0].startswith("-"):
        sys.exit(__doc__)
    found = measure(arguments[0])
    if "--list" in arguments:
        print("\n".join(map(str, found[arguments[arguments.index("--list") + 1]][1])))
        return 0
    missed = 0
    for key, (value, _) in found.items():
        limit, least = LIMITS.get(key), LEAST.get(key)
        bad = (limit is not None and value > limit) or (least is not None and value < least)
        missed += bad
        goal = f"<= {limit}" if limit is not None else f">= {least}"
        print(f"{'MISSED' if bad else 'ok':7} {key:42} {value:>7}  {goal}")
    print(f"{len(found) - missed} of {len(found)} within their limits")
    return 1 if missed and "--check" in arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
