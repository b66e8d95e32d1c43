//! Opens connections to servers: a TCP or Unix stream within a time limit, and TLS over it.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::OnceCell;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::client::danger::{
    HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier,
};
use tokio_rustls::rustls::crypto::{
    CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature,
};
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::{
    self, AlertDescription, CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore,
    SignatureScheme,
};
use toolgate_net::{ByteStream, HttpUrl};

/// Idle time before TCP keepalive probes start. The interval between probes is a third of this
/// time. Three unanswered probes end the connection.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(15);

/// Maximum number of names of a server's certificate that an error message lists.
const NAMES_MAX: usize = 3;

/// A byte stream to a server: a TCP or Unix socket connection.
pub type DialedByteStream = Box<dyn ByteStream>;

/// The address at which a server listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DialAddress {
    /// Host (a name or an IP address) and TCP port of a server.
    Port(String, u16),
    /// The path of a Unix socket.
    Socket(PathBuf),
}

/// The certificate authorities that a TLS client trusts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CertificateTrust {
    /// Trust the certificate authorities that the system trusts.
    System,
    /// Trust the certificate authorities in this PEM file.
    File(PathBuf),
    /// Accept any certificate. Traffic is encrypted, but the server is not authenticated.
    AnyCertificate,
}

/// Connects to the address `place` within the time `within`.
///
/// # Errors
/// A sentence that explains why the connection failed.
pub async fn dial(place: &DialAddress, within: Duration) -> Result<DialedByteStream, String> {
    let connected = timeout(within, async {
        match place {
            DialAddress::Port(host, port) => {
                let stream = TcpStream::connect((host.as_str(), *port)).await?;
                stream.set_nodelay(true)?;
                keep_alive(&stream)?;
                Ok(Box::new(stream) as DialedByteStream)
            }
            DialAddress::Socket(path) => {
                Ok(Box::new(UnixStream::connect(path).await?) as DialedByteStream)
            }
        }
    });
    match connected.await {
        Ok(connected) => connected.map_err(|err: io::Error| match err.kind() {
            io::ErrorKind::NotFound => "the socket does not exist".to_owned(),
            io::ErrorKind::ConnectionRefused => {
                "connection refused: nothing is listening there".to_owned()
            }
            _ => err.to_string(),
        }),
        Err(_) => Err(format!("timed out after {} ms", within.as_millis())),
    }
}

/// Connects to the address `place` and, if `tls_host` is set, checks with TLS that the server is
/// `tls_host`. The connection and the TLS handshake may each take the time `within`.
///
/// # Errors
/// A sentence that explains why the connection failed.
pub async fn dial_stream(
    place: &DialAddress,
    tls_host: Option<&str>,
    within: Duration,
) -> Result<DialedByteStream, String> {
    let stream = dial(place, within).await?;
    let Some(host) = tls_host else { return Ok(stream) };
    let connected = timeout(within, system_tls().await?.connect(stream, host)).await;
    let connected = connected
        .map_err(|_| format!("the TLS handshake timed out after {} s", within.as_secs()))?;
    Ok(Box::new(connected.map_err(|err| err.to_string())?))
}

/// Connects to the server of `url`, with TLS for an `https` URL, as [`dial_stream`] does.
///
/// # Errors
/// A sentence that explains why the connection failed.
pub async fn dial_url(url: &HttpUrl, within: Duration) -> Result<DialedByteStream, String> {
    let place = DialAddress::Port(url.host().to_owned(), url.port());
    dial_stream(&place, url.is_secure().then(|| url.host()), within).await
}

/// Returns the TLS client that trusts the system's certificate authorities. The certificates are
/// read once, when a client is first needed.
///
/// # Errors
/// This system has no trusted certificates.
pub(crate) async fn system_tls() -> Result<&'static TlsClient, String> {
    static SYSTEM_TLS: OnceCell<TlsClient> = OnceCell::const_new();
    let create = async || {
        let created = toolgate_net::spawn_blocking(|| TlsClient::new(&CertificateTrust::System));
        created.await.map_err(|err| err.to_string())?
    };
    SYSTEM_TLS.get_or_try_init(create).await
}

/// Turns on TCP keepalive for `stream`, so that the system notices if the server no longer exists.
fn keep_alive(stream: &TcpStream) -> io::Result<()> {
    use rustix::net::sockopt;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, KEEPALIVE_IDLE)?;
    sockopt::set_tcp_keepintvl(stream, KEEPALIVE_IDLE / 3)?;
    sockopt::set_tcp_keepcnt(stream, 3)?;
    Ok(())
}

/// A TLS client. Clones are cheap.
#[derive(Clone)]
pub struct TlsClient {
    connector: TlsConnector,
    trusts_system: bool,
}

