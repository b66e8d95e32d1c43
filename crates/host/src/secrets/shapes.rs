//! What secrets are called and what they look like.

use std::borrow::Cow;
use std::sync::{LazyLock, OnceLock};

use regex::Regex;

/// Words that the name of a secret ends with, without what stands between them.
const NAMES: [&str; 17] = [
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
/// The letters that those words end with.
const LAST: &[u8] = b"delnsty";
/// Names that end so and count things.
const COUNTS: [&str; 3] = ["maxtokens", "inputtokens", "outputtokens"];
/// How long a name may be that is looked at.
pub(super) const NAME_BYTES_MAX: usize = 64;

/// Whether what is called `name` is a secret: `GITHUB_TOKEN`, `apiKey`, `--password`.
///
/// Asked of every argument of every call, so it allocates nothing.
pub(super) fn names_a_secret(name: &str) -> bool {
    let mut folded = [0; NAME_BYTES_MAX];
    let mut length = 0;
    if name.len() > NAME_BYTES_MAX || name.len() < 3 {
        return false;
    }
    // Most names end otherwise, and are looked at no further.
    let last = name.bytes().rev().find(u8::is_ascii_alphanumeric);
    if !last.is_some_and(|last| LAST.contains(&last.to_ascii_lowercase())) {
        return false;
    }
    for byte in name.bytes().filter(u8::is_ascii_alphanumeric) {
        folded[length] = byte.to_ascii_lowercase();
        length += 1;
    }
    let folded = &folded[..length];
    let ends = |word: &&str| folded.ends_with(word.as_bytes());
    NAMES.iter().any(ends) && !COUNTS.iter().any(ends)
}

/// What a secret looks like.
pub(super) struct Form {
    /// One of these is in whatever it matches, in small letters; where there are none, anything may
    /// be. To look for them takes no time beside making the pattern.
    words: &'static [&'static str],
    /// And this.
    sign: &'static str,
    pattern: String,
    made: OnceLock<Regex>,
    /// What is left of what it matches.
    left: &'static str,
}

impl Form {
    fn new(
        words: &'static [&'static str],
        sign: &'static str,
        pattern: impl Into<String>,
        left: &'static str,
    ) -> Self {
        Self { words, sign, pattern: pattern.into(), made: OnceLock::new(), left }
    }

    /// `text`, which is `small` in small letters, without what looks so.
    fn without<'t>(&self, text: Cow<'t, str>, small: &str) -> Cow<'t, str> {
        let has_word = self.words.is_empty() || self.words.iter().any(|word| small.contains(word));
        // Some letters beyond ASCII are small `k` and `s` to a pattern.
        if small.is_ascii() && !(has_word && small.contains(self.sign)) {
            return text;
        }
        let form = self.made();
        if form.is_match(&text) {
            return Cow::Owned(form.replace_all(&text, self.left).into_owned());
        }
        text
    }

    fn made(&self) -> &Regex {
        self.made.get_or_init(|| Regex::new(&self.pattern).expect("a pattern"))
    }

    /// `text` without what looks so, though nothing says that it is there.
    #[cfg(test)]
    pub(super) fn anyway(&self, text: &str) -> String {
        self.made().replace_all(text, self.left).into_owned()
    }
}

/// `text` without what looks like one of `forms`.
pub(super) fn without<'t>(forms: &[Form], text: Cow<'t, str>) -> Cow<'t, str> {
    if forms.is_empty() {
        return text;
    }
    // What is left of a form has no words that were not there.
    let small = text.to_ascii_lowercase();
    forms.iter().fold(text, |text, form| form.without(text, &small))
}

/// What secrets look like.
pub(super) static FORMS: LazyLock<Vec<Form>> = LazyLock::new(|| {
    // OpenAI's, Anthropic's and their like; Stripe's; GitHub's; GitLab's; AWS's; Slack's; Google's.
    let keys = &[
        "sk-",
        "k_live_",
        "k_test_",
        "gh",
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
        Form::new(
            &[],
            "private key-----",
            r"(?s)-----BEGIN [A-Z0-9 ]*PRIVATE KEY-----.*?(?:-----END [A-Z0-9 ]*PRIVATE KEY-----|\z)",
            "[redacted]",
        ),
        Form::new(
            keys,
            "",
            r"\b(?:sk-[A-Za-z0-9_-]*[A-Za-z0-9]{20}[A-Za-z0-9_-]*|[sr]k_(?:live|test)_[A-Za-z0-9]{10,}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,}|glpat-[A-Za-z0-9_-]{20,}|(?:AKIA|ASIA)[A-Z0-9]{16}|xox[a-z]-[A-Za-z0-9-]{10,}|AIza[A-Za-z0-9_-]{30,})",
            "[redacted]",
        ),
        Form::new(
            &[],
            "eyj",
            r"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*",
            "[redacted]",
        ),
        Form::new(
            &["bearer", "basic"],
            "",
            r"(?i)\b(bearer|basic)\s+[A-Za-z0-9._~+/-]{6,}=*",
            "$1 [redacted]",
        ),
        Form::new(&[], "@", r"([A-Za-z][A-Za-z0-9+.-]*://[^\s/:@]*):[^\s/@]+@", "$1:[redacted]@"),
        Form::new(&[], "@", r"\b([A-Za-z0-9._-]+):[^\s/:@]+@([A-Za-z0-9.-])", "$1:[redacted]@$2"),
    ];
    forms.extend(named_forms(names, "[A-Za-z0-9_.-]*", named));
    forms
});

/// What is said of what is called `named`, with `before` it, in which one of `words` is.
pub(super) fn named_forms(words: &'static [&'static str], before: &str, named: &str) -> [Form; 3] {
    [
        // `NAME=value`, `--name=value`, in quotation marks or not.
        Form::new(
            words,
            "=",
            format!(r#"(?i)({before}{named}=["']?)[^\s"'&;,\[]+"#),
            "$1[redacted]",
        ),
        // `--name value`.
        Form::new(
            words,
            "-",
            format!(r"(?i)(\s|^)(--?[A-Za-z0-9_.-]*{before}{named}\s+)[^\s\[-]\S*"),
            "$1$2[redacted]",
        ),
        // `"name":"value"`.
        Form::new(
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
    fn the_last_letter_of_each_word_is_known() {
        assert!(NAMES.iter().all(|name| LAST.contains(name.as_bytes().last().expect("a letter"))));
    }

    #[test]
    fn a_name_says_that_it_is_of_a_secret() {
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
            assert!(names_a_secret(name), "{name}");
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
            assert!(!names_a_secret(name), "{name}");
        }
    }
}
