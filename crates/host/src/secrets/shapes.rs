//! Recognizes secrets by common names and by their format.

use std::borrow::Cow;
use std::slice;
use std::sync::{LazyLock, OnceLock};

use aho_corasick::AhoCorasick;
use regex::Regex;

/// Endings of names that mark secrets, without separators.
const NAME_ENDINGS: [&str; 17] = [
    "token",
    "tokens",
    "secret",
    "secrets",
    "password",
    "passwd",
    "passphrase",
    "apikey",
    "accesskey",
    "accesskeyid",
    "secretkey",
    "privatekey",
    "signingkey",
    "encryptionkey",
    "credential",
    "credentials",
    "authorization",
];
/// Last letters of all endings by which a name marks a secret, for a quick check before the endings
/// are compared.
const LAST_LETTERS: &[u8] = b"delnsty";
/// Endings of names that look like those of secrets, but whose value is a number and no secret.
const COUNT_NAMES: [&str; 3] = ["maxtokens", "inputtokens", "outputtokens"];
/// Longest name that is checked for marking a secret, in bytes.
pub(super) const NAME_BYTES_MAX: usize = 64;

/// Returns true if `name` marks a secret, like `GITHUB_TOKEN`, `apiKey` or `--password`.
///
/// The function runs for each argument of each call, so it does not allocate.
pub(super) fn is_secret_name(name: &str) -> bool {
    let mut folded = [0; NAME_BYTES_MAX];
    let mut length = 0;
    if name.len() > NAME_BYTES_MAX || name.len() < 3 {
        return false;
    }
    // Quick check, which most names fail.
    let last = name.bytes().rev().find(u8::is_ascii_alphanumeric);
    if !last.is_some_and(|last| LAST_LETTERS.contains(&last.to_ascii_lowercase())) {
        return false;
    }
    for byte in name.as_bytes() {
        if byte.is_ascii_alphanumeric() {
            folded[length] = byte.to_ascii_lowercase();
            length += 1;
        }
    }
    let folded = &folded[..length];
    let ends = |word: &&str| folded.ends_with(word.as_bytes());
    NAME_ENDINGS.iter().any(ends) && !COUNT_NAMES.iter().any(ends)
}

/// Pattern that finds one type of secret in texts, such as a private key.
pub(super) struct SecretPattern {
    /// Lower-case words. Each match of the pattern contains one of them, unless the list is empty.
    /// A search for the words is much faster than compiling the pattern.
    words: &'static [&'static str],
    /// Text that each match of the pattern contains in addition to one of the words.
    required_text: &'static str,
    pattern: String,
    regex: OnceLock<Regex>,
    /// Text that replaces a match of the pattern.
    replacement: &'static str,
}

impl SecretPattern {
    fn new(
        words: &'static [&'static str],
        required_text: &'static str,
        pattern: impl Into<String>,
        replacement: &'static str,
    ) -> Self {
        Self { words, required_text, pattern: pattern.into(), regex: OnceLock::new(), replacement }
    }

    /// Returns texts in lower case. Each match of the pattern in ASCII text contains one of them, in
    /// upper or lower case.
    fn hints(&self) -> &[&'static str] {
        match self.words {
            [] => slice::from_ref(&self.required_text),
            words => words,
        }
    }

    /// Redacts secrets of this format in `text`. `small` is `text` in lower case.
    fn redact<'t>(&self, text: Cow<'t, str>, small: &str) -> Cow<'t, str> {
        let has_word = self.words.is_empty() || self.words.iter().any(|word| small.contains(word));
        // In case-insensitive patterns, some non-ASCII letters equal `k` and `s`.
        if small.is_ascii() && !(has_word && small.contains(self.required_text)) {
            return text;
        }
        let form = self.compiled_regex();
        if form.is_match(&text) {
            return Cow::Owned(form.replace_all(&text, self.replacement).into_owned());
        }
        text
    }

    fn compiled_regex(&self) -> &Regex {
        self.regex.get_or_init(|| Regex::new(&self.pattern).expect("a pattern"))
    }

    /// Redacts secrets of this format in `text` without the quick check for words.
    #[cfg(test)]
    fn redact_unchecked(&self, text: &str) -> String {
        self.compiled_regex().replace_all(text, self.replacement).into_owned()
    }
}

/// Patterns that find several types of secrets in texts.
#[derive(Default)]
pub(super) struct SecretPatterns {
    patterns: Vec<SecretPattern>,
    /// Finds the hints of all patterns in one pass. `None` by default.
    hints: Option<AhoCorasick>,
}

impl SecretPatterns {
    /// Creates a set of `patterns`.
    pub(super) fn new(patterns: Vec<SecretPattern>) -> Self {
        let hints = patterns.iter().flat_map(SecretPattern::hints);
        let hints = AhoCorasick::builder().ascii_case_insensitive(true).build(hints);
        Self { hints: Some(hints.expect("a few short texts")), patterns }
    }

