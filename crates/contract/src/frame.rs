//! What transports and dialects hand each other: bytes with what came beside them.

use std::any::Any;
use std::fs::File;
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, Method};

/// One message as it came: its bytes, unparsed, and what the transport knows of it.
#[derive(Debug, Clone)]
pub struct Frame {
    /// What came beside the bytes.
    pub head: Head,
    /// The bytes, within the transport's size cap.
    pub body: Bytes,
}

impl Frame {
    /// A frame from a transport that has nothing but lines.
    pub fn line(body: impl Into<Bytes>) -> Self {
        Self { head: Head::Line, body: body.into() }
    }
}

/// What came beside the bytes.
#[derive(Debug, Clone)]
pub enum Head {
    /// Nothing: a line on a stream.
    Line,
    /// An HTTP request's line and headers.
    Http {
        /// The method.
        method: Method,
        /// The path, as it came: percent-encoded, without the query.
        path: String,
        /// The query, as it came: percent-encoded, without the `?`; empty where there is none.
        query: String,
        /// The headers, names lower-case.
        headers: HeaderMap,
    },
}

impl Head {
    /// The path; empty where there is none.
    pub fn path(&self) -> &str {
        match self {
            Self::Line => "",
            Self::Http { path, .. } => path,
        }
    }

    /// All values of the header `name`; empty where there are no headers.
    pub fn header<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a [u8]> {
        let headers = match self {
            Self::Line => None,
            Self::Http { headers, .. } => Some(headers),
        };
        headers.into_iter().flat_map(move |h| h.get_all(name)).map(|value| value.as_bytes())
    }
}

/// One message to send. Transports without statuses and headers send the body alone.
#[derive(Debug, Clone)]
pub struct Reply {
    /// The HTTP status.
    pub status: u16,
    /// Headers to add.
    pub headers: Vec<(&'static str, String)>,
    /// What to send.
    pub body: Body,
}

/// The bytes of a reply.
#[derive(Debug, Clone)]
pub enum Body {
    /// Nothing: the frame asked for no answer.
    Empty,
    /// One JSON message.
    Json(Bytes),
    /// A file, sent as it is read.
    File(OpenFile),
}

/// A file to send, open: what happens to its name meanwhile does not matter.
#[derive(Debug, Clone)]
pub struct OpenFile {
    /// The file, read from its start by offset.
    pub handle: Arc<File>,
    /// How long it is.
    pub bytes: u64,
    /// What it is, e.g. `image/png`.
    pub media_type: String,
    /// Held for as long as the file is.
    pub held: Option<Arc<dyn Any + Send + Sync>>,
}

impl Reply {
    /// A JSON message with status 200.
    pub fn json(body: impl Into<Bytes>) -> Self {
        Self { status: 200, headers: Vec::new(), body: Body::Json(body.into()) }
    }

    /// No message, with `status`.
    pub fn empty(status: u16) -> Self {
        Self { status, headers: Vec::new(), body: Body::Empty }
    }

    /// The same with another status.
    pub fn with_status(self, status: u16) -> Self {
        Self { status, ..self }
    }

    /// The same with a header more.
    pub fn with_header(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }
}
