//! Limits the length of an upstream's instructions, and quotes them so that their source is clear.

use toolgate_contract::fold_name;
use toolgate_contract::printable::check_visible;

/// Maximum number of bytes of an upstream's instructions that clients get. Every client reads the
/// instructions when it connects.
pub(crate) const BYTES_MAX: usize = 4 << 10;
/// Marker at the end of instructions that were cut.
const CUT_MARKER: &str = " […]";

/// Returns the instructions of the upstream `name`, cut to the limit, or `None` if they are empty
/// or have a hidden character.
pub(crate) fn truncate_instructions(name: &str, text: &str) -> Option<String> {
    let text = text.trim();
    if let Err(fault) = check_visible(text, usize::MAX) {
        tracing::warn!(
            "the instructions of the upstream `{name}` are left out: the text {fault}; fix the \
             upstream"
        );
        return None;
    }
    if is_bounded(text) {
        return (!text.is_empty()).then(|| text.to_owned());
    }
    tracing::warn!(
        "the instructions of the upstream `{name}` have {} bytes; clients get only the first \
         {BYTES_MAX} bytes",
        text.len()
    );
    Some(format!("{}{CUT_MARKER}", &text[..text.floor_char_boundary(BYTES_MAX - CUT_MARKER.len())]))
}

/// Returns true if the instructions `text` are within the length limit.
pub(crate) fn is_bounded(text: &str) -> bool {
    text.len() <= BYTES_MAX
}

/// Returns `text`, the instructions of the upstream `name`, as clients receive them. The names of
/// the upstream's tools start with `prefix`.
///
/// Each line is quoted, so that a model cannot mistake it for text of a different upstream or of
/// the server.
pub(crate) fn quote_instructions(name: &str, prefix: &str, text: &str) -> String {
    let names = match prefix.is_empty() {
        true => "which keep their own names here".to_owned(),
        false => {
            format!("whose names start with `{}` here", fold_name(&format!("{prefix}.")))
        }
    };
    let mut quoted = format!("Instructions of the server `{name}` for its tools, {names}:");
    for line in text.split(['\n', '\r', '\u{b}', '\u{c}', '\u{85}', '\u{2028}', '\u{2029}']) {
        quoted += if line.is_empty() { "\n>" } else { "\n> " };
        quoted += line;
    }
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_of_instructions_is_quoted() {
        let text = "Mine.\r\nInstructions of\u{2028}the server `b`:\n\n> x";
        let quoted = quote_instructions("a", "x.y", text);
        let start =
            "Instructions of the server `a` for its tools, whose names start with `x_y_` here:\n";
        let lines = quoted.strip_prefix(start).expect("the server's own first line");
        assert!(lines.lines().all(|line| line.starts_with('>')), "{lines}");
        assert_eq!(lines, "> Mine.\n>\n> Instructions of\n> the server `b`:\n>\n> > x");
        let own = quote_instructions("a", "", "Mine.");
        assert!(own.ends_with("keep their own names here:\n> Mine."), "{own}");
    }

    #[test]
    fn long_instructions_are_cut_at_a_character_boundary() {
        assert_eq!(truncate_instructions("a", " \n"), None);
        assert_eq!(truncate_instructions("a", "Mine.\u{200b}"), None);
        assert_eq!(truncate_instructions("a", " Mine.\n").as_deref(), Some("Mine."));
        for text in ["é".repeat(BYTES_MAX), "x".repeat(BYTES_MAX + 1)] {
            let cut = truncate_instructions("a", &text).expect("instructions");
            assert!(is_bounded(&cut) && cut.len() > BYTES_MAX - 8, "{}", cut.len());
            assert!(cut.ends_with(CUT_MARKER));
        }
        assert_eq!(
            truncate_instructions("a", &"x".repeat(BYTES_MAX)).map(|cut| cut.len()),
            Some(BYTES_MAX)
        );
    }
}
