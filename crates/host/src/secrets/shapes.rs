//! What secrets are called and what they look like.

use std::sync::LazyLock;

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

/// What secrets look like, each with what is left of it. Made when the first text is looked at.
pub(super) static FORMS: LazyLock<Vec<(Regex, &'static str)>> = LazyLock::new(|| {
    let named = r"(?:token|secret|password|passwd|passphrase|api[_-]?key|access[_-]?key(?:[_-]?id)?|secret[_-]?key|private[_-]?key|credentials?)";
    let forms = [
        (r"(?s)-----BEGIN [A-Z0-9 ]*PRIVATE KEY-----.*?(?:-----END [A-Z0-9 ]*PRIVATE KEY-----|\z)".to_owned(), "[redacted]"),
        // OpenAI's, Anthropic's and their like; Stripe's; GitHub's; GitLab's; AWS's; Slack's; Google's.
        (r"\b(?:sk-[A-Za-z0-9_-]*[A-Za-z0-9]{20}[A-Za-z0-9_-]*|[sr]k_(?:live|test)_[A-Za-z0-9]{10,}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,}|glpat-[A-Za-z0-9_-]{20,}|(?:AKIA|ASIA)[A-Z0-9]{16}|xox[a-z]-[A-Za-z0-9-]{10,}|AIza[A-Za-z0-9_-]{30,})".to_owned(), "[redacted]"),
        (r"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*".to_owned(), "[redacted]"),
        (r"(?i)\b(bearer|basic)\s+[A-Za-z0-9._~+/-]{6,}=*".to_owned(), "$1 [redacted]"),
        (r"([A-Za-z][A-Za-z0-9+.-]*://[^\s/:@]*):[^\s/@]+@".to_owned(), "$1:[redacted]@"),
        (r"\b([A-Za-z0-9._-]+):[^\s/:@]+@([A-Za-z0-9.-])".to_owned(), "$1:[redacted]@$2"),
    ];
    compiled(forms).chain(named_forms("[A-Za-z0-9_.-]*", named)).collect()
});

/// What is said of what is called `named`, with `before` it.
pub(super) fn named_forms(before: &str, named: &str) -> Vec<(Regex, &'static str)> {
    let forms = [
        // `NAME=value`, `--name=value`, in quotation marks or not.
        (format!(r#"(?i)({before}{named}=["']?)[^\s"'&;,\[]+"#), "$1[redacted]"),
        // `--name value`.
        (format!(r"(?i)(\s|^)(--?[A-Za-z0-9_.-]*{before}{named}\s+)[^\s\[-]\S*"), "$1$2[redacted]"),
        // `"name":"value"`.
        (format!(r#"(?i)("{before}{named}"\s*:\s*")[^"\[]+"#), "$1[redacted]"),
    ];
    compiled(forms).collect()
}

fn compiled<const N: usize>(
    forms: [(String, &'static str); N],
) -> impl Iterator<Item = (Regex, &'static str)> {
    forms.into_iter().map(|(form, left)| (Regex::new(&form).expect("a pattern"), left))
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
