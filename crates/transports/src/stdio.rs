//! Messages as lines on a pair of streams, such as standard input and output.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use bytes::{Bytes, BytesMut};
use memchr::memchr;
use rustix::fs::FileType;
use rustix::pipe::{fcntl_getpipe_size, fcntl_setpipe_size};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::net::unix::pipe;
use tokio::sync::mpsc;
use toolgate_contract::strip_byte_order_mark_bytes;
use toolgate_net::BusyPollingReader;

/// Size of one read from standard input, and of one write to standard output, in bytes.
const CHUNK_BYTES: usize = 64 << 10;
/// Largest message that is copied into a joint write, in bytes. Larger messages are written
/// separately.
const COPY_BYTES_MAX: usize = 32 << 10;

/// One line of a client's input, without its line ending.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StdioInputLine {
    /// Complete line of input, within the size limit.
    Whole(Bytes),
    /// Line of input beyond the size limit, whose content was skipped.
    TooLong,
}

/// Passes every line of `input` to `take`, in order, until the input ends.
///
/// Reads nothing while `take` waits. If a client does not read its answers, the server therefore
/// soon stops reading from it. Blank lines are skipped. A line ends with `\n` or `\r\n`. The last
/// line may lack its ending.
///
/// # Errors
/// Fails if reading fails.
pub async fn read_lines<Taken: Future<Output = ()>>(
    mut input: impl AsyncRead + Unpin,
    line_bytes_max: usize,
    mut take: impl FnMut(StdioInputLine) -> Taken,
) -> io::Result<()> {
    let mut buffer = BytesMut::with_capacity(CHUNK_BYTES);
    let mut searched = 0;
    let mut skipping = false;
    loop {
        while let Some(at) = memchr(b'\n', &buffer[searched..]) {
            let line = buffer.split_to(searched + at + 1);
            searched = 0;
            if !std::mem::take(&mut skipping) {
                take_line(line, line_bytes_max, &mut take).await;
            }
        }
        let too_long = buffer.len() > line_bytes_max.saturating_add(1);
        if too_long && !std::mem::replace(&mut skipping, true) {
            take(StdioInputLine::TooLong).await;
        }
        if skipping {
            buffer.clear();
        }
        searched = buffer.len();
        buffer.reserve(CHUNK_BYTES);
        if input.read_buf(&mut buffer).await? == 0 {
            if !skipping {
                take_line(buffer, line_bytes_max, &mut take).await;
            }
            return Ok(());
        }
    }
}

async fn take_line<Taken: Future<Output = ()>>(
    line: BytesMut,
    line_bytes_max: usize,
    take: &mut impl FnMut(StdioInputLine) -> Taken,
) {
    let mut line = line.freeze();
    // Only one line ending is removed, so that the size limit does not depend on how the data
    // arrives.
    for end in *b"\n\r" {
        if line.last() == Some(&end) {
            line.truncate(line.len() - 1);
        }
    }
    if line.len() > line_bytes_max {
        take(StdioInputLine::TooLong).await;
    } else if !strip_byte_order_mark_bytes(&line).iter().all(u8::is_ascii_whitespace) {
        take(StdioInputLine::Whole(line)).await;
    }
}

/// Writes each message of `queue` to `output` as a line until the queue closes. Messages that are
/// ready are written together.
///
/// # Errors
/// Fails if writing fails.
pub async fn write_lines(
    mut output: impl AsyncWrite + Unpin,
    mut queue: mpsc::Receiver<Bytes>,
) -> io::Result<()> {
    let mut ready = Vec::new();
    let mut together = Vec::with_capacity(CHUNK_BYTES);
    while queue.recv_many(&mut ready, 128).await > 0 {
        for message in ready.drain(..) {
            if message.len() > COPY_BYTES_MAX {
                output.write_all(&together).await?;
                together.clear();
                output.write_all(&message).await?;
            } else {
                together.extend_from_slice(&message);
            }
            together.push(b'\n');
            if together.len() > CHUNK_BYTES {
                output.write_all(&together).await?;
                together.clear();
            }
        }
        output.write_all(&together).await?;
        together.clear();
        output.flush().await?;
    }
    Ok(())
}

/// Opens this process's standard input.
pub fn stdin() -> Box<dyn AsyncRead + Send + Unpin> {
    match StandardStreamKind::detect(&io::stdin()) {
        StandardStreamKind::Pipe => match pipe::OpenOptions::new().open_receiver("/proc/self/fd/0")
        {
            Ok(pipe) => Box::new(BusyPollingReader::new(pipe)),
            Err(_) => Box::new(tokio::io::stdin()),
        },
        StandardStreamKind::Socket => match socket(&io::stdin()) {
            Ok(socket) => Box::new(BusyPollingReader::new(socket)),
            Err(_) => Box::new(tokio::io::stdin()),
        },
        StandardStreamKind::Other => Box::new(tokio::io::stdin()),
    }
}

