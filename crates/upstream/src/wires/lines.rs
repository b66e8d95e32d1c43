//! Line-based messages on the pipes of a program (stdio transport).

use std::ops::Range;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncReadExt, ReadBuf};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::brisk::{self, Brisk};
use super::cut::Cut;
use super::pen::Pen;
use super::talk::{Ear, Talk, until};
use crate::wire::Hears;
use crate::world::{Output, Started};

/// Most bytes per read.
const PIECE: usize = 64 << 10;
/// Longest wait for the rest of standard error after the output has ended.
const LAST_WORDS_WAIT: Duration = Duration::from_millis(200);
/// Time that output is read after the program has exited, because a child process may hold the pipe
/// open. The second value is the limit if output keeps coming.
const DRAIN: Duration = Duration::from_millis(200);
const DRAIN_MAX: Duration = Duration::from_secs(2);

/// Opens a conversation with `started`, in lines of at most `bytes_max` bytes.
pub(crate) fn open(started: Started, bytes_max: usize, hears: Arc<dyn Hears>) -> Talk {
    let Started { input, output, errors, ended, hold } = started;
    let (talk, lines, ends) = Talk::begin(hears, hold, Brisk::reader());
    let pen = Arc::new(Pen::new(input));
    let talk = talk.written_by(pen.clone());
    let errors = tokio::spawn(listened(errors, talk.ear()));
    tokio::spawn(until(ends.clone(), written(pen, lines, talk.ear())));
    let output = Pieces::new(output, talk.brisk().clone());
    tokio::spawn(until(ends, read(output, bytes_max, talk.ear(), errors, ended)));
    talk
}

/// Writes the lines that could not be written at once by their senders.
async fn written(pen: Arc<Pen>, mut lines: mpsc::Receiver<Bytes>, ear: Ear) {
    loop {
        tokio::select! {
            line = lines.recv() => match line {
                Some(line) => pen.takes(&line),
                None => return,
            },
            () = pen.is_left() => {}
        }
        // Waiting lines are written together in one system call.
        let mut more = 0;
        while more < 64 << 10 {
            let Ok(line) = lines.try_recv() else { break };
            more += line.len();
            pen.takes(&line);
        }
        if let Err(err) = pen.writes_all().await {
            return ear.shared.end(format!("it does not read: {err}"));
        }
    }
}

async fn listened(mut errors: impl AsyncRead + Unpin, ear: Ear) {
    let mut piece = vec![0; 4096];
    while let Ok(len @ 1..) = errors.read(&mut piece).await {
        tracing::debug!("an upstream says: {}", String::from_utf8_lossy(&piece[..len]).trim_end());
        ear.shared.says(&piece[..len]);
    }
}

async fn read(
    mut output: Pieces,
    bytes_max: usize,
    ear: Ear,
    errors: JoinHandle<()>,
    ended: CancellationToken,
) {
    let mut is_over = pin!(async {
        ended.cancelled().await;
        sleep(DRAIN).await;
    });
    let mut drained = None;
    let mut line = Vec::new();
    let why = loop {
        line.clear();
        let read = tokio::select! {
            // Available output is read before the timer is checked.
            biased;
            read = next_line(&mut output, &mut line, bytes_max) => read,
            () = &mut is_over => break HELD.to_owned(),
        };
        match read {
            Ok(Line::Whole) => ear.taken(&line),
            Ok(Line::TooLong(cut)) => ear.too_long(&cut, bytes_max),
            Ok(Line::End) => break "it ended".to_owned(),
            Err(err) => break format!("it cannot be read: {err}"),
        }
        if line.capacity() > 1 << 20 {
            line = Vec::new();
        }
        if ended.is_cancelled() && drained.get_or_insert_with(Instant::now).elapsed() > DRAIN_MAX {
            break HELD.to_owned();
        }
    };
    let _ = tokio::time::timeout(LAST_WORDS_WAIT, errors).await;
    ear.shared.end(why);
}

const HELD: &str = "it ended, and something that it started keeps its output open";

enum Line {
    Whole,
    /// A line that is too long, truncated to its beginning and end.
    TooLong(Cut),
    End,
}

