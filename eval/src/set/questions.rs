//! Selects the sentences that are good questions: a person could ask them, and exactly one function
//! answers them.

use std::collections::HashMap;
use std::sync::LazyLock;

use regex::Regex;
use rust_stemmers::{Algorithm, Stemmer};

use super::EvalQuery;
use super::functions::DocumentedFunction;

/// Names of functions that mean little, or that every package has many times.
const TRIVIAL: [&str; 34] = [
    "new",
    "default",
    "fmt",
    "from",
    "into",
    "clone",
    "drop",
    "eq",
    "ne",
    "cmp",
    "partial_cmp",
    "hash",
    "next",
    "len",
    "is_empty",
    "get",
    "set",
    "main",
    "run",
    "deref",
    "deref_mut",
    "index",
    "index_mut",
    "as_ref",
    "as_mut",
    "borrow",
    "try_from",
    "from_str",
    "to_string",
    "iter",
    "iter_mut",
    "into_iter",
    "build",
    "setup",
];

/// Starts of sentences that refer to other documentation instead of describing the function.
const ELSEWHERE: [&str; 14] = [
    "see ",
    "see:",
    "deprecated",
    "same as",
    "alias",
    "an alias",
    "equivalent to",
    "like ",
    "this is the same",
    "similar to",
    "identical to",
    "shorthand for",
    "convenience ",
    "todo",
];

/// Returns the questions of a package, in a random order that is the same in every run, and all
/// pairs of a sentence and a function to train on.
pub(super) fn select(
    package: &str,
    functions: &[DocumentedFunction],
) -> (Vec<EvalQuery>, Vec<EvalQuery>) {
    let sentences: Vec<String> = functions.iter().map(|it| first_sentence(&it.doc)).collect();
    let bodies: Vec<String> =
        functions.iter().map(|it| body_key(&it.unit.body, &it.unit.head)).collect();
    let sentence_counts = count_keys(sentences.iter().map(|it| sentence_key(it)));
    let body_counts = count_keys(bodies.iter().cloned());
    let mut queries = Vec::new();
    let mut pairs = Vec::new();
    for (index, function) in functions.iter().enumerate() {
        let sentence = &sentences[index];
        if !is_trainable(function, sentence) {
            continue;
        }
        let overlap = overlap(&function.unit.name, sentence);
        let query = EvalQuery { text: sentence.clone(), unit: index, overlap };
        let is_unique =
            sentence_counts[&sentence_key(sentence)] == 1 && body_counts[&bodies[index]] == 1;
        if is_unique && is_question(function, sentence) {
            queries.push(query.clone());
        }
        pairs.push(query);
    }
    queries.sort_by_cached_key(|it| {
        let unit = &functions[it.unit].unit;
        let id = [package, &unit.path, &unit.within, &unit.name, &it.text].join("\0");
        *blake3::hash(id.as_bytes()).as_bytes()
    });
    (queries, pairs)
}

/// Returns the words of a sentence in lower case, to compare it with other sentences.
pub(super) fn sentence_key(sentence: &str) -> String {
    words_of(sentence).join(" ")
}

/// Returns the words of a function body after its head, to compare it with other bodies.
pub(super) fn body_key(body: &str, head: &str) -> String {
    let mut words = body.split_whitespace();
    let block = (!head.is_empty()).then(|| {
        head.split_whitespace().for_each(|_| _ = words.next());
        words.collect::<Vec<_>>().join(" ")
    });
    block.unwrap_or_default()
}

/// Returns the share of the words of `name` that `sentence` contains, from 0 to 1. Compares words
/// by their stems.
pub fn overlap(name: &str, sentence: &str) -> f32 {
    let stemmer = Stemmer::create(Algorithm::English);
    let stem = |word: &str| stemmer.stem(word).into_owned();
    let stems: Vec<String> = words_of(sentence).iter().map(|it| stem(it)).collect();
    let parts = identifier_parts(name);
    let contained = parts.iter().filter(|part| stems.contains(&stem(part))).count();
    #[allow(clippy::cast_precision_loss, reason = "names have few words")]
    let share = contained as f32 / parts.len().max(1) as f32;
    share
}

