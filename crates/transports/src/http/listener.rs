//! Listening socket, with optional TLS.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::server::TlsStream;
use toolgate_net::WorkerPool;

/// Longest time for a TLS handshake.
const HANDSHAKE_MAX: Duration = Duration::from_secs(10);

/// Listening socket with its TLS settings and worker threads.
pub struct HttpListener {
    pub(super) listener: TcpListener,
    pub(super) tls: Option<TlsHandshaker>,
    pub(super) workers: Option<WorkerPool>,
}

impl HttpListener {
    /// Makes `workers` serve the connections of this listener. With `None`, the thread that accepts
    /// a connection also serves it.
    pub fn with_workers(self, workers: Option<WorkerPool>) -> Self {
        Self { workers, ..self }
    }

    /// Creates a listener that speaks TLS under `config`.
    pub fn with_tls(listener: TcpListener, config: Arc<ServerConfig>) -> Self {
        let tls = Some(TlsHandshaker(TlsAcceptor::from(config)));
        Self { listener, tls, workers: None }
    }
}

impl From<TcpListener> for HttpListener {
    fn from(listener: TcpListener) -> Self {
        Self { listener, tls: None, workers: None }
    }
}

/// Acceptor of TLS connections.
#[derive(Clone)]
pub(super) struct TlsHandshaker(TlsAcceptor);

impl TlsHandshaker {
    /// Performs the TLS handshake on `stream`. Returns `None` if the handshake fails or takes too
    /// long.
    pub(super) async fn accept(
        &self,
        stream: TcpStream,
        within: Duration,
    ) -> Option<ClientByteStream> {
        match timeout(within.min(HANDSHAKE_MAX), self.0.accept(stream)).await {
            Ok(Ok(stream)) => Some(ClientByteStream::Tls(Box::new(stream))),
            Ok(Err(err)) => {
                tracing::debug!("a TLS handshake failed: {err}");
                None
            }
            Err(_) => {
                tracing::debug!("a TLS handshake timed out");
                None
            }
        }
    }
}

/// Connection to a client, plain or encrypted.
pub(crate) enum ClientByteStream {
    Plain(TcpStream),
    /// Encrypted connection, in a box because its state takes a kilobyte.
    Tls(Box<TlsStream<TcpStream>>),
}

impl AsyncRead for ClientByteStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(cx, buffer),
            Self::Tls(stream) => Pin::new(stream).poll_read(cx, buffer),
        }
    }
}

impl AsyncWrite for ClientByteStream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write(cx, bytes),
            Self::Tls(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write_vectored(cx, pieces),
            Self::Tls(stream) => Pin::new(stream).poll_write_vectored(cx, pieces),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Plain(stream) => stream.is_write_vectored(),
            Self::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Self::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;
    use tokio_rustls::rustls::crypto::ring;
    use tokio_rustls::rustls::server::{ClientHello, ResolvesServerCert};
    use tokio_rustls::rustls::sign::CertifiedKey;

    use super::*;

    /// Certificate resolver without a certificate, for handshakes that never complete.
    #[derive(Debug)]
    struct NoCertificateResolver;

    impl ResolvesServerCert for NoCertificateResolver {
        fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
            None
        }
    }

    #[tokio::test]
    async fn an_unfinished_tls_handshake_is_ended() {
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(NoCertificateResolver));
        let secure = TlsHandshaker(TlsAcceptor::from(Arc::new(config)));
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
        let addr = listener.local_addr().expect("an address");
        let mut client = TcpStream::connect(addr).await.expect("a connection");
        client.write_all(&[0x16, 0x03, 0x01]).await.expect("sent");
        let (stream, _) = listener.accept().await.expect("a client");
        let agreed = timeout(HANDSHAKE_MAX, secure.accept(stream, Duration::from_millis(100)));
        assert!(agreed.await.expect("it ends in time").is_none());
    }
}
