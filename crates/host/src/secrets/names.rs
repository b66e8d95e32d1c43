//! What secrets are called here beside what they are called everywhere.

use std::borrow::Cow;

use super::shapes::{self, Form, NAME_BYTES_MAX, named_forms, names_a_secret};

/// Names of secrets, as whoever runs the server says them.
#[derive(Default)]
pub(super) struct Names {
    /// Their letters and digits, small.
    folded: Vec<String>,
    forms: Vec<Form>,
}

impl Names {
    /// These names, whatever their capitals and what stands between their letters.
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

    /// Whether what is called `name` is a secret.
    pub(super) fn are_of(&self, name: &str) -> bool {
        names_a_secret(name) || self.have(name)
    }

    fn have(&self, name: &str) -> bool {
        name.len() <= NAME_BYTES_MAX && self.folded.iter().any(|one| fold(name).eq(one.chars()))
    }

    /// `text` without what it says is called so.
    pub(super) fn without<'t>(&self, text: Cow<'t, str>) -> Cow<'t, str> {
        shapes::without(&self.forms, text)
    }
}

/// The letters and digits of `name`, small.
fn fold(name: &str) -> impl Iterator<Item = char> {
    let letters = name.chars().filter(char::is_ascii_alphanumeric);
    letters.map(|letter| letter.to_ascii_lowercase())
}
