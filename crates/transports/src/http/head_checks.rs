//! Rejects ambiguous request heads, which could be used for request smuggling.
//!
//! A proxy and this server must agree on the end of each request. Otherwise a request can hide
//! inside another. hyper accepts lines without CR, and a length together with chunked encoding,
//! which other servers read differently. Therefore this module checks the bytes before hyper parses
//! them.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};

use http::HeaderMap;
use http::header::{TRANSFER_ENCODING, UPGRADE};
use memchr::memchr;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Reason why a request head on the connection is ambiguous, once one has been found.
pub(super) type AmbiguousRequestHeadReason = Arc<OnceLock<&'static str>>;

/// Connection whose HTTP request heads are checked for ambiguities while they are read.
pub(crate) struct RequestHeadCheckedStream<S> {
    stream: S,
    checker: RequestHeadChecker,
    doubt: AmbiguousRequestHeadReason,
}

impl<S> RequestHeadCheckedStream<S> {
    pub(super) fn new(stream: S, doubt: AmbiguousRequestHeadReason) -> Self {
        Self { stream, checker: RequestHeadChecker::default(), doubt }
    }

    pub(super) fn into_inner(self) -> S {
        self.stream
    }
}

/// Checker of the request heads on a connection, with its position in the stream of requests.
#[derive(Debug, Default)]
struct RequestHeadChecker {
    position: HttpFramingState,
    /// Received part of the current line of a request head.
    line: Vec<u8>,
    head: RequestHeadFields,
}

/// Position in the received bytes of a connection: in a request head or in a body.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum HttpFramingState {
    /// The position is before or inside a request head.
    #[default]
    Head,
    /// The position is in a request body. The value is the number of bytes that remain.
    Body(u64),
    /// The position is in the last request of the connection, after which nothing is checked.
    Last,
}

/// Header fields of the current request that decide about the length of its body.
#[derive(Debug, Default)]
struct RequestHeadFields {
    bytes: usize,
    has_begun: bool,
    length: Option<u64>,
    is_chunked: bool,
    requests_websocket: bool,
}

/// Largest request head that is checked, in bytes. hyper rejects heads above 64 KiB.
const HEAD_BYTES_MAX: usize = 128 << 10;

impl RequestHeadChecker {
    /// Checks the request heads in the next `bytes` of the connection.
    ///
    /// # Errors
    /// The problem that makes a request head ambiguous.
    fn check_bytes(&mut self, mut bytes: &[u8]) -> Result<(), &'static str> {
        while !bytes.is_empty() {
            match &mut self.position {
                HttpFramingState::Last => return Ok(()),
                HttpFramingState::Body(left) => {
                    let taken = usize::try_from(*left).unwrap_or(usize::MAX).min(bytes.len());
                    *left -= taken as u64;
                    bytes = &bytes[taken..];
                    if *left == 0 {
                        self.position = HttpFramingState::Head;
                    }
                }
                HttpFramingState::Head => {
                    let (end, is_whole) = match memchr(b'\n', bytes) {
                        Some(at) => (at + 1, true),
                        None => (bytes.len(), false),
                    };
                    self.line.extend_from_slice(&bytes[..end]);
                    bytes = &bytes[end..];
                    self.head.bytes += end;
                    if self.head.bytes > HEAD_BYTES_MAX {
                        self.stop();
                    } else if is_whole {
                        let mut line = std::mem::take(&mut self.line);
                        self.read_line(&line)?;
                        line.clear();
                        self.line = line;
                    }
                }
            }
        }
        Ok(())
    }

    fn read_line(&mut self, line: &[u8]) -> Result<(), &'static str> {
        let Some(line) = line.strip_suffix(b"\r\n") else {
            return Err("a line of the request head ends without CR");
        };
        if line.contains(&b'\r') {
            return Err("a line of the request head has a CR inside");
        }
        match (self.head.has_begun, line.is_empty()) {
            // Empty lines may precede a request.
            (false, true) => Ok(()),
            (false, false) => {
                self.head.has_begun = true;
                Ok(())
            }
            (true, true) => {
                self.position = std::mem::take(&mut self.head).finish()?;
                Ok(())
            }
            (true, false) => self.head.read_field(line),
        }
    }

    /// Makes the checker accept all further bytes of this connection unchecked.
    fn stop(&mut self) {
        *self = Self { position: HttpFramingState::Last, ..Self::default() };
    }
}

