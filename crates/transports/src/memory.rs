//! Connections in memory, for tests of clients and servers.

use std::io;

use tokio::io::{
    AsyncBufReadExt, AsyncWriteExt, BufReader, DuplexStream, ReadHalf, WriteHalf, duplex, split,
};

/// The client's end of a connection in memory, with which a test sends and receives lines.
pub struct InMemoryClient {
    lines: tokio::io::Lines<BufReader<ReadHalf<DuplexStream>>>,
    output: WriteHalf<DuplexStream>,
}

/// The server's end of a connection in memory: its input and its output.
pub type InMemoryServerStreams = (ReadHalf<DuplexStream>, WriteHalf<DuplexStream>);

/// Creates both ends of a connection in memory, with a buffer of `bytes` in each direction.
pub fn stream_pair(bytes: usize) -> (InMemoryClient, InMemoryServerStreams) {
    let (near, far) = duplex(bytes);
    let (input, output) = split(near);
    (InMemoryClient { lines: BufReader::new(input).lines(), output }, split(far))
}

impl InMemoryClient {
    /// Sends one line to the server.
    pub async fn send(&mut self, line: &str) -> io::Result<()> {
        self.output.write_all(line.as_bytes()).await?;
        self.output.write_all(b"\n").await
    }

    /// Receives the next line from the server. Returns `None` after the server has closed its end.
    pub async fn receive(&mut self) -> io::Result<Option<String>> {
        self.lines.next_line().await
    }

    /// Closes the client's sending direction.
    pub async fn close(&mut self) -> io::Result<()> {
        self.output.shutdown().await
    }
}