    /// Redacts secrets of any of the formats in `text`.
    pub(super) fn redact<'t>(&self, text: Cow<'t, str>) -> Cow<'t, str> {
        let Some(hints) = &self.hints else { return text };
        // Most short arguments, such as paths, contain no hint.
        if text.is_ascii() && !hints.is_match(&*text) {
            return text;
        }
        // A replacement adds no words, so the lower-case text stays valid.
        let small = text.to_ascii_lowercase();
        self.patterns.iter().fold(text, |text, pattern| pattern.redact(text, &small))
    }

    /// Redacts secrets in `text` without the quick checks for words.
    #[cfg(test)]
    pub(super) fn redact_unchecked(&self, text: &str) -> String {
        let pattern = |text: String, one: &SecretPattern| one.redact_unchecked(&text);
        self.patterns.iter().fold(text.to_owned(), pattern)
    }
}

/// The formats of known secrets.
pub(super) static FORMS: LazyLock<SecretPatterns> = LazyLock::new(|| {
    // Keys of OpenAI, Anthropic and similar services, Stripe, GitHub, GitLab, AWS, Slack and
    // Google.
    let keys = &[
        "sk-",
        "k_live_",
        "k_test_",
        "ghp_",
        "gho_",
        "ghu_",
        "ghs_",
        "ghr_",
        "github_pat_",
        "glpat-",
        "akia",
        "asia",
        "xox",
        "aiza",
    ];
    let named = r"(?:token|secret|password|passwd|passphrase|api[_-]?key|access[_-]?key(?:[_-]?id)?|secret[_-]?key|private[_-]?key|credentials?)";
    let names = &["token", "secret", "passw", "passphrase", "key", "credential"];
    let mut forms = vec![
        SecretPattern::new(
            &[],
            "private key-----",
            r"(?s)-----BEGIN [A-Z0-9 ]*PRIVATE KEY-----.*?(?:-----END [A-Z0-9 ]*PRIVATE KEY-----|\z)",
            "[redacted]",
        ),
        SecretPattern::new(
            keys,
            "",
            r"\b(?:sk-[A-Za-z0-9_-]*[A-Za-z0-9]{20}[A-Za-z0-9_-]*|[sr]k_(?:live|test)_[A-Za-z0-9]{10,}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,}|glpat-[A-Za-z0-9_-]{20,}|(?:AKIA|ASIA)[A-Z0-9]{16}|xox[a-z]-[A-Za-z0-9-]{10,}|AIza[A-Za-z0-9_-]{30,})",
            "[redacted]",
        ),
        SecretPattern::new(
            &[],
            "eyj",
            r"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*",
            "[redacted]",
        ),
        SecretPattern::new(
            &["bearer", "basic"],
            "",
            r"(?i)\b(bearer|basic)\s+[A-Za-z0-9._~+/-]{6,}=*",
            "$1 [redacted]",
        ),
        SecretPattern::new(
            &[],
            "@",
            r"([A-Za-z][A-Za-z0-9+.-]*://[^\s/:@]*):[^\s/@]+@",
            "$1:[redacted]@",
        ),
        SecretPattern::new(
            &[],
            "@",
            r"\b([A-Za-z0-9._-]+):[^\s/:@]+@([A-Za-z0-9.-])",
            "$1:[redacted]@$2",
        ),
    ];
    forms.extend(named_forms(names, "[A-Za-z0-9_.-]*", named));
    SecretPatterns::new(forms)
});

/// Returns the formats of a secret value that follows a name which matches the pattern `named`.
/// `before` is the pattern for the start of the name. Each match contains one of `words`.
pub(super) fn named_forms(
    words: &'static [&'static str],
    before: &str,
    named: &str,
) -> [SecretPattern; 3] {
    [
        // `NAME=value` and `--name=value`, with or without quotes.
        SecretPattern::new(
            words,
            "=",
            format!(r#"(?i)({before}{named}=["']?)[^\s"'&;,\[]+"#),
            "$1[redacted]",
        ),
        // `--name value`.
        SecretPattern::new(
            words,
            "-",
            format!(r"(?i)(\s|^)(--?[A-Za-z0-9_.-]*{before}{named}\s+)[^\s\[-]\S*"),
            "$1$2[redacted]",
        ),
        // `"name":"value"`.
        SecretPattern::new(
            words,
            "\"",
            format!(r#"(?i)("{before}{named}"\s*:\s*")[^"\[]+"#),
            "$1[redacted]",
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_letter_of_each_ending_is_listed() {
        assert!(
            NAME_ENDINGS
                .iter()
                .all(|name| LAST_LETTERS.contains(name.as_bytes().last().expect("a letter")))
        );
    }

    #[test]
    fn names_of_secrets_are_recognized() {
        for name in [
            "TOKEN",
            "GITHUB_TOKEN",
            "apiKey",
            "--api-key",
            "ZYRA_API_KEY",
            "db.password",
            "AWS_SECRET_ACCESS_KEY",
            "SSH_PRIVATE_KEY",
            "MY_CREDENTIALS",
            "client_secret",
        ] {
            assert!(is_secret_name(name), "{name}");
        }
        for name in [
            "path",
            "key",
            "KEYBOARD",
            "tokenizer",
            "max_tokens",
            "secretary",
            "PATH",
            "PWD",
            "etag",
            "",
        ] {
            assert!(!is_secret_name(name), "{name}");
        }
    }
}
