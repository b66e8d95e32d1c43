//! Matches names of secrets that the operator configured.

use std::borrow::Cow;

use super::shapes::{self, Form, NAME_BYTES_MAX, named_forms, names_a_secret};

/// Configured names of secrets.
#[derive(Default)]
pub(super) struct Names {
    /// Lower-case letters and digits of each name.
    folded: Vec<String>,
    forms: Vec<Form>,
}

impl Names {
    /// Creates a set of names. Case and separators are ignored.
    pub(super) fn of(names: &[String]) -> Self {
        let folded = names.iter().map(|name| fold(name).collect::<String>());
        let folded: Vec<_> = folded.filter(|name| !name.is_empty()).collect();
        if folded.is_empty() {
            return Self::default();
        }
        let spelled = |name: &String| {
            let letters: Vec<_> = name.chars().map(String::from).collect();
            letters.join("[_.-]?")
        };
        let any = folded.iter().map(spelled).collect::<Vec<_>>().join("|");
        Self { forms: named_forms(&[], r"\b", &format!("(?:{any})")).into(), folded }
    }

    /// Returns true if `name` marks a secret, by default or by configuration.
    pub(super) fn are_of(&self, name: &str) -> bool {
        names_a_secret(name) || self.have(name)
    }

    fn have(&self, name: &str) -> bool {
        name.len() <= NAME_BYTES_MAX && self.folded.iter().any(|one| fold(name).eq(one.chars()))
    }

    /// Redacts values from `text` that follow one of the names.
    pub(super) fn without<'t>(&self, text: Cow<'t, str>) -> Cow<'t, str> {
        shapes::without(&self.forms, text)
    }
}

/// Returns the letters and digits of `name` in lower case.
fn fold(name: &str) -> impl Iterator<Item = char> {
    let letters = name.chars().filter(char::is_ascii_alphanumeric);
    letters.map(|letter| letter.to_ascii_lowercase())
}
