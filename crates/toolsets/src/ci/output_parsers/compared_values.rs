//! The expected and the actual value of a failed assertion, as Node's test runner prints them.

/// The maximum number of characters that a failure's message shows of one compared value.
const VALUE_CHARS_MAX: usize = 300;

/// Two values that a failed assertion compared.
#[derive(Debug, Default)]
pub(super) struct FailedAssertionValues {
    pub(super) expected: String,
    pub(super) actual: String,
}

impl FailedAssertionValues {
    /// Adds the compared values to `message`, unless `message` already shows them.
    pub(super) fn add_to(&self, message: &mut String) {
        let expected = self.expected.trim_end();
        let actual = self.actual.trim_end();
        if expected.is_empty() || actual.is_empty() {
            return;
        }
        let comparisons = ["!==", "!=", "=="].map(|it| format!("{actual} {it} {expected}"));
        let is_shown = message
            .lines()
            .map(str::trim)
            .any(|line| line == "+ actual - expected" || comparisons.iter().any(|it| it == line));
        if is_shown {
            return;
        }
        let start = message.trim_end().len();
        message.truncate(start);
        for (name, value) in [("expected", expected), ("actual", actual)] {
            let is_indented = value.contains('\n') || value.starts_with(' ');
            let space = if is_indented { "\n" } else { " " };
            message.push_str(&format!("\n{name}:{space}{}", shorten(value)));
        }
    }
}

/// Returns the first 300 characters of `value`.
fn shorten(value: &str) -> String {
    match value.char_indices().nth(VALUE_CHARS_MAX) {
        Some((end, _)) => format!("{} …", &value[..end]),
        None => value.to_owned(),
    }
}