/// Returns the problem in the request heads of a connection that starts with `bytes`, if there is
/// one.
pub(super) fn head_problem(bytes: &[u8]) -> Option<&'static str> {
    RequestHeadChecker::default().check_bytes(bytes).err()
}

impl RequestHeadFields {
    fn read_field(&mut self, line: &[u8]) -> Result<(), &'static str> {
        if matches!(line[0], b' ' | b'\t') {
            return Err("a header continues on a second line");
        }
        let Some(colon) = memchr(b':', line) else {
            return Err("a line of the request head has no colon");
        };
        let name = &line[..colon];
        let value = line[colon + 1..].trim_ascii();
        if name.eq_ignore_ascii_case(b"content-length") {
            let digits = str::from_utf8(value).ok();
            let digits = digits.filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
            let Some(length) = digits.and_then(|digits| digits.parse().ok()) else {
                return Err("the Content-Length is not a number");
            };
            if self.length.replace(length).is_some() {
                return Err("the Content-Length is repeated");
            }
        } else if name.eq_ignore_ascii_case(b"transfer-encoding") {
            if self.is_chunked || !value.eq_ignore_ascii_case(b"chunked") {
                return Err("the only supported Transfer-Encoding is `chunked`");
            }
            self.is_chunked = true;
        } else if name.eq_ignore_ascii_case(b"upgrade") {
            self.requests_websocket |= names_websocket(value);
        }
        Ok(())
    }

    /// Returns what follows the request head on the connection, such as a body of a known length.
    ///
    /// # Errors
    /// The problem with the head, if two header fields contradict each other about the length of
    /// the body.
    fn finish(self) -> Result<HttpFramingState, &'static str> {
        match (self.length, self.is_chunked, self.requests_websocket) {
            (Some(_), true, _) => {
                Err("the request has both a Content-Length and a Transfer-Encoding")
            }
            (_, true, _) | (_, _, true) => Ok(HttpFramingState::Last),
            (Some(length @ 1..), false, false) => Ok(HttpFramingState::Body(length)),
            (Some(0) | None, false, false) => Ok(HttpFramingState::Head),
        }
    }
}

/// Returns true if a request with these headers must be the last request of its connection.
pub(super) fn is_last_request(headers: &HeaderMap) -> bool {
    headers.contains_key(TRANSFER_ENCODING)
        || headers.get_all(UPGRADE).iter().any(|value| names_websocket(value.as_bytes()))
}

fn names_websocket(upgrade: &[u8]) -> bool {
    upgrade.to_ascii_lowercase().windows(9).any(|word| word == b"websocket")
}

