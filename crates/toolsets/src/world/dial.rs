//! Connections as engines on other machines are handed them: a stream to a place, in a bounded
//! time, and TLS over it.

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

/// After how long of silence the other side is asked whether it is still there, and how often.
const ALIVE_AFTER: Duration = Duration::from_secs(15);

/// Bytes to and from a place.
pub enum Dialled {
    /// By TCP.
    Port(TcpStream),
    /// By a Unix socket.
    Socket(UnixStream),
}

impl AsyncRead for Dialled {
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

impl AsyncWrite for Dialled {
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

/// Where something listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// At a port of a host, which is a name or an address.
    Port(String, u16),
    /// At a Unix socket.
    Socket(PathBuf),
}

/// Whose certificates are believed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Trust {
    /// Those whom the system trusts.
    System,
    /// Those in a file, in PEM.
    File(PathBuf),
    /// Everybody: what is said is encrypted, to whoever answers.
    Anybody,
}

/// Connects to `place`; the error says why not.
pub async fn dial(place: &Place, within: Duration) -> Result<Dialled, String> {
    let connected = timeout(within, async {
        match place {
            Place::Port(host, port) => {
                let stream = TcpStream::connect((host.as_str(), *port)).await?;
                stream.set_nodelay(true)?;
                keep_alive(&stream)?;
                Ok(Dialled::Port(stream))
            }
            Place::Socket(path) => Ok(Dialled::Socket(UnixStream::connect(path).await?)),
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

/// Has the system notice that the other side is gone without a word.
fn keep_alive(stream: &TcpStream) -> io::Result<()> {
    use rustix::net::sockopt;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, ALIVE_AFTER)?;
    sockopt::set_tcp_keepintvl(stream, ALIVE_AFTER / 3)?;
    sockopt::set_tcp_keepcnt(stream, 3)?;
    Ok(())
}

/// Speaks TLS.
#[derive(Clone)]
pub struct Secure(TlsConnector);

impl Secure {
    /// TLS that believes `trust`; reads certificates, so it blocks.
    pub fn new(trust: &Trust) -> Result<Self, String> {
        let provider = Arc::new(ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(|err| err.to_string())?;
        let config = match trust {
            Trust::System => config.with_root_certificates(system()?),
            Trust::File(path) => config.with_root_certificates(of_file(path)?),
            Trust::Anybody => {
                config.dangerous().with_custom_certificate_verifier(Arc::new(Anybody { provider }))
            }
        };
        Ok(Self(TlsConnector::from(Arc::new(config.with_no_client_auth()))))
    }

    /// `stream`, encrypted, with whoever proves to be `host`.
    pub async fn over(&self, stream: Dialled, host: &str) -> io::Result<TlsStream<Dialled>> {
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let name = ServerName::try_from(host).map_err(io::Error::other)?;
        self.0.connect(name, stream).await
    }
}

fn system() -> Result<RootCertStore, String> {
    let found = rustls_native_certs::load_native_certs();
    let why = found.errors.first().map_or_else(String::new, |err| format!(": {err}"));
    roots(found.certs).ok_or_else(|| format!("this system has no certificates to trust{why}"))
}

fn of_file(path: &Path) -> Result<RootCertStore, String> {
    let found = rustls_native_certs::load_certs_from_paths(Some(path), None);
    let why = found.errors.first().map_or_else(String::new, |err| format!(": {err}"));
    roots(found.certs).ok_or_else(|| format!("{} has no certificates{why}", path.display()))
}

fn roots(certificates: Vec<CertificateDer<'static>>) -> Option<RootCertStore> {
    let mut roots = RootCertStore::empty();
    let (taken, _) = roots.add_parsable_certificates(certificates);
    (taken > 0).then_some(roots)
}

/// Believes whoever has the key of the certificate that is shown.
#[derive(Debug)]
struct Anybody {
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Anybody {
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
