//! Detects secrets in the settings of MCP servers, by a secret's name and by the format of its
//! value.

use std::ops::Range;

use toolgate_host::SecretSet;

/// Words in the names of variables, headers, parameters and flags that hold secrets. Redaction uses
/// a shorter list: `auth` also matches `author`, and redaction changes the text that a model reads.
const SECRET_WORDS: [&str; 10] = [
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
/// Minimum number of characters of a value that counts as a generated secret, and the minimum
/// number of digits among these characters.
const GENERATED_MIN: (usize, usize) = (32, 4);

/// Text that replaces a reference `${…}` in a text before the search for secrets. It cannot be part
/// of a secret.
const NO_SECRET: &str = "[/";

/// A secret that was found inside a text.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct DetectedSecret {
    pub(super) range: Range<usize>,
    /// Name of the secret. Empty if the secret was detected only by the format of its value.
    pub(super) name: String,
}

/// Returns true if `value` contains a literal secret outside of references `${…}`. `name` is the
/// name of the variable or header that has the value.
pub(super) fn has_secret(name: &str, value: &str) -> bool {
    let mut literal = value.to_owned();
    while let Some((before, after)) = literal.split_once("${")
        && let Some((_, more)) = after.split_once('}')
    {
        literal = format!("{before}{more}");
    }
    let rest = ["Bearer", "Basic"].into_iter().find_map(|scheme| literal.strip_prefix(scheme));
    let has_content = rest.unwrap_or(&literal).chars().any(char::is_alphanumeric);
    let has_secret_form = match value.contains("${") {
        true => looks_secret(&without_variables(value)),
        false => is_generated(value) || !secrets_in_word(value, "").is_empty(),
    };
    has_secret_form || (is_secret_name(name) && has_content)
}

/// Returns true if a variable, header or parameter `name` usually holds a secret.
fn is_secret_name(name: &str) -> bool {
    let name = name.to_lowercase();
    // Short words also occur in others, such as `path` and `compass`.
    let last = name.rsplit(['-', '_', '.']).next().unwrap_or_default();
    SECRET_WORDS.iter().any(|word| name.contains(word))
        || ["pass", "pwd", "pat", "pw"].contains(&last)
}

/// Returns true if the flag `name` usually has a secret as its value, unlike `--key-file` and
/// `--author`.
fn is_secret_flag(name: &str) -> bool {
    let last = name.rsplit(['-', '_', '.']).next().unwrap_or_default().to_lowercase();
    let is_flag = name.len() > 2 && name.starts_with('-');
    let is_secret = SECRET_WORDS.contains(&&*last) || ["pass", "pat"].contains(&&*last);
    is_flag && (is_secret || looks_secret(&format!("{name}=something")))
}

/// Returns true if `text` contains a value that has the format of a secret.
fn looks_secret(text: &str) -> bool {
    // Packages and images have an `@` before their version, not a password before it.
    let is_package = text.contains("@sha256:") || text.starts_with("npm:");
    let text = if is_package { text.replace('@', " ") } else { text.to_owned() };
    SecretSet::default().redact(&text) != text
}

/// Returns the secrets in `word`, a URL or a command-line argument. `before` is the previous
/// argument, such as a flag.
pub(super) fn secrets_in_word(word: &str, before: &str) -> Vec<DetectedSecret> {
    let whole =
        |name: &str| vec![DetectedSecret { range: value_range(word, 0), name: name.to_owned() }];
    let is_value = !word.starts_with('-') && !before.contains('=');
    if is_value && is_secret_flag(before) {
        return only_literal(word, whole(before.trim_start_matches('-')));
    }
    if let Some((name, at)) = named_secret(word) {
        return only_literal(word, vec![DetectedSecret { range: value_range(word, at), name }]);
    }
    let found = only_literal(word, secrets_in_url(word));
    let mut rest = word.to_owned();
    found.iter().rev().for_each(|part| rest.replace_range(part.range.clone(), NO_SECRET));
    match looks_secret(&without_variables(&rest)) {
        true => whole(""),
        false => found,
    }
}

/// Returns the secrets in `found` that are not empty and do not refer to a variable.
fn only_literal(word: &str, found: Vec<DetectedSecret>) -> Vec<DetectedSecret> {
    let is_literal =
        |part: &DetectedSecret| !part.range.is_empty() && !word[part.range.clone()].contains("${");
    found.into_iter().filter(is_literal).collect()
}