/// Returns the parts of an identifier in lower case: `parse`, `http`, `header` and `2` for
/// `parseHTTPHeader_2`.
pub fn identifier_parts(identifier: &str) -> Vec<String> {
    static PART: LazyLock<Regex> = LazyLock::new(|| regex(r"[A-Z]+[a-z]*|[a-z]+|[0-9]+"));
    let mut parts = Vec::new();
    for part in PART.find_iter(identifier).map(|it| it.as_str()) {
        let capitals = part.bytes().take_while(u8::is_ascii_uppercase).count();
        // The last letter of a run of capitals belongs to the next word: `HTTPHeader`.
        let (run, word) = match capitals {
            2.. if capitals < part.len() => part.split_at(capitals - 1),
            _ => ("", part),
        };
        let each = [run, word].into_iter().filter(|it| !it.is_empty());
        parts.extend(each.map(str::to_ascii_lowercase));
    }
    parts
}

fn words_of(text: &str) -> Vec<String> {
    let parts = text.split(|c: char| !c.is_alphanumeric() && c != '_');
    parts.filter(|it| !it.is_empty()).flat_map(identifier_parts).collect()
}

/// Returns true if `sentence` and `function` are suitable as a training pair.
fn is_trainable(function: &DocumentedFunction, sentence: &str) -> bool {
    let words = sentence.split_whitespace().count();
    let lines = function.unit.body.lines().count();
    (3..=60).contains(&words)
        && lines >= 3
        && sentence.is_ascii()
        && !["http://", "https://", "www.", ">>>"].iter().any(|it| sentence.contains(it))
}

/// Returns true if `sentence` is a suitable question that `function` answers.
fn is_question(function: &DocumentedFunction, sentence: &str) -> bool {
    let unit = &function.unit;
    let words = sentence.split_whitespace().count();
    let lower = sentence.to_ascii_lowercase();
    let name = unit.name.as_str();
    (5..=40).contains(&words)
        && unit.body.lines().count() >= 4
        && name.len() > 2
        && !(name.starts_with("__") && name.ends_with("__"))
        && !TRIVIAL.contains(&name)
        && !ELSEWHERE.iter().any(|it| lower.starts_with(it))
        && !lower.contains("deprecated")
        && !sentence.starts_with(&format!("{name}("))
}

/// Returns the first sentence of a doc comment without markup, or an empty string if there is none.
fn first_sentence(doc: &str) -> String {
    static LINK: LazyLock<Regex> =
        LazyLock::new(|| regex(r"\[([^\]\[]*)\](?:\([^)]*\)|\[[^\]]*\])?"));
    static ROLE: LazyLock<Regex> =
        LazyLock::new(|| regex(r":[A-Za-z][A-Za-z:+-]*:`[!~]?([^`<]*?)\s*(?:<[^`>]*>)?`"));
    static END: LazyLock<Regex> = LazyLock::new(|| regex(r"[.!?](?:\s+|$)"));
    // The first paragraph ends at these lines.
    let ends_paragraph = |line: &str| {
        line.is_empty()
            || [
                "#", "```", ":param", ":return", ":type", "..", "----", "====", "@", ">>>", "* ",
                "- ",
            ]
            .iter()
            .any(|it| line.starts_with(it))
            || ["Parameters", "Args:", "Arguments:", "Returns:", "Returns", "Example:", "Examples"]
                .contains(&line)
    };
    let lines = doc.lines().map(str::trim).skip_while(|line| line.is_empty());
    let paragraph: Vec<&str> = lines.take_while(|line| !ends_paragraph(line)).collect();
    let paragraph = paragraph.join(" ");
    let plain = ROLE.replace_all(&paragraph, "$1");
    let plain = LINK.replace_all(&plain, "$1").replace(['`', '*'], "");
    let plain = plain.split_whitespace().collect::<Vec<_>>().join(" ");
    let end = END.find_iter(&plain).find(|it| {
        let before = plain[..it.start()].rsplit(' ').next().unwrap_or_default();
        let abbreviations = ["e.g", "i.e", "etc", "vs", "cf", "resp", "approx", "incl"];
        !abbreviations.contains(&before.trim_start_matches('(').to_ascii_lowercase().as_str())
    });
    let sentence = end.map_or(plain.as_str(), |it| &plain[..it.start()]);
    sentence.trim_end_matches([':', ';', ',', ' ']).to_owned()
}

fn count_keys(keys: impl Iterator<Item = String>) -> HashMap<String, usize> {
    let mut counts = HashMap::new();
    for key in keys {
        *counts.entry(key).or_default() += 1;
    }
    counts
}

#[allow(clippy::expect_used, reason = "the patterns are built in and tested")]
fn regex(pattern: &str) -> Regex {
    Regex::new(pattern).expect("a built-in pattern is valid")
}

#[cfg(test)]
mod tests {
    use super::super::PackageLanguage;
    use super::super::functions::parse_file;
    use super::*;

