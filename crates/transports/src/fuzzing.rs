//! Fuzz targets for raw bytes from the network.

use std::sync::Mutex;

use futures_util::FutureExt;
use toolgate_contract::lock_mutex;

use crate::http;
use crate::stdio::{StdioInputLine, read_lines};

/// Function that fuzzes this crate with one input, and panics if it finds a bug.
type TransportFuzzTarget = fn(&[u8]);

/// All fuzz targets of this crate, by the name of their folder in `fuzz/corpus`.
pub const TARGETS: &[(&str, TransportFuzzTarget)] = &[("http_heads", http_heads), ("lines", lines)];

#[cfg(test)]
#[path = "../../../fuzz/src/kept_inputs.rs"]
mod kept_inputs;

/// Fuzzes the checks of HTTP request heads with the bytes of one connection.
fn http_heads(bytes: &[u8]) {
    http::check_heads(bytes);
}

/// Fuzzes line reading: the lines must be those of a simple split of the whole input at `\n`.
fn lines(bytes: &[u8]) {
    const LINE_BYTES_MAX: usize = 64;
    let lines_read = Mutex::new(Vec::new());
    let all = || lock_mutex(&lines_read);
    let take = |line| {
        all().push(line);
        std::future::ready(())
    };
    let read = read_lines(bytes, LINE_BYTES_MAX, take).now_or_never();
    read.expect("bytes in memory never wait").expect("bytes in memory never fail");
    // A line with only a byte order mark is empty, too.
    let is_empty = |line: &[u8]| {
        let text = line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line);
        text.iter().all(u8::is_ascii_whitespace)
    };
    let mut model = Vec::new();
    for line in bytes.split(|byte| *byte == b'\n') {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        match line.len() > LINE_BYTES_MAX {
            true => model.push(None),
            false if is_empty(line) => {}
            false => model.push(Some(line)),
        }
    }
    let lines_read = all();
    let lines_read = lines_read.iter().map(|line| match line {
        StdioInputLine::Whole(line) => Some(&line[..]),
        StdioInputLine::TooLong => None,
    });
    assert_eq!(lines_read.collect::<Vec<_>>(), model);
}
