//! The program in the sandbox that connects `ssh` to a host through the forwarder. It is the
//! executable of sandbox helpers under another name.

use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::process::exit;
use std::time::Duration;

use super::helper_messages::send_with_handle;
use crate::forwarder::FORWARDER_PORT;

/// The file name of the program that connects `ssh` through the forwarder.
pub(super) const CONNECTOR_NAME: &str = "toolgate-connect";

/// The time limit for connecting to the forwarder.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// The time limit of each step of the forwarder's answer. The forwarder itself takes at most 30 s
/// to connect.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
/// The maximum size of the head of an answer, and of the message in its body, in bytes.
const ANSWER_BYTES_MAX: usize = 16 << 10;

/// Connects to the host and port in the arguments, and passes the connection to `ssh`. Prints the
/// reason if that fails. Never returns.
pub(super) fn run_connector() -> ! {
    let mut words = std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned());
    let connected = match (words.next(), words.next()) {
        (Some(host), Some(port)) => connect(&host, &port),
        _ => Err(io::Error::other("it needs a host and a port")),
    };
    let Err(err) = connected else { exit(0) };
    // Nobody may be left to read it.
    let _ = writeln!(io::stderr(), "{err}");
    exit(1)
}

/// Asks the forwarder for a connection to `host` on `port`, and sends the connection to `ssh` on
/// standard output (`ProxyUseFdpass`).
fn connect(host: &str, port: &str) -> io::Result<()> {
    let forwarder = SocketAddr::from((Ipv4Addr::LOCALHOST, FORWARDER_PORT));
    let mut stream = TcpStream::connect_timeout(&forwarder, CONNECT_TIMEOUT)?;
    stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
    let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
    stream.write_all(format!("CONNECT {host}:{port} HTTP/1.1\r\n\r\n").as_bytes())?;
    let head = read_until(&mut stream, b"\r\n\r\n")?;
    if !head.starts_with(b"HTTP/1.1 200 ") {
        let message = read_until(&mut stream, b"\n")?;
        return Err(io::Error::other(String::from_utf8_lossy(&message).trim().to_owned()));
    }
    stream.set_read_timeout(None)?;
    send_with_handle(io::stdout(), &[0], &OwnedFd::from(stream))
}

/// Reads from `stream` up to and including the bytes `end`. Reads no byte beyond them, because the
/// server's first bytes may follow.
fn read_until(stream: &mut TcpStream, end: &[u8]) -> io::Result<Vec<u8>> {
    let mut read = Vec::new();
    while !read.ends_with(end) {
        let mut byte = [0];
        stream.read_exact(&mut byte)?;
        read.extend(byte);
        if read.len() > ANSWER_BYTES_MAX {
            return Err(io::ErrorKind::InvalidData.into());
        }
    }
    Ok(read)
}
