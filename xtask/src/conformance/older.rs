//! A client of an older revision: the suite itself asks for its newest one with sessions, and says
//! which in every request. On the way to the server it is made to say another, which has as many
//! bytes; whatever the server answers reaches it as it is.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
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
        ensure!(revision.len() == SAID.len(), "`{revision}` is longer than `{SAID}`");
        let (server, path) = url
            .strip_prefix("http://")
            .and_then(|url| url.split_once('/'))
            .with_context(|| format!("`{url}` is no address"))?;
        let server: SocketAddr = server.parse()?;
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let url = format!("http://{}/{path}", listener.local_addr()?);
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                thread::spawn(move || {
                    // Whoever is cut off says what is missing.
                    let _ = relay(&client, server, revision);
                });
            }
        });
        Ok(Self { url })
    }
}

fn relay(client: &TcpStream, server: SocketAddr, revision: &str) -> io::Result<()> {
    let server = TcpStream::connect(server)?;
    for stream in [client, &server] {
        stream.set_nodelay(true)?;
    }
    thread::scope(|scope| {
        scope.spawn(|| {
            let _ = io::copy(&mut &server, &mut &*client);
            client.shutdown(Shutdown::Both)
        });
        let asked = said_otherwise(client, &server, revision);
        server.shutdown(Shutdown::Write).and(asked)
    })
}

/// Hands on what comes, with `revision` for each [`SAID`].
fn said_otherwise(mut from: &TcpStream, mut to: &TcpStream, revision: &str) -> io::Result<()> {
    let mut piece = vec![0; 64 << 10];
    let mut held = Vec::new();
    loop {
        let read = from.read(&mut piece)?;
        if read == 0 {
            return to.write_all(&held);
        }
        held.extend_from_slice(&piece[..read]);
        let mut at = 0;
        while let Some(said) = held.get_mut(at..at + SAID.len()) {
            if said == SAID.as_bytes() {
                said.copy_from_slice(revision.as_bytes());
            }
            at += 1;
        }
        // What may be the beginning of one waits for its end; no message ends so.
        let begun = (1..SAID.len()).rev().find(|end| held.ends_with(&SAID.as_bytes()[..*end]));
        let ready = held.len() - begun.unwrap_or_default();
        to.write_all(&held[..ready])?;
        held.drain(..ready);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_for_is_another_revision_however_it_is_cut_and_answers_are_as_they_were() {
        let server = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("http://{}/mcp", server.local_addr().expect("an address"));
        let older = Older::before(&url, "2025-03-26").expect("a relay");
        let at = older.url.trim_start_matches("http://").trim_end_matches("/mcp").to_owned();
        let asking = thread::spawn(move || {
            let mut client = TcpStream::connect(at).expect("it listens");
            for piece in ["a 2025-1", "1-25 b ", "2025-11-25 c 202", "6-07-28"] {
                client.write_all(piece.as_bytes()).expect("it is taken");
                thread::sleep(std::time::Duration::from_millis(20));
            }
            client.shutdown(Shutdown::Write).expect("it is open");
            let mut answer = String::new();
            client.read_to_string(&mut answer).expect("an answer");
            answer
        });
        let (mut served, _) = server.accept().expect("a client");
        let mut asked = String::new();
        served.read_to_string(&mut asked).expect("a request");
        served.write_all(b"2025-11-25").expect("it is read");
        drop(served);
        assert_eq!(asked, "a 2025-03-26 b 2025-03-26 c 2026-07-28");
        assert_eq!(asking.join().expect("no panic"), "2025-11-25");
    }
}
