//! Matches names of secrets that the operator configured.

use std::borrow::Cow;

use super::shapes::{NAME_BYTES_MAX, SecretPatterns, is_secret_name, named_forms};

/// Names from the settings that mark values as secrets.
#[derive(Default)]
pub(super) struct SecretNames {
    /// The lower-case letters and digits of each name that marks a secret.
    folded: Vec<String>,
    forms: SecretPatterns,
}

impl SecretNames {
    /// Creates a set of names that mark secrets. Case and separators are ignored.
    pub(super) fn new(names: &[String]) -> Self {
        let folded = names.iter().map(|name| fold_name(name).collect::<String>());
        let folded: Vec<_> = folded.filter(|name| !name.is_empty()).collect();
        if folded.is_empty() {
            return Self::default();
        }
        let spelled = |name: &String| {
            let letters: Vec<_> = name.chars().map(String::from).collect();
            letters.join("[_.-]?")
        };
        let any = folded.iter().map(spelled).collect::<Vec<_>>().join("|");
        let forms = named_forms(&[], r"\b", &format!("(?:{any})"));
        Self { forms: SecretPatterns::new(forms.into()), folded }
    }

    /// Returns true if `name` marks a secret, by default or by the settings.
    pub(super) fn is_secret(&self, name: &str) -> bool {
        is_secret_name(name) || self.contains(name)
    }

    fn contains(&self, name: &str) -> bool {
        name.len() <= NAME_BYTES_MAX
            && self.folded.iter().any(|one| fold_name(name).eq(one.chars()))
    }

    /// Redacts values from `text` that follow a name which the settings mark as secret.
    pub(super) fn redact<'t>(&self, text: Cow<'t, str>) -> Cow<'t, str> {
        self.forms.redact(text)
    }
}

/// Returns the letters and digits of `name` in lower case.
fn fold_name(name: &str) -> impl Iterator<Item = char> {
    let letters = name.chars().filter(char::is_ascii_alphanumeric);
    letters.map(|letter| letter.to_ascii_lowercase())
}
