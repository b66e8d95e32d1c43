//! A client of an older revision: the suite itself asks for its newest one with sessions, and says
//! which in every request. On the way to the server it is made to say another, which has as many
//! bytes, and where the server is instead of where it came by; whatever the server answers reaches
//! it as it is.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;

use anyhow::{Context, ensure};

/// What the suite asks for.
pub(super) const SAID: &str = "2025-11-25";

/// Where the suite's client speaks another revision than its own. It listens for as long as the
/// program runs.
pub(super) struct Older {
    pub(super) url: String,
}

impl Older {
    /// Before the server at `url`, in `revision`.
    pub(super) fn before(url: &str, revision: &'static str) -> anyhow::Result<Self> {
        let (server, path) = url
            .strip_prefix("http://")
            .and_then(|url| url.split_once('/'))
            .with_context(|| format!("`{url}` is not an address"))?;
        let server: SocketAddr = server.parse()?;
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let here = listener.local_addr()?.to_string();
        let url = format!("http://{here}/{path}");
        let instead = [(SAID.to_owned(), revision.to_owned()), (here, server.to_string())];
        let sound = instead.iter().all(|(original, other)| original.len() == other.len());
        ensure!(sound, "a replacement has another length: {instead:?}");
        let instead = Arc::new(instead);
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let instead = instead.clone();
                thread::spawn(move || {
                    // Whoever is cut off says what is missing.
                    let _ = relay(&client, server, &*instead);
                });
            }
        });
        Ok(Self { url })
    }
}

/// What is said instead of what, of as many bytes.
type Instead = [(String, String)];

fn relay(client: &TcpStream, server: SocketAddr, instead: &Instead) -> io::Result<()> {
    let server = TcpStream::connect(server)?;
    for stream in [client, &server] {
        stream.set_nodelay(true)?;
    }
    thread::scope(|scope| {
        scope.spawn(|| {
            let _ = io::copy(&mut &server, &mut &*client);
            client.shutdown(Shutdown::Both)
        });
        let copied = said_otherwise(client, &server, instead);
        server.shutdown(Shutdown::Write).and(copied)
    })
}

/// Hands on what comes, with what is said `instead`.
fn said_otherwise(mut from: &TcpStream, mut to: &TcpStream, instead: &Instead) -> io::Result<()> {
    let mut piece = vec![0; 64 << 10];
    let mut buffer = Vec::new();
    loop {
        let read = from.read(&mut piece)?;
        if read == 0 {
            return to.write_all(&buffer);
        }
        buffer.extend_from_slice(&piece[..read]);
        for (original, other) in instead {
            let mut at = 0;
            while let Some(place) = buffer.get_mut(at..at + original.len()) {
                if place == original.as_bytes() {
                    place.copy_from_slice(other.as_bytes());
                }
                at += 1;
            }
        }
        // What may be the beginning of one waits for its end; no message ends so.
        let begins = |end: &usize| {
            instead.iter().any(|(original, _)| {
                original.as_bytes().get(..*end).is_some_and(|begun| buffer.ends_with(begun))
            })
        };
        let longest = instead.iter().map(|(original, _)| original.len()).max().unwrap_or_default();
        let begun = (1..longest).rev().find(begins);
        let ready = buffer.len() - begun.unwrap_or_default();
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
        let older = Older::before(&url, "2025-03-26").expect("a relay");
        let at = older.url.trim_start_matches("http://").trim_end_matches("/mcp").to_owned();
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