/// Returns the byte range of the value that begins at the offset `at` of `text`, without an
/// authorization scheme such as `Bearer`.
fn value_range(text: &str, at: usize) -> Range<usize> {
    let trimmed = text[at..].trim_start();
    let at = text.len() - trimmed.len();
    let scheme = ["Bearer ", "Basic "].into_iter().find(|scheme| trimmed.starts_with(scheme));
    at + scheme.map_or(0, str::len)..text.len()
}

/// Returns the name of the secret in `--name=value`, `NAME=value` or `Name: value`, and the byte
/// offset of its value. Returns `None` if the name is not that of a secret.
fn named_secret(word: &str) -> Option<(String, usize)> {
    let at = word.find(['=', ':'])?;
    let name = &word[..at];
    let value = &word[at + 1..];
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
    if name.is_empty() || !name.chars().all(is_plain) || value.starts_with("//") {
        return None;
    }
    let is_secret = if name.starts_with('-') { is_secret_flag(name) } else { is_secret_name(name) };
    is_secret.then(|| (name.trim_start_matches('-').to_owned(), at + 1))
}

/// Returns the secrets in a URL: the password, the values of secret parameters, and path segments
/// that look generated.
fn secrets_in_url(text: &str) -> Vec<DetectedSecret> {
    let Some(start) = text.find("://").map(|at| at + 3) else { return Vec::new() };
    let mut found = Vec::new();
    let end = text[start..].find(['/', '?', '#']).map_or(text.len(), |at| start + at);
    if let Some((userinfo, _)) = text[start..end].rsplit_once('@')
        && let Some((user, password)) = userinfo.split_once(':')
    {
        let at = start + user.len() + 1;
        found.push(DetectedSecret { range: at..at + password.len(), name: "password".to_owned() });
    }
    let mut at = end;
    for part in text[end..].split_inclusive(['/', '?', '#', '&', ';']) {
        let trimmed = part.trim_end_matches(['/', '?', '#', '&', ';']);
        let (name, value) = trimmed.split_once('=').unwrap_or(("", trimmed));
        let from = at + trimmed.len() - value.len();
        if is_secret_name(name) || is_generated(value) {
            found.push(DetectedSecret { range: from..from + value.len(), name: name.to_owned() });
        }
        at += part.len();
    }
    found
}

/// Returns true if `text` is long and mixed enough to be a generated secret.
fn is_generated(text: &str) -> bool {
    let (length, digits) = GENERATED_MIN;
    text.len() >= length
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-=".contains(&b))
        && text.bytes().filter(u8::is_ascii_digit).count() >= digits
}

/// Replaces each reference `${…}` in `text` by characters that cannot belong to a secret.
fn without_variables(text: &str) -> String {
    let mut rest = text;
    let mut left = String::new();
    while let Some((before, after)) = rest.split_once("${") {
        let Some((_, more)) = after.split_once('}') else { break };
        left += before;
        left += NO_SECRET;
        rest = more;
    }
    left + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_found_by_name_and_by_form() {
        for (before, word, secret, name) in [
            ("--api-key", "s3cret", "s3cret", "api-key"),
            ("", "--api-key=s3cret", "s3cret", "api-key"),
            ("--accessToken", "s3cret", "s3cret", "accessToken"),
            ("--apikey", "s3cret", "s3cret", "apikey"),
            ("--credentials", "s3cret", "s3cret", "credentials"),
            ("--db-pass", "s3cret", "s3cret", "db-pass"),
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
            let found = secrets_in_word(word, before);
            let [DetectedSecret { range, name: found_name }] = &found[..] else {
                panic!("{word}: {found:?}")
            };
            assert_eq!((&word[range.clone()], &**found_name), (secret, name), "{word}");
        }
    }

    #[test]
    fn a_value_is_a_secret_by_name_or_form_unless_it_refers_to_a_variable() {
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
            assert_eq!(has_secret(name, value), is, "{name}={value}");
        }
    }

    #[test]
    fn words_without_secrets_have_none() {
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
            assert_eq!(secrets_in_word(word, before), [], "{before} {word}");
        }
    }
}
