//! Frames and replies that transports and dialects exchange.

use std::any::Any;
use std::fs::File;
use std::sync::Arc;

use bytes::{Buf, Bytes};
use http::{HeaderMap, Method};

use crate::strip_byte_order_mark_bytes;

/// Incoming message: its unparsed bytes and its transport metadata.
#[derive(Debug, Clone)]
pub struct MessageFrame {
    /// The transport metadata of the message.
    pub head: FrameMetadata,
    /// The bytes of the message, within the transport's size limit.
    pub body: Bytes,
}

impl MessageFrame {
    /// Creates a message with the metadata `head` and the content `body`. Removes a byte order mark
    /// at the start of `body`, which some clients write.
    pub fn new(head: FrameMetadata, mut body: Bytes) -> Self {
        body.advance(body.len() - strip_byte_order_mark_bytes(&body).len());
        Self { head, body }
    }

    /// Creates a message from a line of text without headers.
    pub fn from_line(body: impl Into<Bytes>) -> Self {
        Self::new(FrameMetadata::Line, body.into())
    }
}

/// The transport metadata of a message.
#[derive(Debug, Clone)]
pub enum FrameMetadata {
    /// A line of a stream, which has no metadata.
    Line,
    /// The request line and headers of an HTTP request.
    Http {
        /// The HTTP method of the request.
        method: Method,
        /// The path of the request as sent: percent-encoded, without the query.
        path: String,
        /// The query of the request as sent: percent-encoded, without the `?`. Empty if there is
        /// none.
        query: String,
        /// The headers of the request, with lower-case names.
        headers: HeaderMap,
    },
}

impl FrameMetadata {
    /// Returns the path of an HTTP request. Empty for a line.
    pub fn path(&self) -> &str {
        match self {
            Self::Line => "",
            Self::Http { path, .. } => path,
        }
    }

    /// Returns all values of the HTTP header `name`. A line has none.
    pub fn header<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a [u8]> {
        let headers = match self {
            Self::Line => None,
            Self::Http { headers, .. } => Some(headers),
        };
        headers.into_iter().flat_map(move |h| h.get_all(name)).map(|value| value.as_bytes())
    }
}

/// Outgoing message. Transports that have no statuses and headers send only the body.
#[derive(Debug, Clone)]
pub struct Reply {
    /// The HTTP status of the reply.
    pub status: u16,
    /// Additional HTTP headers of the reply.
    pub headers: Vec<(&'static str, String)>,
    /// The body of the reply.
    pub body: ReplyBody,
}

/// The body of a reply.
#[derive(Debug, Clone)]
pub enum ReplyBody {
    /// The reply has no body, because the client's message needs no answer.
    Empty,
    /// A body of one JSON message.
    Json(Bytes),
    /// A body that is a file, which is streamed as it is read.
    File(OutgoingFile),
}

/// An open file to send in a reply. Renaming or removing the file does not affect the handle.
#[derive(Debug, Clone)]
pub struct OutgoingFile {
    /// The handle of the file, to be read from its start by offset.
    pub handle: Arc<File>,
    /// The length of the file in bytes.
    pub bytes: u64,
    /// The media type of the file, e.g. `image/png`.
    pub media_type: String,
    /// A guard that is kept until the file is closed, such as a permit that limits the number of
    /// temporary zip files.
    pub guard: Option<Arc<dyn Any + Send + Sync>>,
}

impl Reply {
    /// Creates a reply with a JSON body and the HTTP status 200.
    pub fn json(body: impl Into<Bytes>) -> Self {
        Self { status: 200, headers: Vec::new(), body: ReplyBody::Json(body.into()) }
    }

    /// Creates a reply with the HTTP status `status` and no body.
    pub fn empty(status: u16) -> Self {
        Self { status, headers: Vec::new(), body: ReplyBody::Empty }
    }

    /// Returns the reply with `status` as its HTTP status.
    pub fn with_status(self, status: u16) -> Self {
        Self { status, ..self }
    }

    /// Returns the reply with an additional HTTP header.
    pub fn with_header(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }
}
