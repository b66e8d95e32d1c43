//! Parses a text, and gives up if it takes too much time or memory.

use std::borrow::Cow;
use std::ops::ControlFlow;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use tree_sitter::{ParseOptions, ParseState, Parser, Tree};

use crate::grammars::{IdentifierCharset, LoadedGrammar};
use crate::memory::ParseMemoryCounter;

/// Maximum number of progress checks of a parse before it is abandoned, about a second of work. A
/// megabyte of handwritten code needs some 7,000 checks. The limit is a count instead of a time, so
/// that the chunks of a text do not depend on the load of the machine.
const PROGRESS_CHECKS_MAX: usize = 25_000;
/// Maximum memory of a parse, in bytes. A megabyte of handwritten code needs some 45 MiB.
const MEMORY_MAX: usize = 64 << 20;
/// Memory that the parse of an empty text may use, in bytes.
const MEMORY_BASE: usize = 8 << 20;
/// Additional memory that a parse may use for each byte of text, in bytes.
const MEMORY_PER_BYTE: usize = 128;
/// Maximum processor time of a parse. Some grammars do much work between two progress checks.
const TIME_MAX: Duration = Duration::from_millis(1500);

/// Parses the code `text`, or returns `None` if the parse exceeds a limit.
pub(super) fn parse(
    text: &str,
    grammar: &LoadedGrammar,
    memory: &ParseMemoryCounter,
) -> Option<Tree> {
    let mut parser = Parser::new();
    parser.set_language(&grammar.language).ok()?;
    let memory_max = MEMORY_MAX.min(MEMORY_BASE + MEMORY_PER_BYTE * text.len());
    let begun = thread_cpu_time();
    let mut checks = 0;
    let mut watch = |_: &ParseState| {
        checks += 1;
        let is_over = checks > PROGRESS_CHECKS_MAX
            || memory.bytes_held() > memory_max
            || thread_cpu_time().saturating_sub(begun) > TIME_MAX;
        if is_over { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    let options = ParseOptions::new().progress_callback(&mut watch);
    let read_as = match grammar.rules.letters {
        IdentifierCharset::Ascii if !text.is_ascii() => Cow::Owned(to_ascii(text)),
        IdentifierCharset::All | IdentifierCharset::Ascii => Cow::Borrowed(text.as_bytes()),
    };
    let mut read = |at: usize, _| read_as.get(at..).unwrap_or_default();
    parser.parse_with_options(&mut read, None, Some(options))
}

/// Replaces each byte of `text` outside of ASCII with a letter, for grammars that accept ASCII
/// letters only.
fn to_ascii(text: &str) -> Vec<u8> {
    text.bytes().map(|byte| if byte.is_ascii() { byte } else { b'x' }).collect()
}

/// Returns the processor time of this thread.
fn thread_cpu_time() -> Duration {
    clock_gettime(ClockId::ThreadCPUTime).try_into().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_parse_that_needs_too_much_memory_is_stopped_and_frees_it() {
        for text in [
            format!("{}\n{}", "<".repeat(300), format!("{}\n", "a<".repeat(100)).repeat(400)),
            "template<class T> a<b<c<d<e<f<g(((((((\n".repeat(2_000),
        ] {
            let grammar = LoadedGrammar::for_language("cpp").expect("a grammar");
            let memory = ParseMemoryCounter::start(text.len());
            assert!(parse(&text, grammar, &memory).is_none(), "{}", &text[..40]);
            let most = MEMORY_BASE + MEMORY_PER_BYTE * text.len();
            assert!(
                (most..most + most / 4).contains(&memory.peak_bytes()),
                "{}",
                memory.peak_bytes()
            );
            assert_eq!(memory.bytes_held(), 0);
        }
    }

    #[test]
    fn a_letter_outside_the_tables_of_a_scanner_does_not_crash() {
        // Each of these letters alone could crash the process.
        for letter in ('\u{80}'..=char::MAX).step_by(257) {
            let text = format!("echo {{{letter}..{letter}}}\nf() {{ echo; }}\n");
            let memory = ParseMemoryCounter::start(text.len());
            let tree =
                parse(&text, LoadedGrammar::for_language("shell").expect("a grammar"), &memory);
            assert_eq!(tree.expect("a tree").root_node().end_byte(), text.len(), "{letter:?}");
        }
    }

    #[test]
    fn the_memory_of_a_tree_is_counted_until_it_is_dropped() {
        let text = "fn a() -> u8 {\n    b(c, d)\n}\n".repeat(1_000);
        let memory = ParseMemoryCounter::start(text.len());
        let tree = parse(&text, LoadedGrammar::for_language("rust").expect("a grammar"), &memory);
        assert!(tree.is_some() && memory.bytes_held() > text.len(), "{}", memory.bytes_held());
        drop(tree);
        assert_eq!(memory.bytes_held(), 0);
    }

    #[test]
    fn a_parse_that_takes_too_long_is_stopped() {
        let text = "cat <<A$(\n".repeat(120_000);
        let begun = thread_cpu_time();
        let memory = ParseMemoryCounter::start(text.len());
        assert!(
            parse(&text, LoadedGrammar::for_language("shell").expect("a grammar"), &memory)
                .is_none()
        );
        let took = thread_cpu_time().saturating_sub(begun);
        assert!(took < TIME_MAX * 2, "{took:?}");
    }
}
