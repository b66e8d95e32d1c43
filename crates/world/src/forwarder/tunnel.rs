//! A tunnel that a program opened with `CONNECT`: checks what the program sends first, and then
//! relays bytes in both directions.

use std::io;
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::rustls::server::Acceptor;
use toolgate_net::normalize_host;

use super::gate::{ForwarderDestination, ForwarderHostPolicy, TunnelUse};
use super::relay::relay;

/// Maximum number of bytes that are read to recognize the protocol in a tunnel.
const START_BYTES_MAX: usize = 64 << 10;
/// The size of the buffer into which the first bytes of a client are read, in bytes.
const START_READ_BYTES: usize = 16 << 10;
/// The longest wait for a program to begin the TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(60);
/// The first byte of a TLS record that carries a handshake message.
const TLS_HANDSHAKE: u8 = 0x16;
/// The first bytes of TLS records without handshake messages: a change of the cipher, an alert,
/// data, and a heartbeat.
const TLS_OTHER_RECORDS: [u8; 4] = [0x14, 0x15, 0x17, 0x18];
/// The second byte of a TLS record: the major version of the protocol.
const TLS_MAJOR_VERSION: u8 = 3;
/// The first bytes that an SSH client sends (RFC 4253).
const SSH_START: &[u8] = b"SSH-2.0-";

/// The protocol that a program speaks in a tunnel.
#[derive(Debug, PartialEq, Eq)]
enum TunnelProtocol {
    /// TLS, with the server name that the program asks for (SNI).
    Tls(Option<String>),
    /// TLS handshake that the forwarder cannot parse.
    BrokenTls,
    /// HTTP without TLS.
    Http,
    Ssh,
    Other,
}

/// A detector of the protocol in a tunnel, which looks at the first bytes of the client.
struct TunnelProtocolDetector {
    read: Vec<u8>,
    tls: Acceptor,
}

