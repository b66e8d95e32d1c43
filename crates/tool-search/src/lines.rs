//! Formats a found tool as lines for a model: its name and arguments, its effects, and what it
//! does.

use serde_json::Value;

use crate::signature::signature;

/// Longest sentence of a tool's description that a line shows, in characters. A longer sentence is
/// cut.
const SENTENCE_CHARS_MAX: usize = 160;

/// Returns the text that describes one tool in a search answer: its name with the arguments, and a
/// sentence. `effects` says in one word what the tool may do. A `~` after the arguments marks that
/// information about arguments is missing.
pub fn tool_line(name: &str, effects: &str, description: &str, input_schema: &Value) -> String {
    let arguments = signature(input_schema);
    let mark = if arguments.is_lossy { " ~" } else { "" };
    let sentence = first_sentence(description);
    let indent = if sentence.is_empty() { "" } else { "\n    " };
    format!("  {name}{}{mark}  {effects}{indent}{sentence}", arguments.text)
}

/// Returns the first sentence of a tool's `description` in one line, at most 160 characters.
pub fn first_sentence(description: &str) -> String {
    let paragraph = description.trim().split("\n\n").next().unwrap_or_default();
    let words: Vec<&str> = paragraph.split_whitespace().collect();
    let text = words.join(" ");
    let end = text.match_indices(". ").map(|(at, _)| at + 1).find(|end| is_end(&text[..*end]));
    let sentence = end.map_or(text.as_str(), |end| &text[..end]);
    match sentence.char_indices().nth(SENTENCE_CHARS_MAX) {
        Some((at, _)) => format!("{}…", sentence[..at].trim_end()),
        None => sentence.trim_end_matches('.').to_owned(),
    }
}

/// Returns true if the full stop at the end of `text` ends a sentence and not an abbreviation.
fn is_end(text: &str) -> bool {
    !["e.g.", "i.e.", "etc.", "vs."].iter().any(|short| text.ends_with(short))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_sentence_ends_at_a_full_stop_or_at_its_limit() {
        assert_eq!(first_sentence("Reads a file.\nThen stops."), "Reads a file");
        assert_eq!(first_sentence("Lists units, e.g. metres. More."), "Lists units, e.g. metres");
        assert_eq!(first_sentence(&"a".repeat(200)), "a".repeat(160) + "…");
        assert_eq!(first_sentence(""), "");
    }
}