/// Buffer size of an output pipe, in bytes. A larger buffer needs fewer writes, each of which wakes
/// the reader. The pipes of one user may have 64 MiB in total.
const PIPE_BYTES: usize = 256 << 10;

/// Opens this process's standard output.
pub fn stdout() -> Box<dyn AsyncWrite + Send + Unpin> {
    let stdout = io::stdout();
    // A larger buffer is kept, and failure to enlarge it is harmless.
    if fcntl_getpipe_size(&stdout).is_ok_and(|bytes| bytes < PIPE_BYTES) {
        let _ = fcntl_setpipe_size(&stdout, PIPE_BYTES);
    }
    match StandardStreamKind::detect(&stdout) {
        StandardStreamKind::Pipe => match pipe::OpenOptions::new().open_sender("/proc/self/fd/1") {
            Ok(pipe) => Box::new(pipe),
            Err(_) => Box::new(tokio::io::stdout()),
        },
        StandardStreamKind::Socket => match socket(&io::stdout()) {
            Ok(socket) => Box::new(socket),
            Err(_) => Box::new(tokio::io::stdout()),
        },
        StandardStreamKind::Other => Box::new(tokio::io::stdout()),
    }
}

/// File type of a standard stream.
///
/// Pipes and sockets need no thread that waits for data, which saves two thread switches per call.
/// A pipe is opened again, so that it does not become non-blocking for other processes that share
/// it.
enum StandardStreamKind {
    Pipe,
    Socket,
    Other,
}

impl StandardStreamKind {
    fn detect(stream: &impl AsFd) -> Self {
        match rustix::fs::fstat(stream).map(|stat| FileType::from_raw_mode(stat.st_mode)) {
            Ok(FileType::Fifo) => Self::Pipe,
            Ok(FileType::Socket) => Self::Socket,
            Ok(_) | Err(_) => Self::Other,
        }
    }
}

fn socket(stream: &impl AsFd) -> io::Result<UnixStream> {
    let fd: OwnedFd = rustix::io::fcntl_dupfd_cloexec(stream, 3)?;
    let socket = std::os::unix::net::UnixStream::from(fd);
    socket.set_nonblocking(true)?;
    UnixStream::from_std(socket)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    async fn lines_of(chunks: Vec<Vec<u8>>, max: usize) -> Vec<StdioInputLine> {
        let (mut client, server) = tokio::io::duplex(16);
        let writing = tokio::spawn(async move {
            for chunk in chunks {
                client.write_all(&chunk).await.expect("the reader lives");
            }
        });
        let mut lines = Vec::new();
        let take = |line| {
            lines.push(line);
            std::future::ready(())
        };
        read_lines(server, max, take).await.expect("memory does not fail");
        writing.await.expect("the writer ends");
        lines
    }

    #[tokio::test]
    async fn a_line_at_the_limit_is_read_and_a_longer_one_is_skipped() {
        let input = [vec![b'a'; 100], b"\n".to_vec(), vec![b'b'; 101], b"\nc\n".to_vec()].concat();
        let lines = lines_of(vec![input], 100).await;
        let whole = |bytes: &[u8]| StdioInputLine::Whole(Bytes::copy_from_slice(bytes));
        assert_eq!(lines, [whole(&[b'a'; 100]), StdioInputLine::TooLong, whole(b"c")]);
    }

    proptest! {
        #[test]
        fn chunk_boundaries_do_not_change_the_lines(
            lines in proptest::collection::vec("[a-z]{1,30}", 0..20),
            cuts in proptest::collection::vec(0usize..600, 0..8),
        ) {
            let text = lines.iter().fold(String::new(), |text, line| text + line + "\n");
            let mut cuts: Vec<_> = cuts.into_iter().map(|cut| cut.min(text.len())).collect();
            cuts.extend([0, text.len()]);
            cuts.sort_unstable();
            let chunks = cuts.windows(2).map(|w| text.as_bytes()[w[0]..w[1]].to_vec()).collect();
            let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
            let got = runtime.block_on(lines_of(chunks, 1000));
            let expected: Vec<_> = lines.into_iter().map(|line| StdioInputLine::Whole(line.into())).collect();
            prop_assert_eq!(got, expected);
        }
    }
}
