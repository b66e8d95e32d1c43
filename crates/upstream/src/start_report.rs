//! Report on the start of a connection, for people who look for the cause of a failure.

use std::collections::VecDeque;

/// Maximum number of handshake requests in a start report.
const EXCHANGES_MAX: usize = 8;
/// Maximum number of lines of a program's output in a start report. The report contains the last
/// lines.
const LINES_MAX: usize = 5;
/// Maximum size of an output line in a start report, in bytes.
const LINE_BYTES_MAX: usize = 200;
/// Maximum size of an upstream's answer in a start report, in bytes.
const ANSWER_BYTES_MAX: usize = 400;
/// Header that a program writes before each message if it does not write one message per line.
const LENGTH_HEADER: &str = "content-length:";

/// Words in an error message between the reason for a failure and the program's last error output.
pub(crate) const LAST_ERROR_OUTPUT: &str = "; its last error output: ";

/// Splits the reason for a failure into the reason itself and the program's last error output, if
/// it has any.
pub fn split_error_output(reason: &str) -> (&str, Option<&str>) {
    match reason.split_once(LAST_ERROR_OUTPUT) {
        Some((reason, output)) => (reason, Some(output)),
        None => (reason, None),
    }
}

/// Report on the last start of an upstream: the requests, their outcomes, and the program's output
/// besides messages.
#[derive(Debug, Clone, Default)]
pub struct UpstreamStartReport {
    exchanges: Vec<HandshakeExchange>,
    output: VecDeque<String>,
    error_output: VecDeque<String>,
    redirect: Option<String>,
}

/// A request of the handshake with an upstream, and its answer.
#[derive(Debug, Clone)]
struct HandshakeExchange {
    asked: String,
    /// The outcome of the request, once it is known.
    outcome: Option<String>,
}

impl UpstreamStartReport {
    /// Records the handshake request `asked`, or its outcome.
    pub(crate) fn record_exchange(&mut self, asked: &str, outcome: Option<&str>) {
        // The error output has lines of its own in the report.
        let outcome = outcome.map(|text| split_error_output(text).0);
        let outcome = outcome.map(|text| shorten(text.as_bytes(), ANSWER_BYTES_MAX));
        let is_open = |one: &HandshakeExchange| one.asked == asked && one.outcome.is_none();
        match self.exchanges.iter().position(is_open) {
            Some(open) if outcome.is_some() => self.exchanges[open].outcome = outcome,
            _ if self.exchanges.len() < EXCHANGES_MAX => {
                self.exchanges.push(HandshakeExchange { asked: asked.to_owned(), outcome });
            }
            _ => {}
        }
    }

    /// Records a line of the program's output that is not an MCP message. A complete line replaces
    /// its recorded beginning.
    pub(crate) fn record_output(&mut self, line: &[u8]) {
        let line = shorten(line, LINE_BYTES_MAX);
        if self.output.back().is_some_and(|begun| line.starts_with(&**begun)) {
            self.output.pop_back();
        }
        push_line(&mut self.output, line);
    }

    /// Records output of the program on its standard error.
    pub(crate) fn record_error_output(&mut self, output: &[u8]) {
        for line in output.split(|byte| *byte == b'\n') {
            push_line(&mut self.error_output, shorten(line, LINE_BYTES_MAX));
        }
    }

    /// Records that the upstream redirects requests to `location`.
    pub(crate) fn record_redirect(&mut self, location: &str) {
        self.redirect = Some(location.to_owned());
    }

    /// Returns a line for each request of the handshake.
    pub fn exchange_lines(&self) -> Vec<String> {
        let line = |HandshakeExchange { asked, outcome }: &HandshakeExchange| {
            format!("asked {asked}: {}", outcome.as_deref().unwrap_or("no answer"))
        };
        self.exchanges.iter().map(line).collect()
    }

    /// Returns a line for each line of the program's output that is not an MCP message, with
    /// advice.
    pub fn output_lines(&self) -> Vec<String> {
        let mut lines: Vec<_> = self
            .output
            .iter()
            .map(|line| format!("output that is not a message: {line}"))
            .collect();
        if self.output.iter().any(|line| line.to_ascii_lowercase().starts_with(LENGTH_HEADER)) {
            lines.push(
                "the program frames messages with `Content-Length`, but MCP over stdio has one \
                 message per \
                 line"
                    .to_owned(),
            );
        }
        lines
    }

    /// Returns the last lines of the program's error output.
    pub fn error_output(&self) -> impl Iterator<Item = String> {
        self.error_output.iter().cloned()
    }

    /// Returns a line about the redirect to another URL, if there was one.
    pub fn redirect_line(&self) -> Option<String> {
        let location = self.redirect.as_ref()?;
        Some(format!("redirected to `{location}`: set this address as `url`"))
    }
}

/// Returns the beginning of `text`, at most `bytes_max` bytes.
fn shorten(text: &[u8], bytes_max: usize) -> String {
    let shown = String::from_utf8_lossy(&text[..text.len().min(bytes_max)]);
    shown.trim_end().to_owned()
}

/// Adds a line to `lines` unless the line is blank. Removes the oldest line if there are too many.
fn push_line(lines: &mut VecDeque<String>, line: String) {
    if line.is_empty() {
        return;
    }
    if lines.len() == LINES_MAX {
        lines.pop_front();
    }
    lines.push_back(line);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exchange_has_no_answer_until_its_outcome_is_recorded() {
        let mut report = UpstreamStartReport::default();
        report.record_exchange("`server/discover`", None);
        report.record_exchange("`initialize`", None);
        let ended = format!("it refused{LAST_ERROR_OUTPUT}no key");
        report.record_exchange("`initialize`", Some(&ended));
        assert_eq!(
            report.exchange_lines(),
            ["asked `server/discover`: no answer", "asked `initialize`: it refused"]
        );
    }

    #[test]
    fn the_last_lines_of_output_are_kept_without_their_beginnings() {
        let mut report = UpstreamStartReport::default();
        for line in
            ["one", "Pass", "Password:", "Password: ***", "", "three", "four", "five", "six"]
        {
            report.record_output(line.as_bytes());
        }
        let shown: Vec<_> = report.output.iter().map(String::as_str).collect();
        assert_eq!(shown, ["Password: ***", "three", "four", "five", "six"]);
        report.record_error_output(b"a\r\n\nb\n");
        assert_eq!(report.error_output().collect::<Vec<_>>(), ["a", "b"]);
    }

    #[test]
    fn another_framing_is_named() {
        let mut report = UpstreamStartReport::default();
        report.record_output(b"Content-Length: 52\r");
        assert_eq!(report.output_lines()[0], "output that is not a message: Content-Length: 52");
        assert!(report.output_lines()[1].contains("one message per line"));
        report.record_output("é".repeat(500).as_bytes());
        assert!(report.output_lines()[1].len() < 300);
    }
}
