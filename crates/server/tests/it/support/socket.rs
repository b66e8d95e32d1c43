//! WebSocket client for tests, which reads only when a test asks for a message.

use std::io::{ErrorKind, Write};
use std::net::{SocketAddr, TcpStream};

use serde_json::Value;
use tokio_tungstenite::tungstenite::client::{IntoClientRequest, client_with_config};
use tokio_tungstenite::tungstenite::handshake::HandshakeError;
use tokio_tungstenite::tungstenite::http::StatusCode;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::tungstenite::{Error, Message, WebSocket};

use super::{HttpServerProcess, PATIENCE, TestHttpConnection};

/// Open WebSocket to a server.
pub(crate) struct TestWebSocket {
    line: WebSocket<TcpStream>,
}

/// Describes how a WebSocket ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum WebSocketEnd {
    /// The server closed the WebSocket with a closing handshake and this code.
    Closed(u16),
    /// The connection broke without a closing handshake.
    Cut,
}

impl HttpServerProcess {
    /// Opens the WebSocket at `target`.
    #[track_caller]
    pub(crate) fn socket(&self, target: &str) -> TestWebSocket {
        TestWebSocket::open(self.addr, target).unwrap_or_else(|status| panic!("{target}: {status}"))
    }

    /// Returns the HTTP status with which the server refuses to open the WebSocket at `target`.
    #[track_caller]
    pub(crate) fn refused_socket(&self, target: &str) -> u16 {
        match TestWebSocket::open(self.addr, target) {
            Ok(_) => panic!("{target} was opened"),
            Err(status) => status.as_u16(),
        }
    }
}

impl TestWebSocket {
    #[track_caller]
    fn open(addr: SocketAddr, target: &str) -> Result<Self, StatusCode> {
        let stream = TestHttpConnection::to(addr).stream;
        let request = format!("ws://{addr}{target}").into_client_request().unwrap();
        let config = WebSocketConfig::default().max_message_size(None).max_frame_size(None);
        match client_with_config(request, stream, Some(config)) {
            Ok((line, response)) => {
                assert_eq!(response.status(), StatusCode::SWITCHING_PROTOCOLS);
                Ok(Self { line })
            }
            Err(HandshakeError::Failure(Error::Http(response))) => Err(response.status()),
            Err(err) => panic!("{target}: {err}"),
        }
    }

    #[track_caller]
    pub(crate) fn send(&mut self, message: &Value) {
        self.send_text(&message.to_string());
    }

    /// Sends `text` as one message, even if it is not JSON.
    #[track_caller]
    pub(crate) fn send_text(&mut self, text: &str) {
        self.line.send(Message::text(text)).unwrap();
    }

    /// Returns the next message, or how the WebSocket ended.
    #[track_caller]
    pub(crate) fn next(&mut self) -> Result<Value, WebSocketEnd> {
        loop {
            match self.line.read() {
                Ok(Message::Text(text)) => return Ok(serde_json::from_str(&text).unwrap()),
                Ok(Message::Ping(_) | Message::Pong(_)) => {}
                Ok(Message::Close(frame)) => {
                    // Our closing frame is sent with the next read or flush.
                    let _ = self.line.flush();
                    return Err(WebSocketEnd::Closed(
                        frame.map_or(1005, |frame| frame.code.into()),
                    ));
                }
                Ok(other) => panic!("not a message: {other:?}"),
                Err(Error::Io(err))
                    if matches!(err.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) =>
                {
                    panic!("no message within {PATIENCE:?}")
                }
                Err(_gone) => return Err(WebSocketEnd::Cut),
            }
        }
    }

    #[track_caller]
    pub(crate) fn receive(&mut self) -> Value {
        self.next().unwrap_or_else(|ended| panic!("the socket ended: {ended:?}"))
    }

    /// Sends a request and returns the next message.
    #[track_caller]
    pub(crate) fn ask(&mut self, message: &Value) -> Value {
        self.send(message);
        self.receive()
    }

    /// Returns all remaining messages, and how the socket ends.
    #[track_caller]
    pub(crate) fn read_rest(&mut self) -> (Vec<Value>, WebSocketEnd) {
        let mut messages = Vec::new();
        loop {
            match self.next() {
                Ok(message) => messages.push(message),
                Err(ended) => return (messages, ended),
            }
        }
    }

    /// Returns all messages up to and including the first for which `is_last` returns true.
    #[track_caller]
    pub(crate) fn read_until(&mut self, is_last: impl Fn(&Value) -> bool) -> Vec<Value> {
        let mut messages = Vec::new();
        loop {
            let message = self.receive();
            let last = is_last(&message);
            messages.push(message);
            if last {
                return messages;
            }
        }
    }

    /// Closes the socket and waits until the server has closed it too.
    #[track_caller]
    pub(crate) fn close(&mut self) {
        self.line.close(None).unwrap();
        let _ = self.line.get_mut().flush();
        while self.next().is_ok() {}
    }
}
