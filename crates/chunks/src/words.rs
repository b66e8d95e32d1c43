//! Splits text into search words: splits identifiers, and removes the endings of words.

use std::collections::{HashMap, HashSet};
use std::sync::LazyLock;

/// One word of a query, with the synonyms by which it is searched as well.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueryWord {
    /// Query word in the form that [`words`] returns.
    pub word: String,
    /// Synonyms of the query word.
    pub synonyms: Vec<String>,
}

/// Words of a query that carry no meaning for the search.
const STOP_WORDS: [&str; 58] = [
    "a", "about", "all", "an", "and", "any", "are", "as", "at", "be", "been", "being", "by", "can",
    "could", "did", "do", "does", "for", "from", "has", "have", "how", "i", "in", "into", "is",
    "it", "its", "me", "my", "of", "on", "or", "our", "should", "so", "some", "such", "that",
    "the", "their", "them", "then", "there", "these", "they", "this", "to", "was", "we", "what",
    "when", "where", "which", "who", "why", "with",
];

/// Groups of words that programmers use as synonyms.
const SYNONYMS: [&[&str]; 31] = [
    &["auth", "authentication", "authorization", "login"],
    &["config", "configuration", "configure", "cfg", "settings", "options"],
    &["db", "database"],
    &["msg", "message"],
    &["req", "request"],
    &["res", "resp", "response"],
    &["err", "error", "failure", "exception"],
    &["init", "initialize", "initialise", "setup"],
    &["param", "parameter", "arg", "argument"],
    &["conn", "connection"],
    &["cmd", "command"],
    &["env", "environment"],
    &["dir", "directory", "folder"],
    &["doc", "documentation"],
    &["img", "image", "picture"],
    &["pwd", "password", "passwd"],
    &["delete", "remove", "del", "rm"],
    &["fetch", "download", "get"],
    &["create", "make", "new", "build"],
    &["fn", "func", "function"],
    &["str", "string"],
    &["num", "number"],
    &["repo", "repository"],
    &["tmp", "temp", "temporary"],
    &["ctx", "context"],
    &["async", "asynchronous"],
    &["sync", "synchronize", "synchronise"],
    &["serialize", "serialise", "encode", "marshal"],
    &["deserialize", "deserialise", "decode", "unmarshal", "parse"],
    &["send", "emit", "publish"],
    &["limit", "throttle"],
];

/// Longest run of letters and digits that is a word, in bytes. Longer runs are data.
const WORD_BYTES_MAX: usize = 256;

/// Passes every word of `text` to `take`, in order: the parts of each identifier, then the complete
/// identifier if it has several parts. Words are in lower case and stemmed.
pub fn words(text: &str, mut take: impl FnMut(&str)) {
    for_each_word(text, |word, _| take(word));
}

/// Passes the parts of each identifier in `text` to `take`, but not the complete identifiers.
pub fn identifier_parts(text: &str, mut take: impl FnMut(&str)) {
    for_each_word(text, |word, is_whole| {
        if !is_whole {
            take(word);
        }
    });
}

/// Splits `text` into plain words: `parseHTTPHeader2` becomes `parse http header 2`.
pub fn plain_words(text: &str) -> String {
    let mut spelled = String::new();
    for piece in text.split(|c: char| !c.is_alphanumeric()) {
        let mut rest = piece;
        while !rest.is_empty() {
            let part;
            (part, rest) = rest.split_at(part_end(rest));
            if !spelled.is_empty() {
                spelled.push(' ');
            }
            push_lowercase(part, &mut spelled);
        }
    }
    spelled
}

fn for_each_word(text: &str, mut take: impl FnMut(&str, bool)) {
    let mut word = String::new();
    let mut whole = String::new();
    for identifier in text.split(|c: char| !(c.is_alphanumeric() || c == '_')) {
        if !identifier.is_empty() && identifier.len() <= WORD_BYTES_MAX {
            split_identifier(identifier, &mut word, &mut whole, &mut take);
        }
    }
}

/// Returns the distinct words of `text` in alphabetical order.
pub fn distinct_words(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    words(text, |word| found.push(word.to_owned()));
    found.sort_unstable();
    found.dedup();
    found
}

/// Returns true if `query` has no word that carries meaning for a search.
pub fn has_only_stop_words(query: &str) -> bool {
    !query.split_whitespace().any(is_meaningful)
}

fn is_meaningful(word: &str) -> bool {
    let bare = word.trim_matches(|c: char| !c.is_alphanumeric()).to_lowercase();
    !bare.is_empty() && STOP_WORDS.binary_search(&bare.as_str()).is_err()
}

