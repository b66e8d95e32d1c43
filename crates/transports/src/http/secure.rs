//! Where clients come in: a listener, and TLS over what comes in where that is wanted.

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

use super::workers::Workers;

/// How long a client may take to agree on how to speak, at most.
const HANDSHAKE_MAX: Duration = Duration::from_secs(10);

/// Where clients come in.
pub struct Entrance {
    pub(super) listener: TcpListener,
    pub(super) secure: Option<Secure>,
    pub(super) workers: Option<Workers>,
}

impl Entrance {
    /// Clients are served by `workers`, if by any, instead of whoever accepts them.
    pub fn served_by(self, workers: Option<Workers>) -> Self {
        Self { workers, ..self }
    }

    /// Clients speak TLS, as `config` has it.
    pub fn secured(listener: TcpListener, config: Arc<ServerConfig>) -> Self {
        let secure = Some(Secure(TlsAcceptor::from(config)));
        Self { listener, secure, workers: None }
    }
}

impl From<TcpListener> for Entrance {
    fn from(listener: TcpListener) -> Self {
        Self { listener, secure: None, workers: None }
    }
}

/// Speaks TLS with who comes in.
#[derive(Clone)]
pub(super) struct Secure(TlsAcceptor);

impl Secure {
    /// `stream`, encrypted; `None` where its client does not agree on that in time.
    pub(super) async fn over(&self, stream: TcpStream, within: Duration) -> Option<Wire> {
        match timeout(within.min(HANDSHAKE_MAX), self.0.accept(stream)).await {
            Ok(Ok(stream)) => Some(Wire::Secure(Box::new(stream))),
            Ok(Err(err)) => {
                tracing::debug!("a client did not agree on TLS: {err}");
                None
            }
            Err(_) => {
                tracing::debug!("a client did not agree on TLS in time");
                None
            }
        }
    }
}

/// A connection, encrypted or not.
pub(crate) enum Wire {
    Plain(TcpStream),
    /// Boxed: it is a kilobyte, which the others need not carry.
    Secure(Box<TlsStream<TcpStream>>),
}

impl AsyncRead for Wire {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(cx, buffer),
            Self::Secure(stream) => Pin::new(stream).poll_read(cx, buffer),
        }
    }
}

impl AsyncWrite for Wire {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write(cx, bytes),
            Self::Secure(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write_vectored(cx, pieces),
            Self::Secure(stream) => Pin::new(stream).poll_write_vectored(cx, pieces),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Plain(stream) => stream.is_write_vectored(),
            Self::Secure(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Self::Secure(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Secure(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