impl TlsClient {
    /// Creates a TLS client that trusts the authorities `trust`. Blocks, because it reads
    /// certificate files.
    ///
    /// # Errors
    /// No certificates to trust were found.
    pub fn new(trust: &CertificateTrust) -> Result<Self, String> {
        let provider = Arc::new(ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(|err| err.to_string())?;
        let config = match trust {
            CertificateTrust::System => config.with_root_certificates(system_roots()?),
            CertificateTrust::File(path) => config.with_root_certificates(roots_from_file(path)?),
            CertificateTrust::AnyCertificate => config
                .dangerous()
                .with_custom_certificate_verifier(Arc::new(AnyCertificateVerifier { provider })),
        };
        let connector = TlsConnector::from(Arc::new(config.with_no_client_auth()));
        Ok(Self { connector, trusts_system: *trust == CertificateTrust::System })
    }

    /// Performs the TLS handshake over `stream` and checks that the server's certificate is for
    /// `host`.
    ///
    /// # Errors
    /// An error that explains in words what is wrong with the certificate or the server.
    pub async fn connect(
        &self,
        stream: DialedByteStream,
        host: &str,
    ) -> io::Result<TlsStream<DialedByteStream>> {
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let name = ServerName::try_from(host.clone()).map_err(io::Error::other)?;
        let connected = self.connector.connect(name, stream).await;
        connected.map_err(|err| explain_tls_error(err, &host, self.trusts_system))
    }
}

/// Converts the error `err` of a TLS handshake with `host` to an error that explains the cause. The
/// advice about an unknown issuer depends on `trusts_system`: whether the client trusts the
/// system's certificates.
fn explain_tls_error(err: io::Error, host: &str, trusts_system: bool) -> io::Error {
    let cause = err.get_ref().and_then(|cause| cause.downcast_ref::<rustls::Error>());
    let why = match cause {
        Some(rustls::Error::InvalidCertificate(problem)) => {
            explain_certificate_error(problem, host, trusts_system)
        }
        Some(rustls::Error::InvalidMessage(_)) => {
            format!("`{host}` does not speak TLS on this port")
        }
        Some(rustls::Error::NoCertificatesPresented) => {
            format!("`{host}` sent no certificate")
        }
        Some(rustls::Error::AlertReceived(
            AlertDescription::CertificateRequired | AlertDescription::BadCertificate,
        )) => {
            format!("`{host}` requires a client certificate, which toolgate does not send")
        }
        Some(
            rustls::Error::AlertReceived(
                AlertDescription::ProtocolVersion | AlertDescription::InsufficientSecurity,
            )
            | rustls::Error::PeerIncompatible(_),
        ) => {
            format!("`{host}` offers no supported version of TLS; it needs TLS 1.2 or 1.3")
        }
        Some(rustls::Error::AlertReceived(AlertDescription::HandshakeFailure)) => format!(
            "`{host}` refused the TLS handshake; it may require a client certificate, or offer \
             only outdated ciphers"
        ),
        Some(rustls::Error::AlertReceived(AlertDescription::UnrecognisedName)) => {
            format!("the server has no certificate for `{host}`")
        }
        None if err.kind() == io::ErrorKind::UnexpectedEof => {
            format!("`{host}` closed the connection during the TLS handshake")
        }
        Some(_) | None => return err,
    };
    io::Error::new(err.kind(), why)
}

fn explain_certificate_error(
    problem: &CertificateError,
    host: &str,
    trusts_system: bool,
) -> String {
    match problem {
        CertificateError::UnknownIssuer => {
            let advice = match trusts_system {
                true => {
                    "; if you trust it, set SSL_CERT_FILE to a PEM file with its CA certificate"
                }
                false => "",
            };
            format!("the certificate of `{host}` is self-signed or of an unknown issuer{advice}")
        }
        CertificateError::ExpiredContext { not_after, .. } => {
            format!("the certificate of `{host}` has expired{}", on_date(*not_after))
        }
        CertificateError::Expired => format!("the certificate of `{host}` has expired"),
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            format!("the certificate of `{host}` is not valid yet; check this machine's clock")
        }
        CertificateError::NotValidForNameContext { presented, .. } if !presented.is_empty() => {
            let names = presented.iter().take(NAMES_MAX).map(|name| quoted_name(name));
            let names = names.collect::<Vec<_>>().join(", ");
            format!("the certificate is for {names}, not for `{host}`")
        }
        CertificateError::NotValidForNameContext { .. } => {
            format!(
                "the certificate names no host in its subjectAltName, so it is not for `{host}`"
            )
        }
        CertificateError::NotValidForName => {
            format!("the certificate is for another host, not for `{host}`")
        }
        CertificateError::BadSignature => format!(
            "the certificate of `{host}` is not signed by the trusted authority with that name; \
             the trusted certificate may be outdated"
        ),
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
            format!("the certificate of `{host}` is not for servers (extendedKeyUsage)")
        }
        CertificateError::Revoked => format!("the certificate of `{host}` was revoked"),
        CertificateError::Other(cause) if cause.to_string().contains("CaUsedAsEndEntity") => {
            format!(
                "the certificate of `{host}` is a CA certificate, which cannot identify a server; \
                 create one with basicConstraints CA:FALSE"
            )
        }
        CertificateError::Other(cause) if cause.to_string().contains("UnsupportedCertVersion") => {
            format!(
                "the certificate of `{host}` is of X.509 version 1, which names no host; make one \
                 of version 3 with a subjectAltName"
            )
        }
        CertificateError::BadEncoding => {
            format!("the certificate of `{host}` cannot be parsed")
        }
        other if other.to_string().contains("UnsupportedSignatureAlgorithm") => format!(
            "the certificate of `{host}` is signed with an algorithm that toolgate does not \
             support, such as SHA-1"
        ),
        other => format!("the certificate of `{host}` is invalid: {other}"),
    }
}