/// Returns the distinct words in `query` with their synonyms, in the order of the query.
pub fn concepts(query: &str) -> Vec<QueryWord> {
    // A query of stop words alone is taken literally.
    let all = has_only_stop_words(query);
    let mut known = HashSet::new();
    let mut concepts: Vec<QueryWord> = Vec::new();
    for part in query.split_whitespace().filter(|word| all || is_meaningful(word)) {
        words(part, |word| {
            if known.insert(word.to_owned()) {
                let synonyms = SYNONYMS_BY_WORD.get(word).cloned().unwrap_or_default();
                concepts.push(QueryWord { word: word.to_owned(), synonyms });
            }
        });
    }
    concepts
}

/// Synonyms of each word that has any, sorted and distinct.
static SYNONYMS_BY_WORD: LazyLock<HashMap<String, Vec<String>>> = LazyLock::new(|| {
    let mut others: HashMap<String, Vec<String>> = HashMap::new();
    for group in SYNONYMS {
        let group: Vec<String> = group.iter().flat_map(|word| distinct_words(word)).collect();
        for word in &group {
            let rest = group.iter().filter(|other| *other != word).cloned();
            others.entry(word.clone()).or_default().extend(rest);
        }
    }
    for others in others.values_mut() {
        others.sort_unstable();
        others.dedup();
    }
    others
});

/// Passes the words of `identifier` to `take`: for `from_utf8`, these are `from`, `utf`, `utf8` and
/// `from_utf8`. The second argument of `take` is true if the word consists of several parts. `word`
/// and `whole` are scratch buffers.
fn split_identifier(
    identifier: &str,
    word: &mut String,
    whole: &mut String,
    take: &mut impl FnMut(&str, bool),
) {
    whole.clear();
    let mut pieces = 0;
    for piece in identifier.split('_').filter(|piece| !piece.is_empty()) {
        let begins = whole.len();
        let mut parts = 0;
        let mut rest = piece;
        while !rest.is_empty() {
            let part;
            (part, rest) = rest.split_at(part_end(rest));
            if part.chars().next().is_some_and(is_ideograph) {
                neighbour_pairs(part, take);
                continue;
            }
            word.clear();
            push_lowercase(part, word);
            whole.push_str(word);
            parts += 1;
            stem(word);
            take(word, false);
        }
        pieces += usize::from(parts > 0);
        if parts > 1 {
            word.clear();
            word.push_str(&whole[begins..]);
            stem(word);
            take(word, true);
        }
    }
    if pieces > 1 {
        stem(whole);
        take(whole, true);
    }
}

fn push_lowercase(part: &str, into: &mut String) {
    if part.is_ascii() {
        into.extend(part.chars().map(|c| c.to_ascii_lowercase()));
    } else {
        into.extend(part.chars().flat_map(char::to_lowercase));
    }
}

/// Returns the end of the first part of the identifier `text`. The parts of `HTTPServer2_name` are
/// `HTTP`, `Server`, `2` and `name`.
fn part_end(text: &str) -> usize {
    let mut chars = text.char_indices().peekable();
    let Some((_, first)) = chars.next() else { return 0 };
    let mut last = first;
    let mut upper = usize::from(first.is_uppercase());
    while let Some((at, c)) = chars.next() {
        if c == '_'
            || c.is_numeric() != last.is_numeric()
            || is_ideograph(c) != is_ideograph(last)
            || (c.is_uppercase() && !last.is_uppercase())
        {
            return at;
        }
        // The last of several capitals begins the next word.
        let next_is_lower = chars.peek().is_some_and(|(_, next)| next.is_lowercase());
        if c.is_uppercase() && upper > 0 && next_is_lower {
            return at;
        }
        upper = if c.is_uppercase() { upper + 1 } else { 0 };
        last = c;
    }
    text.len()
}

/// Returns true if `c` belongs to a script that does not separate words by spaces.
fn is_ideograph(c: char) -> bool {
    matches!(c, '\u{3040}'..='\u{30ff}' | '\u{3400}'..='\u{9fff}' | '\u{ac00}'..='\u{d7af}')
}

/// Passes each pair of neighbouring characters in `run` to `take`, to index text without spaces. A
/// single character is passed alone.
fn neighbour_pairs(run: &str, take: &mut impl FnMut(&str, bool)) {
    let chars: Vec<char> = run.chars().collect();
    if let [one] = chars[..] {
        take(&one.to_string(), false);
    }
    for pair in chars.windows(2) {
        take(&pair.iter().collect::<String>(), false);
    }
}

/// Removes the ending of the English word `word`: `authenticated`, `authenticator` and
/// `authentication` get the same stem.
fn stem(word: &mut String) {
    if word.len() < 4 || !word.bytes().all(|b| b.is_ascii_lowercase()) {
        return;
    }
    plural(word);
    let endings: [(&str, usize); 7] =
        [("ing", 3), ("ed", 3), ("ion", 4), ("or", 4), ("er", 4), ("ive", 4), ("ly", 4)];
    for (ending, least) in endings {
        let Some(rest) = word.strip_suffix(ending) else { continue };
        let before = rest.bytes().last().unwrap_or(b' ');
        let fits = match ending {
            "ion" | "or" | "ive" => matches!(before, b't' | b's'),
            _ => rest.bytes().any(|b| matches!(b, b'a' | b'e' | b'i' | b'o' | b'u' | b'y')),
        };
        if rest.len() >= least && fits {
            word.truncate(rest.len());
            undouble(word);
            break;
        }
    }
    if word.len() > 3 && word.ends_with('e') {
        word.pop();
    }
}

