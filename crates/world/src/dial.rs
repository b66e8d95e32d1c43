//! Opens connections to database servers and other engines: a TCP or Unix stream within a time
//! limit, and TLS over it.

use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
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
    self, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
};

/// Idle time before TCP keepalive probes start. Probes repeat at a third of it, and three
/// unanswered ones end the connection.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(15);

/// A byte stream to a server.
pub enum DialedStream {
    /// A TCP connection.
    Port(TcpStream),
    /// A Unix socket connection.
    Socket(UnixStream),
}

impl AsyncRead for DialedStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Port(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Socket(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for DialedStream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Port(stream) => Pin::new(stream).poll_write(cx, bytes),
            Self::Socket(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Port(stream) => Pin::new(stream).poll_flush(cx),
            Self::Socket(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Port(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Socket(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}

/// The address that a server listens at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DialAddress {
    /// A host (a name or an IP address) and a TCP port.
    Port(String, u16),
    /// The path of a Unix socket.
    Socket(PathBuf),
}

/// The certificate authorities that a TLS client trusts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CertificateTrust {
    /// The authorities that the system trusts.
    System,
    /// The authorities in a PEM file.
    File(PathBuf),
    /// No check at all: traffic is encrypted, but the server is not authenticated.
    AnyCertificate,
}

/// Connects to `place` within the time `within`.
///
/// # Errors
/// A sentence that explains why the connection failed.
pub async fn dial(place: &DialAddress, within: Duration) -> Result<DialedStream, String> {
    let connected = timeout(within, async {
        match place {
            DialAddress::Port(host, port) => {
                let stream = TcpStream::connect((host.as_str(), *port)).await?;
                stream.set_nodelay(true)?;
                keep_alive(&stream)?;
                Ok(DialedStream::Port(stream))
            }
            DialAddress::Socket(path) => Ok(DialedStream::Socket(UnixStream::connect(path).await?)),
        }
    });
    match connected.await {
        Ok(connected) => connected.map_err(|err: io::Error| match err.kind() {
            io::ErrorKind::NotFound => "there is no such socket".to_owned(),
            io::ErrorKind::ConnectionRefused => "nothing listens there".to_owned(),
            _ => err.to_string(),
        }),
        Err(_) => Err(format!("there was no answer within {} ms", within.as_millis())),
    }
}

/// Turns on TCP keepalive, so that a dead peer is noticed.
fn keep_alive(stream: &TcpStream) -> io::Result<()> {
    use rustix::net::sockopt;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, KEEPALIVE_IDLE)?;
    sockopt::set_tcp_keepintvl(stream, KEEPALIVE_IDLE / 3)?;
    sockopt::set_tcp_keepcnt(stream, 3)?;
    Ok(())
}

/// A TLS client. Cheap to clone.
#[derive(Clone)]
pub struct TlsClient(TlsConnector);

impl TlsClient {
    /// Creates a TLS client that trusts `trust`. It reads certificate files, so it blocks.
    ///
    /// # Errors
    /// If there are no certificates to trust.
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
        Ok(Self(TlsConnector::from(Arc::new(config.with_no_client_auth()))))
    }

    /// Performs the TLS handshake over `stream` and checks that the server's certificate is for
    /// `host`.
    pub async fn connect(
        &self,
        stream: DialedStream,
        host: &str,
    ) -> io::Result<TlsStream<DialedStream>> {
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let name = ServerName::try_from(host).map_err(io::Error::other)?;
        self.0.connect(name, stream).await
    }
}

fn system_roots() -> Result<RootCertStore, String> {
    let found = rustls_native_certs::load_native_certs();
    let why = found.errors.first().map_or_else(String::new, |err| format!(": {err}"));
    root_store(found.certs).ok_or_else(|| format!("this system has no certificates to trust{why}"))
}

fn roots_from_file(path: &Path) -> Result<RootCertStore, String> {
    let found = rustls_native_certs::load_certs_from_paths(Some(path), None);
    let why = found.errors.first().map_or_else(String::new, |err| format!(": {err}"));
    root_store(found.certs).ok_or_else(|| format!("{} has no certificates{why}", path.display()))
}

fn root_store(certificates: Vec<CertificateDer<'static>>) -> Option<RootCertStore> {
    let mut roots = RootCertStore::empty();
    let (taken, _) = roots.add_parsable_certificates(certificates);
    (taken > 0).then_some(roots)
}

/// A verifier that accepts any certificate and still checks the handshake signatures.
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
        let known = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signed, known)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let known = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signed, known)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
