//! A client and a server in one process, for tests: the same lines, no pipes.

use std::io;

use tokio::io::{
    AsyncBufReadExt, AsyncWriteExt, BufReader, DuplexStream, ReadHalf, WriteHalf, duplex, split,
};

/// The client's end.
pub struct Client {
    lines: tokio::io::Lines<BufReader<ReadHalf<DuplexStream>>>,
    output: WriteHalf<DuplexStream>,
}

/// The server's end: what it reads and what it writes.
pub type Server = (ReadHalf<DuplexStream>, WriteHalf<DuplexStream>);

/// Both ends, with room for `bytes` on the way in each direction.
pub fn pair(bytes: usize) -> (Client, Server) {
    let (near, far) = duplex(bytes);
    let (input, output) = split(near);
    (Client { lines: BufReader::new(input).lines(), output }, split(far))
}

impl Client {
    /// Sends one line.
    pub async fn send(&mut self, line: &str) -> io::Result<()> {
        self.output.write_all(line.as_bytes()).await?;
        self.output.write_all(b"\n").await
    }

    /// The next line; `None` when the server is gone.
    pub async fn receive(&mut self) -> io::Result<Option<String>> {
        self.lines.next_line().await
    }

    /// Says that nothing more will be sent.
    pub async fn close(&mut self) -> io::Result<()> {
        self.output.shutdown().await
    }
}