    #[test]
    fn markup_is_removed_from_a_sentence() {
        for (doc, sentence) in [
            ("Parses `a` into [`Ast`](crate::Ast).\n\nMore.", "Parses a into Ast"),
            ("Reads all, e.g. a file. Then more.", "Reads all, e.g. a file"),
            ("Return a :class:`~foo.Bar` or\nnone.", "Return a foo.Bar or none"),
            ("Use :func:`the thing <a.b>` now", "Use the thing now"),
            ("# Safety\nnothing", ""),
            ("Sends it to v1.2 of the api: fast", "Sends it to v1.2 of the api: fast"),
            ("Does it\n:param x: the x", "Does it"),
        ] {
            assert_eq!(first_sentence(doc), sentence);
        }
    }

    #[test]
    fn an_identifier_is_split_into_its_parts() {
        for (identifier, parts) in [
            ("parse_http_header", &["parse", "http", "header"][..]),
            ("parseHTTPHeader", &["parse", "http", "header"]),
            ("HTTPHeader", &["http", "header"]),
            ("HTTP", &["http"]),
            ("MAX_SIZE", &["max", "size"]),
            ("from_utf8", &["from", "utf", "8"]),
            ("Utf8Error", &["utf", "8", "error"]),
            ("HTTP2", &["http", "2"]),
            ("__init__", &["init"]),
        ] {
            assert_eq!(identifier_parts(identifier), parts, "{identifier}");
        }
    }

    #[test]
    fn overlap_is_the_share_of_the_words_of_the_name_in_the_sentence() {
        for (name, sentence, share) in [
            ("parse_header", "Parses the headers of a request", 1.0),
            ("parse_header", "Reads the header", 0.5),
            ("open", "Starts what was closed", 0.0),
        ] {
            assert!((overlap(name, sentence) - share).abs() < 1e-6, "{name}: {sentence}");
        }
    }

    #[test]
    fn the_answer_is_removed_from_the_searched_code() {
        let rust = "
            /// Turns the secret sauce into a very good dinner.
            #[must_use = \"secret\"]
            pub fn cook<'a>(x: &'a str /* secret */) -> u8 {
                // a secret
                let y = \"// no comment\"; /* secret */
                /// secret
                fn inner() {}
                y.len()
            }
            #[cfg(test)]
            mod tests { fn a_test() {} }
            impl<T> fmt::Display for Pot<T> { fn fmt(&self) {} }";
        let found = parse_file("src/a.rs", rust, PackageLanguage::Rust).unwrap();
        let names: Vec<_> = found.iter().map(|it| it.unit.name.as_str()).collect();
        assert_eq!(names, ["cook", "fmt"]);
        assert_eq!(found[0].doc, "Turns the secret sauce into a very good dinner.");
        assert!(!found[0].unit.body.contains("secret"), "{}", found[0].unit.body);
        assert!(found[0].unit.body.contains("// no comment"));
        assert_eq!(found[0].unit.head, "pub fn cook<'a>(x: &'a str ) -> u8");
        assert_eq!(found[1].unit.within, "Pot Display");

        let python = "
class Pot:
    @property
    async def cook(self, x='no comment'):  # secret
        r'''Turns the secret sauce into
        a dinner.

        More.'''
        # secret
        'secret'
        def inner():
            'secret'
        return '''kept'''
";
        let found = parse_file("a.py", python, PackageLanguage::Python).unwrap();
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].doc, "Turns the secret sauce into\na dinner.\n\nMore.");
        assert!(!found[0].unit.body.contains("secret"), "{}", found[0].unit.body);
        assert!(found[0].unit.body.contains("'''kept'''"));
        assert_eq!(found[0].unit.within, "Pot");
    }

    #[test]
    fn a_sentence_or_body_of_two_functions_is_no_question() {
        let questions_of = |text: &str| {
            let functions = parse_file("a.py", text, PackageLanguage::Python).unwrap();
            select("p", &functions).0.into_iter().map(|it| it.text).collect::<Vec<_>>()
        };
        let one =
            "def mend(a):\n '''Mends all that is broken here.'''\n b = a\n c = b\n return c\n";
        let same = one.replace("mend(", "heal(").replace("= b", "= 3");
        let copy = one.replace("mend(", "heal(").replace("Mends", "Heals");
        let other = one.replace("mend(", "fall(").replace("Mends", "Breaks").replace("= b", "= 7");
        assert_eq!(questions_of(one), ["Mends all that is broken here"]);
        assert!(questions_of(&format!("{one}{same}")).is_empty());
        assert!(questions_of(&format!("{one}{copy}")).is_empty());
        assert_eq!(questions_of(&format!("{one}{other}")).len(), 2);
    }
}
