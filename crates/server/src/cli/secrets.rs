//! Which parts of what people write down for servers are secrets, by what they are called and what
//! they look like.

use std::ops::Range;

use toolgate_host::Secrets;

/// Words in the names of variables, headers and parameters whose values nobody should copy.
const SECRET: [&str; 10] = [
    "token",
    "key",
    "secret",
    "password",
    "passwd",
    "passphrase",
    "credential",
    "auth",
    "cookie",
    "signature",
];
/// Words that the names of flags end with whose values nobody should copy.
const OF_FLAGS: [&str; 13] = [
    "token",
    "key",
    "apikey",
    "secret",
    "password",
    "passwd",
    "passphrase",
    "pass",
    "pat",
    "credential",
    "credentials",
    "auth",
    "cookie",
];
/// How many characters a part of an address or a value has at least that nobody would choose by
/// hand, and how many digits.
const CHOSEN_BY_NOBODY: (usize, usize) = (32, 4);

/// What no secret begins with, whatever stands before it.
const CLEAN: &str = "[/";

/// A part of a text that is a secret.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) at: Range<usize>,
    /// What it is called; nothing where it only looks so.
    pub(super) name: String,
}

/// Whether `value`, of a variable or a header called `name`, has a secret in so many words: beside
/// the variables that it names.
pub(super) fn is_in(name: &str, value: &str) -> bool {
    let mut beside = value.to_owned();
    while let Some((before, after)) = beside.split_once("${")
        && let Some((_, more)) = after.split_once('}')
    {
        beside = format!("{before}{more}");
    }
    let scheme = ["Bearer", "Basic"].into_iter().find_map(|scheme| beside.strip_prefix(scheme));
    let says_something = scheme.unwrap_or(&beside).chars().any(char::is_alphanumeric);
    let looks_so = match value.contains("${") {
        true => looks_so(&without_variables(value)),
        false => is_chosen_by_nobody(value) || !in_word(value, "").is_empty(),
    };
    looks_so || (is_name(name) && says_something)
}

/// Whether the value of a variable, a header or a parameter called `name` is a secret.
fn is_name(name: &str) -> bool {
    let name = name.to_lowercase();
    // Short words stand in others: `path`, `compass`.
    let last = name.rsplit(['-', '_', '.']).next().unwrap_or_default();
    SECRET.iter().any(|word| name.contains(word)) || ["pass", "pwd", "pat", "pw"].contains(&last)
}

/// Whether the value of a flag called `name` is a secret: not that of `--key-file` or `--author`.
fn is_flag(name: &str) -> bool {
    let last = name.rsplit(['-', '_', '.']).next().unwrap_or_default().to_lowercase();
    let is_flag = name.len() > 2 && name.starts_with('-');
    is_flag && (OF_FLAGS.contains(&&*last) || looks_so(&format!("{name}=something")))
}

/// Whether there is something in `text` that looks like a secret.
fn looks_so(text: &str) -> bool {
    // A package or an image with its version, in which nobody is named with a password.
    let is_package = text.contains("@sha256:") || text.starts_with("npm:");
    let text = if is_package { text.replace('@', " ") } else { text.to_owned() };
    Secrets::default().redacted(&text) != text
}

/// The secrets in `word`, an argument of a program or an address, that comes after the argument
/// `before`.
pub(super) fn in_word(word: &str, before: &str) -> Vec<Found> {
    let whole = |name: &str| vec![Found { at: value(word, 0), name: name.to_owned() }];
    let is_value = !word.starts_with('-') && !before.contains('=');
    if is_value && is_flag(before) {
        return told(word, whole(before.trim_start_matches('-')));
    }
    if let Some((name, at)) = named(word) {
        return told(word, vec![Found { at: value(word, at), name }]);
    }
    let found = told(word, in_address(word));
    let mut rest = word.to_owned();
    found.iter().rev().for_each(|part| rest.replace_range(part.at.clone(), CLEAN));
    match looks_so(&without_variables(&rest)) {
        true => whole(""),
        false => found,
    }
}

/// Those of `found` that are there, and not in a variable already.
fn told(word: &str, found: Vec<Found>) -> Vec<Found> {
    let is_said = |part: &Found| !part.at.is_empty() && !word[part.at.clone()].contains("${");
    found.into_iter().filter(is_said).collect()
}

/// Where the value is that begins at `at` in `text`, without the scheme of an authorization.
fn value(text: &str, at: usize) -> Range<usize> {
    let trimmed = text[at..].trim_start();
    let at = text.len() - trimmed.len();
    let scheme = ["Bearer ", "Basic "].into_iter().find(|scheme| trimmed.starts_with(scheme));
    at + scheme.map_or(0, str::len)..text.len()
}

/// The secret that `--name=value`, `NAME=value` or `Name: value` says, by its name and where it is.
fn named(word: &str) -> Option<(String, usize)> {
    let at = word.find(['=', ':'])?;
    let (name, value) = (&word[..at], &word[at + 1..]);
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
    if name.is_empty() || !name.chars().all(is_plain) || value.starts_with("//") {
        return None;
    }
    let is_secret = if name.starts_with('-') { is_flag(name) } else { is_name(name) };
    is_secret.then(|| (name.trim_start_matches('-').to_owned(), at + 1))
}