fn plural(word: &mut String) {
    let ends = |ending: &str| word.ends_with(ending);
    if ends("ies") && word.len() > 4 {
        word.truncate(word.len() - 3);
        word.push('y');
    } else if ["sses", "ses", "xes", "zes", "ches", "shes"].iter().any(|it| ends(it)) {
        word.truncate(word.len() - 2);
    } else if ends("s") && !["ss", "us", "is"].iter().any(|it| ends(it)) {
        word.pop();
    }
}

/// Removes the second of two equal last letters of `word`: `stopp` becomes `stop`, but `call` and
/// `pass` stay.
fn undouble(word: &mut String) {
    let bytes = word.as_bytes();
    if let [.., one, two] = bytes
        && one == two
        && !matches!(one, b'l' | b's' | b'z' | b'e' | b'o')
    {
        word.pop();
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use proptest::prelude::*;

    use super::*;

    fn is_found(query: &str, text: &str) -> bool {
        let text = distinct_words(text);
        concepts(query).iter().all(|concept| text.contains(&concept.word))
    }

    #[test]
    fn an_identifier_is_found_by_its_parts_and_as_a_whole() {
        for (query, text) in [
            ("parse http header", "fn parseHTTPHeader2(x: u8)"),
            ("parse http header", "PARSE_HTTP_HEADER"),
            ("parsehttpheader", "parse_http_header"),
            ("utf8", "fn from_utf8()"),
            ("utf 8", "utf8"),
            ("x", "let x = y;"),
            ("a", "fn a() {}"),
            ("größe", "GRÖSSE Größe"),
            ("認証", "ユーザー認証の処理"),
        ] {
            assert!(is_found(query, text), "{query} in {text}");
        }
        assert!(!is_found("read", "thread"));
    }

    #[test]
    fn identifiers_are_split_into_plain_words() {
        assert_eq!(plain_words("parseHTTPHeader2"), "parse http header 2");
        assert_eq!(plain_words("http::Header_Map, to_str"), "http header map to str");
        assert_eq!(plain_words("..."), "");
    }

    #[test]
    fn words_with_the_same_stem_are_one_term() {
        for group in [
            &["authentication", "authenticate", "authenticated", "authenticator"][..],
            &["cache", "caches", "cached", "caching"],
            &["retry", "retries"],
            &["stop", "stops", "stopped", "stopping"],
            &["call", "calls", "called", "calling"],
            &["validate", "validation", "validates", "validator"],
            &["class", "classes"],
            &["match", "matches", "matched"],
        ] {
            let stems: Vec<_> = group.iter().map(|word| distinct_words(word)).collect();
            assert!(stems.windows(2).all(|pair| pair[0] == pair[1]), "{group:?}");
        }
        assert_ne!(distinct_words("string"), distinct_words("str"));
        assert_ne!(distinct_words("user"), distinct_words("use"));
    }

    #[test]
    fn stop_words_are_removed_from_a_question() {
        assert_eq!(concepts("where is the session stored?"), concepts("session stored"));
        assert_eq!(concepts("where is it").len(), 3);
        assert!(concepts(" ?! ").is_empty());
        assert!(has_only_stop_words("Where is it?") && !has_only_stop_words("where is Router"));
    }

    #[test]
    fn the_time_for_a_question_grows_linearly_with_its_words() {
        let words: Vec<String> = (0..100_000).map(|at| format!("w{at}x")).collect();
        let begun = Instant::now();
        // Each word has four terms: the letter, the number, the other letter and the whole.
        assert_eq!(concepts(&words.join(" ")).len(), 2 + 2 * words.len());
        // Comparing each word with each other would take many minutes.
        assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
    }

    #[test]
    fn the_stop_words_are_sorted() {
        assert!(STOP_WORDS.is_sorted());
    }

    #[test]
    fn synonyms_are_added_to_a_concept() {
        let concept = &concepts("authentication")[0];
        assert!(concept.synonyms.contains(&distinct_words("auth")[0]));
        assert!(!concept.synonyms.contains(&concept.word));
    }

    proptest! {
        #[test]
        fn every_text_is_found_by_its_own_words(text in "[\\PC_]{0,80}") {
            let again = distinct_words(&text);
            prop_assert_eq!(&again, &distinct_words(&text));
            prop_assert!(again.iter().all(|word| !word.is_empty()));
        }
    }
}
