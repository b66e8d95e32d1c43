//! Relay that turns the suite into a client of an older MCP revision.
//!
//! The suite requests its newest revision with sessions, and names the revision in every request.
//! The relay replaces the revision by an older one of the same length, and its own address by that
//! of the server. Responses pass unchanged.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;

use anyhow::{Context, ensure};

/// MCP revision that the suite requests.
pub(super) const SUITE_REVISION: &str = "2025-11-25";

/// Relay to one server in one older MCP revision. It listens until the program exits.
pub(super) struct OlderRevisionRelay {
    pub(super) url: String,
}

impl OlderRevisionRelay {
    /// Starts a relay to the server at `url` that replaces the suite's revision by `revision`.
    pub(super) fn start(url: &str, revision: &'static str) -> anyhow::Result<Self> {
        let (server, path) = url
            .strip_prefix("http://")
            .and_then(|url| url.split_once('/'))
            .with_context(|| format!("`{url}` is not an address"))?;
        let server: SocketAddr = server.parse()?;
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let here = listener.local_addr()?.to_string();
        let url = format!("http://{here}/{path}");
        let replacements =
            [(SUITE_REVISION.to_owned(), revision.to_owned()), (here, server.to_string())];
        let is_same_length =
            replacements.iter().all(|(original, other)| original.len() == other.len());
        ensure!(is_same_length, "a replacement has another length: {replacements:?}");
        let replacements = Arc::new(replacements);
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let replacements = replacements.clone();
                thread::spawn(move || {
                    // A suite whose connection breaks reports the failed check itself.
                    let _ = relay(&client, server, &*replacements);
                });
            }
        });
        Ok(Self { url })
    }
}

/// Pairs of an original text and its replacement, both of the same length.
type TextReplacements = [(String, String)];

fn relay(
    client: &TcpStream,
    server: SocketAddr,
    replacements: &TextReplacements,
) -> io::Result<()> {
    let server = TcpStream::connect(server)?;
    for stream in [client, &server] {
        stream.set_nodelay(true)?;
    }
    thread::scope(|scope| {
        scope.spawn(|| {
            let _ = io::copy(&mut &server, &mut &*client);
            client.shutdown(Shutdown::Both)
        });
        let copied = copy_with_replacements(client, &server, replacements);
        server.shutdown(Shutdown::Write).and(copied)
    })
}

/// Copies bytes from `from` to `to`, and replaces each original text in `replacements`.
fn copy_with_replacements(
    mut from: &TcpStream,
    mut to: &TcpStream,
    replacements: &TextReplacements,
) -> io::Result<()> {
    let mut chunk = vec![0; 64 << 10];
    let mut buffer = Vec::new();
    loop {
        let read = from.read(&mut chunk)?;
        if read == 0 {
            return to.write_all(&buffer);
        }
        buffer.extend_from_slice(&chunk[..read]);
        for (original, other) in replacements {
            let mut at = 0;
            while let Some(place) = buffer.get_mut(at..at + original.len()) {
                if place == original.as_bytes() {
                    place.copy_from_slice(other.as_bytes());
                }
                at += 1;
            }
        }
        // Bytes that may begin an original text wait for the rest of it. No message ends with such
        // bytes.
        let ends_with_start = |end: &usize| {
            replacements.iter().any(|(original, _)| {
                original.as_bytes().get(..*end).is_some_and(|start| buffer.ends_with(start))
            })
        };
        let longest =
            replacements.iter().map(|(original, _)| original.len()).max().unwrap_or_default();
        let start_length = (1..longest).rev().find(ends_with_start);
        let ready = buffer.len() - start_length.unwrap_or_default();
        to.write_all(&buffer[..ready])?;
        buffer.drain(..ready);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_revision_of_requests_is_replaced_across_pieces_and_answers_are_unchanged() {
        let server = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("http://{}/mcp", server.local_addr().expect("an address"));
        let relay = OlderRevisionRelay::start(&url, "2025-03-26").expect("a relay");
        let at = relay.url.trim_start_matches("http://").trim_end_matches("/mcp").to_owned();
        let asking = thread::spawn(move || {
            let mut client = TcpStream::connect(&at).expect("it listens");
            let here = format!("2025-11-25 c {at} 202");
            for piece in ["a 2025-1", "1-25 b ", &here, "6-07-28"] {
                client.write_all(piece.as_bytes()).expect("it is taken");
                thread::sleep(std::time::Duration::from_millis(20));
            }
            client.shutdown(Shutdown::Write).expect("it is open");
            let mut answer = String::new();
            client.read_to_string(&mut answer).expect("an answer");
            answer
        });
        let (mut served, _) = server.accept().expect("a client");
        let mut request = String::new();
        served.read_to_string(&mut request).expect("a request");
        served.write_all(b"2025-11-25").expect("it is read");
        drop(served);
        let there = server.local_addr().expect("an address");
        assert_eq!(request, format!("a 2025-03-26 b 2025-03-26 c {there} 2026-07-28"));
        assert_eq!(asking.join().expect("no panic"), "2025-11-25");
    }
}