/// Returns a name of a certificate in backquotes. `written` is rustls's spelling of the name, for
/// example `DnsName("a.example")`.
fn quoted_name(written: &str) -> String {
    format!("`{}`", written.split('"').nth(1).unwrap_or(written))
}

/// Returns ` on DATE` for `time`, or an empty text if `time` is out of range.
fn on_date(time: UnixTime) -> String {
    let seconds = i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
    let at = Timestamp::from_second(seconds);
    at.map(|at| format!(" on {}", at.strftime("%Y-%m-%d"))).unwrap_or_default()
}

fn system_roots() -> Result<RootCertStore, String> {
    root_store(system_certificates()?)
        .ok_or_else(|| "this system has no usable certificates".to_owned())
}

/// Returns the certificates of the authorities that the system trusts. Blocks.
///
/// # Errors
/// This system has no trusted certificates.
pub(crate) fn system_certificates() -> Result<Vec<CertificateDer<'static>>, String> {
    let found = rustls_native_certs::load_native_certs();
    let why = found.errors.first().map_or_else(String::new, |err| format!(": {err}"));
    match found.certs.is_empty() {
        true => Err(format!("this system has no trusted certificates{why}")),
        false => Ok(found.certs),
    }
}

fn roots_from_file(path: &Path) -> Result<RootCertStore, String> {
    let found = rustls_native_certs::load_certs_from_paths(Some(path), None);
    let why = found.errors.first().map_or_else(String::new, |err| format!(": {err}"));
    root_store(found.certs)
        .ok_or_else(|| format!("{} contains no usable certificates{why}", path.display()))
}

fn root_store(certificates: Vec<CertificateDer<'static>>) -> Option<RootCertStore> {
    let mut roots = RootCertStore::empty();
    let (added, _) = roots.add_parsable_certificates(certificates);
    (added > 0).then_some(roots)
}

/// A verifier that accepts any certificate, but checks the signatures of the handshake.
#[derive(Debug)]
struct AnyCertificateVerifier {
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for AnyCertificateVerifier {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signed, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signed, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use tokio_rustls::rustls::InvalidMessage;

    use super::*;

    #[test]
    fn tls_errors_are_explained_in_words() {
        let certificate = rustls::Error::InvalidCertificate;
        let at = |seconds| UnixTime::since_unix_epoch(Duration::from_secs(seconds));
        let version_1 = Arc::new(io::Error::other("UnsupportedCertVersion"));
        let version_1 = CertificateError::Other(rustls::OtherError(version_1));
        for (cause, expected) in [
            (certificate(CertificateError::UnknownIssuer), "SSL_CERT_FILE"),
            (certificate(CertificateError::Expired), "has expired"),
            (
                certificate(CertificateError::ExpiredContext {
                    time: at(1_700_000_000),
                    not_after: at(1_600_000_000),
                }),
                "has expired on 2020-09-13",
            ),
            (certificate(CertificateError::NotValidForName), "not for `a.example`"),
            (
                certificate(CertificateError::NotValidForNameContext {
                    expected: ServerName::try_from("a.example").unwrap(),
                    presented: vec!["DnsName(\"b.example\")".to_owned(), "c.example".to_owned()],
                }),
                "is for `b.example`, `c.example`, not for `a.example`",
            ),
            (
                certificate(CertificateError::NotValidForNameContext {
                    expected: ServerName::try_from("a.example").unwrap(),
                    presented: Vec::new(),
                }),
                "names no host",
            ),
            (certificate(CertificateError::BadSignature), "not signed by the trusted authority"),
            (certificate(CertificateError::InvalidPurpose), "not for servers"),
            (certificate(CertificateError::BadEncoding), "cannot be parsed"),
            (certificate(version_1), "X.509 version 1"),
            (rustls::Error::AlertReceived(AlertDescription::CertificateRequired), "client cert"),
            (rustls::Error::AlertReceived(AlertDescription::ProtocolVersion), "TLS 1.2 or 1.3"),
            (rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType), "not speak TLS"),
        ] {
            let err = io::Error::new(io::ErrorKind::InvalidData, cause);
            let why = explain_tls_error(err, "a.example", true).to_string();
            assert!(why.contains(expected), "{why}");
        }
        let err = certificate(CertificateError::UnknownIssuer);
        let err = io::Error::new(io::ErrorKind::InvalidData, err);
        let why = explain_tls_error(err, "a.example", false).to_string();
        assert!(why.contains("unknown issuer") && !why.contains("SSL_CERT_FILE"), "{why}");
    }
}