impl<S: AsyncRead + Unpin> AsyncRead for RequestHeadCheckedStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buffer))?;
        if let Err(doubt) = self.checker.check_bytes(&buffer.filled()[before..]) {
            self.checker.stop();
            // The first reason is kept.
            let _ = self.doubt.set(doubt);
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for RequestHeadCheckedStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// Checks that the verdict on the requests in `bytes` does not depend on how the bytes are split,
/// and that lengths are unambiguous. Used by fuzzing.
#[cfg(any(fuzzing, test))]
pub(crate) fn check(bytes: &[u8]) {
    let position_after = |size: usize| {
        let mut checker = RequestHeadChecker::default();
        bytes
            .chunks(size)
            .try_for_each(|piece| checker.check_bytes(piece))
            .map(|()| checker.position)
    };
    let whole = position_after(bytes.len().max(1));
    for size in [1, 2, 7] {
        assert_eq!(position_after(size), whole, "by {size}");
    }
    if whole.is_err() {
        return;
    }
    // Parse the first head in a different way.
    let begin = bytes.chunks(2).take_while(|pair| *pair == b"\r\n").count() * 2;
    let rest = &bytes[begin..];
    let Some(end) = rest.windows(4).position(|four| four == b"\r\n\r\n") else { return };
    let head = String::from_utf8_lossy(&rest[..end]);
    let fields: Vec<_> =
        head.split("\r\n").skip(1).filter_map(|line| line.split_once(':')).collect();
    let count =
        |name: &str| fields.iter().filter(|field| field.0.eq_ignore_ascii_case(name)).count();
    assert!(
        !head.replace("\r\n", "").contains(['\r', '\n']),
        "{head:?} has an incomplete line ending"
    );
    assert!(count("content-length") + count("transfer-encoding") <= 1, "{head:?} has two lengths");
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    /// Checks the HTTP head `text`, which arrives in pieces of `size` bytes. Returns the parser's
    /// position after `text`, or the problem.
    fn position_after(text: &str, size: usize) -> Result<HttpFramingState, &'static str> {
        let mut checker = RequestHeadChecker::default();
        text.as_bytes().chunks(size).try_for_each(|piece| checker.check_bytes(piece))?;
        Ok(checker.position)
    }

    const GET: &str = "GET / HTTP/1.1\r\nhost: a\r\n\r\n";

    #[test]
    fn the_start_of_the_next_request_is_found() {
        for (text, place) in [
            (GET, HttpFramingState::Head),
            ("\r\n\r\nGET / HTTP/1.1\r\n\r\n", HttpFramingState::Head),
            (
                "POST / HTTP/1.1\r\nContent-Length: 4\r\n\r\n\n\n\n\nGET / HTTP",
                HttpFramingState::Head,
            ),
            ("POST / HTTP/1.1\r\ncontent-length:4 \r\n\r\n\n\n", HttpFramingState::Body(2)),
            ("POST / HTTP/1.1\r\nTransfer-Encoding: Chunked\r\n\r\n1\nx", HttpFramingState::Last),
            ("GET / HTTP/1.1\r\nupgrade: websocket\r\n\r\n\n\n", HttpFramingState::Last),
        ] {
            for size in [1, 3, text.len()] {
                assert_eq!(position_after(text, size), Ok(place), "{text:?} by {size}");
            }
        }
    }

    #[test]
    fn an_ambiguous_head_is_refused() {
        for head in [
            "GET / HTTP/1.1\nhost: a\n\n",
            "GET / HTTP/1.1\r\nhost: a\n\r\n",
            "GET / HTTP/1.1\r\nhost: a\r\n\n",
            "\nGET / HTTP/1.1\r\n\r\n",
            "GET / HTTP/1.1\r\nhost: a\rb: c\r\n\r\n",
            "GET / HTTP/1.1\r\nhost: a\r\n b\r\n\r\n",
            "POST / HTTP/1.1\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n",
            "POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\ncontent-length: 5\r\n\r\n",
            "POST / HTTP/1.1\r\ncontent-length: 5\r\ncontent-length: 5\r\n\r\n",
            "POST / HTTP/1.1\r\ncontent-length: 5, 5\r\n\r\n",
            "POST / HTTP/1.1\r\ncontent-length: +5\r\n\r\n",
            "POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n",
            "POST / HTTP/1.1\r\ntransfer-encoding: chunked, chunked\r\n\r\n",
            "POST / HTTP/1.1\r\ntransfer-encoding: x\r\n\r\n",
        ] {
            let after = format!("{GET}{head}");
            for text in [head, &after] {
                for size in [1, 2, text.len()] {
                    assert!(position_after(text, size).is_err(), "{text:?} by {size}");
                }
            }
        }
    }

    #[test]
    fn an_endless_head_is_not_buffered() {
        let mut checker = RequestHeadChecker::default();
        for _ in 0..1000 {
            checker.check_bytes(&[b'a'; 1 << 10]).unwrap();
        }
        assert_eq!(checker.position, HttpFramingState::Last);
        assert_eq!(checker.line.capacity(), 0);
    }

    proptest! {
        #[test]
        fn splitting_the_bytes_does_not_change_the_verdict(
            words in vec(prop::sample::select(&[
                "GET / HTTP/1.1", "\r\n", "\n", "\r", "content-length: 3", "content-length: 0",
                "transfer-encoding: chunked", "upgrade: a", "x: y", "abc", " ", ":",
            ][..]), 0..40),
            size in 1_usize..9,
        ) {
            let text = words.concat();
            prop_assert_eq!(position_after(&text, size), position_after(&text, text.len().max(1)));
        }
    }
}