/// Reads one line into `line`, or truncates it if it is longer than `bytes_max`.
async fn next_line(
    output: &mut Pieces,
    line: &mut Vec<u8>,
    bytes_max: usize,
) -> std::io::Result<Line> {
    let mut cut: Option<Cut> = None;
    loop {
        let piece = output.next().await?;
        if piece.is_empty() {
            return Ok(match cut {
                Some(cut) => Line::TooLong(cut),
                None if line.is_empty() => Line::End,
                None => Line::Whole,
            });
        }
        let end = memchr::memchr(b'\n', piece);
        let taken = end.unwrap_or(piece.len());
        if cut.is_none() && line.len() + taken > bytes_max {
            let mut begun = Cut::default();
            begun.take(&std::mem::take(line));
            cut = Some(begun);
        }
        match &mut cut {
            Some(cut) => cut.take(&piece[..taken]),
            None => line.extend_from_slice(&piece[..taken]),
        }
        output.take(end.map_or(taken, |end| end + 1));
        if end.is_some() {
            return Ok(cut.map_or(Line::Whole, Line::TooLong));
        }
    }
}

/// The output of a program, in pieces.
struct Pieces {
    output: Box<dyn Output>,
    brisk: Arc<Brisk>,
    piece: Box<[u8]>,
    /// Bytes that were read but not yet consumed.
    fresh: Range<usize>,
}

impl Pieces {
    fn new(output: Box<dyn Output>, brisk: Arc<Brisk>) -> Self {
        Self { output, brisk, piece: vec![0; PIECE].into(), fresh: 0..0 }
    }

    /// Returns the available bytes. They are empty at the end of the output.
    async fn next(&mut self) -> std::io::Result<&[u8]> {
        let Self { output, brisk, piece, fresh } = self;
        while Range::is_empty(fresh) {
            tokio::select! {
                biased;
                read = output.read(piece) => {
                    *fresh = 0..read?;
                    brisk.came();
                    break;
                }
                () = brisk.is_wanted() => {
                    let mut piece = ReadBuf::new(piece);
                    if brisk::look(|end| output.look(end, &mut piece)) {
                        *fresh = 0..piece.filled().len();
                    }
                }
            }
        }
        Ok(&piece[fresh.clone()])
    }

    fn take(&mut self, bytes: usize) {
        self.fresh.start += bytes;
    }
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::task::{Context, Poll};

    use tokio::io::{AsyncWriteExt, DuplexStream};
    use toolgate_contract::Hold;

    use super::super::scripted::{asks, deaf};
    use super::*;
    use crate::wire::{Trouble, Wire};

    impl Output for DuplexStream {}

    /// What is there only for who looks.
    struct Found(&'static [u8]);

    impl AsyncRead for Found {
        fn poll_read(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
            _: &mut ReadBuf<'_>,
        ) -> Poll<std::io::Result<()>> {
            Poll::Pending
        }
    }

    impl Output for Found {
        fn look(&self, end: Instant, piece: &mut ReadBuf<'_>) -> bool {
            assert!(end > Instant::now());
            piece.put_slice(self.0);
            true
        }
    }

    #[tokio::test]
    async fn what_is_found_by_looking_is_taken_as_what_is_read() {
        let brisk = Arc::new(Brisk::quick_reader());
        let mut output = Pieces::new(Box::new(Found(b"one\ntw")), brisk.clone());
        let mut line = Vec::new();
        brisk.wait(true, tokio::task::yield_now()).await;
        assert!(matches!(next_line(&mut output, &mut line, 8).await, Ok(Line::Whole)));
        assert_eq!(line, b"one");
        line.clear();
        let waits = tokio::time::timeout(DRAIN, next_line(&mut output, &mut line, 8)).await;
        assert!(waits.is_err(), "nothing is looked for unless an answer is waited for");
        assert_eq!(line, b"tw");
        brisk.wait(true, tokio::task::yield_now()).await;
        assert!(matches!(next_line(&mut output, &mut line, 8).await, Ok(Line::Whole)));
        assert_eq!(line, b"twone");
    }

    #[tokio::test]
    async fn what_a_program_said_before_it_ended_is_read_though_its_output_stays_open() {
        let (mut far, output) = tokio::io::duplex(1 << 10);
        let ended = CancellationToken::new();
        let started = Started {
            input: Box::new(tokio::io::sink()),
            output: Box::new(output),
            errors: Box::new(tokio::io::empty()),
            ended: ended.clone(),
            hold: Hold::nothing(),
        };
        let talk = open(started, 1 << 20, deaf());
        let ends = async {
            let answer = b"{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}\n";
            far.write_all(answer).await.expect("it is read");
            ended.cancel();
        };
        let first = asks(1, "ping");
        let second = asks(2, "ping");
        let calls =
            async { tokio::join!(talk.request(first, deaf()), talk.request(second, deaf()), ends) };
        let (first, second, ()) = calls.await;
        assert!(first.is_ok(), "{first:?}");
        assert!(matches!(&second, Err(Trouble::Lost(why)) if why.contains(HELD)), "{second:?}");
        assert!(talk.gone().is_cancelled());
    }
}