/// The secrets in an address, if `text` has one: a password, parameters, and what nobody would
/// choose for a part of a path.
fn in_address(text: &str) -> Vec<Found> {
    let Some(start) = text.find("://").map(|at| at + 3) else { return Vec::new() };
    let mut found = Vec::new();
    let end = text[start..].find(['/', '?', '#']).map_or(text.len(), |at| start + at);
    if let Some((who, _)) = text[start..end].rsplit_once('@')
        && let Some((user, password)) = who.split_once(':')
    {
        let at = start + user.len() + 1;
        found.push(Found { at: at..at + password.len(), name: "password".to_owned() });
    }
    let mut at = end;
    for part in text[end..].split_inclusive(['/', '?', '#', '&', ';']) {
        let said = part.trim_end_matches(['/', '?', '#', '&', ';']);
        let (name, value) = said.split_once('=').unwrap_or(("", said));
        let from = at + said.len() - value.len();
        if is_name(name) || is_chosen_by_nobody(value) {
            found.push(Found { at: from..from + value.len(), name: name.to_owned() });
        }
        at += part.len();
    }
    found
}

/// Whether `text` is so long and so mixed that nobody would choose it by hand.
fn is_chosen_by_nobody(text: &str) -> bool {
    let (length, digits) = CHOSEN_BY_NOBODY;
    text.len() >= length
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-=".contains(&b))
        && text.bytes().filter(u8::is_ascii_digit).count() >= digits
}

/// `text` with nothing that looks like a secret in place of each `${…}`.
fn without_variables(text: &str) -> String {
    let mut rest = text;
    let mut left = String::new();
    while let Some((before, after)) = rest.split_once("${") {
        let Some((_, more)) = after.split_once('}') else { break };
        left += before;
        left += CLEAN;
        rest = more;
    }
    left + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_found_by_their_names_and_by_what_they_look_like() {
        for (before, word, secret, name) in [
            ("--api-key", "s3cret", "s3cret", "api-key"),
            ("", "--api-key=s3cret", "s3cret", "api-key"),
            ("--accessToken", "s3cret", "s3cret", "accessToken"),
            ("-e", "GITHUB_TOKEN=s3cret", "s3cret", "GITHUB_TOKEN"),
            ("--header", "Authorization: Bearer s3cret", "s3cret", "Authorization"),
            ("-H", "X-Api-Key:s3cret", "s3cret", "X-Api-Key"),
            ("", "postgres://ann:s3cret@db.example/x", "s3cret", "password"),
            ("", "DB=postgres://ann:s3cret@db.example/x", "s3cret", "password"),
            ("", "https://a.example/mcp?v=1&token=s3cret#x", "s3cret", "token"),
            (
                "",
                "https://a.example/s/0123456789abcdef0123456789abcdef/mcp",
                "0123456789abcdef0123456789abcdef",
                "",
            ),
            ("", "ghp_0123456789abcdefghij", "ghp_0123456789abcdefghij", ""),
        ] {
            let found = in_word(word, before);
            let [Found { at, name: called }] = &found[..] else { panic!("{word}: {found:?}") };
            assert_eq!((&word[at.clone()], &**called), (secret, name), "{word}");
        }
    }

    #[test]
    fn a_value_is_a_secret_by_its_name_or_by_its_looks_and_not_where_it_names_a_variable() {
        for (name, value, is) in [
            ("Authorization", "Bearer s3cret", true),
            ("Authorization", "Bearer ${TOKEN}", false),
            ("Authorization", "Basic ${USER}:${PASS}", false),
            ("API_KEY", "s3cret-${X}", true),
            ("API_KEY", "${X}", false),
            ("API_KEY", "", false),
            ("Cookie", "sid=1", true),
            ("OF_GH", "0123456789abcdef0123456789abcdef", true),
            ("DATABASE_URL", "postgres://ann:s3cret@db.example/x", true),
            ("LEVEL", "debug", false),
            ("HOME", "/home/ann", false),
        ] {
            assert_eq!(is_in(name, value), is, "{name}={value}");
        }
    }

    #[test]
    fn what_is_none_is_left_as_it_is() {
        for (before, word) in [
            ("--key-file", "/etc/key.pem"),
            ("--author", "ann"),
            ("--api-key", "--verbose"),
            ("--api-key", "${KEY}"),
            ("", "--api-key=${KEY}"),
            ("--header", "Authorization: Bearer ${TOKEN}"),
            ("-y", "@modelcontextprotocol/server-everything@2025.1.1"),
            ("", "image:1.2@sha256:0123456789abcdef"),
            ("", "https://ann@a.example/some-long-name-of-a-server-that-somebody-chose/mcp?v=1"),
            ("", "https://a.example/mcp?token=${TOKEN}"),
            ("", "/home/ann/keys"),
        ] {
            assert_eq!(in_word(word, before), [], "{before} {word}");
        }
    }
}
