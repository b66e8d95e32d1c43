//! Where the next page of a list begins, as an opaque string.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use toolgate_contract::ToolId;

const MARK: &str = "after:";

/// The cursor of the page after `tool`.
pub(crate) fn write(tool: &ToolId) -> String {
    URL_SAFE_NO_PAD.encode(format!("{MARK}{tool}"))
}

/// The tool a cursor stands after; `None` if no server of ours wrote it.
pub(crate) fn read(cursor: &str) -> Option<ToolId> {
    let bytes = URL_SAFE_NO_PAD.decode(cursor).ok()?;
    ToolId::new(std::str::from_utf8(&bytes).ok()?.strip_prefix(MARK)?)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_cursor_reads_as_what_it_was_written_for(id in "[a-z]{1,8}(\\.[a-z0-9_]{1,8}){1,3}") {
            let tool = ToolId::new(&id).expect("an id");
            prop_assert_eq!(read(&write(&tool)), Some(tool));
        }

        #[test]
        fn no_text_makes_reading_panic(text in ".{0,60}") {
            let _ = read(&text);
        }
    }
}