/// Runs the tunnel between `client` and `server` until both sides have closed it. `first` are the
/// bytes of the client that have already been read.
///
/// The client must begin TLS with the name of `target`. If a rule names the port explicitly, the
/// client may also speak any other protocol except plain HTTP, because the proxy checks each HTTP
/// request. To an SSH server that the settings name, the client must speak SSH.
pub(super) async fn run_tunnel(
    mut client: TcpStream,
    first: Bytes,
    mut server: TcpStream,
    target: &ForwarderDestination,
    gate: &ForwarderHostPolicy,
) {
    let (mut from_client, mut to_client) = client.split();
    let (mut from_server, mut to_server) = server.split();
    let allowed = gate.tunnel_use(target);
    let upward = async {
        let mut reader = TunnelProtocolDetector { read: Vec::new(), tls: Acceptor::default() };
        let reading = reader.recognize(&first, &mut from_client);
        let protocol = match allowed {
            // The server may speak first, so the client may wait for long.
            TunnelUse::Any => reading.await?,
            TunnelUse::Tls | TunnelUse::Ssh => timeout(HANDSHAKE_TIMEOUT, reading).await??,
        };
        if let Some(why) = refusal(&protocol, target, allowed) {
            gate.refuse(target, &why);
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        to_server.write_all(&reader.read).await?;
        relay(&mut from_client, &mut to_server).await
    };
    let downward = relay(&mut from_server, &mut to_client);
    // Both ends see the closed connection, and a refusal has been counted.
    let _: io::Result<_> = tokio::try_join!(upward, downward);
}

/// Waits until `client` begins TLS with the name of `target`. Returns the bytes that `client` has
/// sent, of which `first` were read before. Returns `None` if `client` sends anything else, which
/// counts as a refusal.
pub(super) async fn read_handshake(
    client: &mut TcpStream,
    first: &[u8],
    target: &ForwarderDestination,
    gate: &ForwarderHostPolicy,
) -> Option<Vec<u8>> {
    let mut reader = TunnelProtocolDetector { read: Vec::new(), tls: Acceptor::default() };
    let reading = timeout(HANDSHAKE_TIMEOUT, reader.recognize(first, client));
    let protocol = reading.await.ok()?.ok()?;
    if let Some(why) = refusal(&protocol, target, TunnelUse::Tls) {
        gate.refuse(target, &why);
        return None;
    }
    Some(reader.read)
}

/// Returns the reason why `protocol` is not allowed in a tunnel to `target`. Returns `None` if the
/// protocol is allowed.
fn refusal(
    protocol: &TunnelProtocol,
    target: &ForwarderDestination,
    allowed: TunnelUse,
) -> Option<String> {
    if allowed == TunnelUse::Ssh {
        let is_ssh = *protocol == TunnelProtocol::Ssh;
        return (!is_ssh).then(|| "the tunnel to an SSH server does not carry SSH".to_owned());
    }
    let host = &target.host;
    let is_address = host.parse::<std::net::IpAddr>().is_ok();
    match protocol {
        TunnelProtocol::Tls(Some(name)) if normalize_host(name).as_ref() == Some(host) => None,
        TunnelProtocol::Tls(Some(name)) => {
            Some(format!("the TLS handshake asks for `{}`", name.escape_default()))
        }
        // Clients send no address as a server name (RFC 6066).
        TunnelProtocol::Tls(None) if is_address => None,
        TunnelProtocol::Tls(None) => Some("the TLS handshake names no server".to_owned()),
        TunnelProtocol::BrokenTls => Some("the TLS handshake is invalid".to_owned()),
        TunnelProtocol::Http => Some(
            "toolgate cannot check plain HTTP in a CONNECT tunnel; send the http:// URL to the \
             proxy"
                .to_owned(),
        ),
        TunnelProtocol::Ssh | TunnelProtocol::Other if allowed == TunnelUse::Any => None,
        TunnelProtocol::Ssh | TunnelProtocol::Other => Some(
            "the tunnel does not use TLS; to allow another protocol, use a rule that names the \
             host and port, and remove the paths and credentials of the host"
                .to_owned(),
        ),
    }
}

impl TunnelProtocolDetector {
    /// Reads from `stream` until the protocol is known. `first` are bytes that were read before.
    async fn recognize(
        &mut self,
        first: &[u8],
        stream: &mut (impl AsyncRead + Unpin),
    ) -> io::Result<TunnelProtocol> {
        let mut known = self.add(first);
        let mut piece = vec![0; START_READ_BYTES];
        loop {
            if let Some(protocol) = known {
                return Ok(protocol);
            }
            let length = stream.read(&mut piece).await?;
            if length == 0 {
                // A client that sends nothing does no harm.
                return Ok(self.at_end());
            }
            known = self.add(piece.get(..length).unwrap_or_default());
        }
    }

    /// Adds `bytes` that the client sent. Returns the protocol once it is known.
    fn add(&mut self, bytes: &[u8]) -> Option<TunnelProtocol> {
        self.read.extend_from_slice(bytes);
        if self.read.len() > START_BYTES_MAX {
            return Some(self.at_end());
        }
        match (self.read.first().copied(), self.read.get(1).copied()) {
            (None, _) => None,
            (Some(TLS_HANDSHAKE), _) => self.add_handshake(bytes),
            // Some servers skip other TLS records before a handshake, whose name stays unread.
            (Some(first), Some(TLS_MAJOR_VERSION)) if TLS_OTHER_RECORDS.contains(&first) => {
                Some(TunnelProtocol::BrokenTls)
            }
            (Some(first), None) if TLS_OTHER_RECORDS.contains(&first) => None,
            (Some(_), _) => text_protocol(&self.read),
        }
    }

    fn add_handshake(&mut self, mut bytes: &[u8]) -> Option<TunnelProtocol> {
        while !bytes.is_empty() {
            if !matches!(self.tls.read_tls(&mut bytes), Ok(1..)) {
                return Some(TunnelProtocol::BrokenTls);
            }
            match self.tls.accept() {
                Ok(None) => {}
                Ok(Some(accepted)) => {
                    let name = accepted.client_hello().server_name().map(str::to_owned);
                    return Some(TunnelProtocol::Tls(name));
                }
                Err(_) => return Some(TunnelProtocol::BrokenTls),
            }
        }
        None
    }

    /// Returns the protocol of a client that sends no more, or whose first bytes exceed the limit.
    fn at_end(&self) -> TunnelProtocol {
        match self.read.first() {
            Some(&TLS_HANDSHAKE) => TunnelProtocol::BrokenTls,
            // A line that does not end may become a request line.
            Some(_) => TunnelProtocol::Http,
            None => TunnelProtocol::Other,
        }
    }
}

/// Returns the protocol of a client whose first `bytes` are not TLS, once it is known. A request
/// line of any method means HTTP, and a version line of SSH means SSH.
fn text_protocol(bytes: &[u8]) -> Option<TunnelProtocol> {
    // Servers skip empty lines before a request.
    let blank = bytes.iter().take_while(|b| matches!(b, b'\r' | b'\n')).count();
    let rest = bytes.get(blank..).unwrap_or_default();
    let end = rest.iter().position(|b| *b == b'\n');
    let line = rest.get(..end.unwrap_or(rest.len())).unwrap_or_default();
    // Some servers accept other bytes than ASCII in a path.
    let is_text = |b: &u8| !b.is_ascii_control() || matches!(b, b'\t' | b'\r');
    // Lenient servers accept the version in lower case.
    if line.windows(5).any(|part| part.eq_ignore_ascii_case(b"HTTP/")) {
        return Some(TunnelProtocol::Http);
    }
    let is_ssh = end.is_some() && bytes.starts_with(SSH_START);
    let protocol = if is_ssh { TunnelProtocol::Ssh } else { TunnelProtocol::Other };
    (end.is_some() || !line.iter().all(is_text)).then_some(protocol)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_http_is_recognized_with_any_method_and_after_empty_lines() {
        for start in [
            "GET / HTTP/1.1\r\n",
            "\r\n\r\nPURGE /x HTTP/1.0\n",
            "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            "FOO /a\tHTTP/1.1",
            "GET / http/1.1\r\n",
        ] {
            assert_eq!(text_protocol(start.as_bytes()), Some(TunnelProtocol::Http), "{start}");
        }
        for start in ["SSH-1.5-a\r\n", "\r\nSSH-2.0-a\r\n", "EHLO a.example\r\n", "\0\0\0\x08"] {
            assert_eq!(text_protocol(start.as_bytes()), Some(TunnelProtocol::Other), "{start:?}");
        }
        let ssh = text_protocol(b"SSH-2.0-OpenSSH_9.2\r\n");
        assert_eq!(ssh, Some(TunnelProtocol::Ssh));
        for start in ["", "GET / HT", "\r\n", "SSH-2.0-a"] {
            assert_eq!(text_protocol(start.as_bytes()), None, "{start:?}");
        }
    }

    #[test]
    fn tls_that_begins_with_another_record_than_a_handshake_is_invalid() {
        fn recognize(pieces: &[&[u8]]) -> Option<TunnelProtocol> {
            let mut reader = TunnelProtocolDetector { read: Vec::new(), tls: Acceptor::default() };
            let mut known = None;
            for piece in pieces {
                known = reader.add(piece);
            }
            known
        }
        // A warning, as some clients send it before their handshake.
        let alert: &[u8] = &[0x15, 3, 3, 0, 2, 1, 112];
        assert_eq!(recognize(&[alert]), Some(TunnelProtocol::BrokenTls));
        assert_eq!(recognize(&[&alert[..1]]), None);
        assert_eq!(recognize(&[&alert[..1], &alert[1..]]), Some(TunnelProtocol::BrokenTls));
        assert_eq!(recognize(&[&[0x14, 3, 1, 0, 1, 1]]), Some(TunnelProtocol::BrokenTls));
        assert_eq!(recognize(&[&[0x17, 7, 0, 0]]), Some(TunnelProtocol::Other));
    }

    #[test]
    fn a_tunnel_without_a_ruled_port_carries_only_tls_with_the_name_of_its_host() {
        let target = ForwarderDestination { host: "a.example".to_owned(), port: 443 };
        let tls = |name: &str| TunnelProtocol::Tls(Some(name.to_owned()));
        assert_eq!(refusal(&tls("A.example"), &target, TunnelUse::Tls), None);
        for protocol in [
            tls("b.example"),
            TunnelProtocol::Tls(None),
            TunnelProtocol::BrokenTls,
            TunnelProtocol::Http,
            TunnelProtocol::Ssh,
            TunnelProtocol::Other,
        ] {
            assert!(refusal(&protocol, &target, TunnelUse::Tls).is_some(), "{protocol:?}");
        }
        for protocol in [TunnelProtocol::Ssh, TunnelProtocol::Other] {
            assert_eq!(refusal(&protocol, &target, TunnelUse::Any), None);
        }
        assert!(refusal(&TunnelProtocol::Http, &target, TunnelUse::Any).is_some());
        assert!(refusal(&tls("b.example"), &target, TunnelUse::Any).is_some());
        let address = ForwarderDestination { host: "127.0.0.1".to_owned(), port: 443 };
        assert_eq!(refusal(&TunnelProtocol::Tls(None), &address, TunnelUse::Tls), None);
    }
    #[test]
    fn a_tunnel_to_an_ssh_server_carries_only_ssh() {
        let target = ForwarderDestination { host: "a.example".to_owned(), port: 22 };
        assert_eq!(refusal(&TunnelProtocol::Ssh, &target, TunnelUse::Ssh), None);
        for protocol in [
            TunnelProtocol::Tls(Some("a.example".to_owned())),
            TunnelProtocol::BrokenTls,
            TunnelProtocol::Http,
            TunnelProtocol::Other,
        ] {
            assert!(refusal(&protocol, &target, TunnelUse::Ssh).is_some(), "{protocol:?}");
        }
    }
}
