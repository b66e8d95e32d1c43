//! The stdio transport: messages as lines on the pipes of a program.

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
use toolgate_contract::strip_byte_order_mark_bytes;
use toolgate_net::{AnswerBusyPollState, TruncatedText};

use super::conversation::{IncomingMessageReceiver, UpstreamConversation, run_until};
use super::writer::PipeLineWriter;
use crate::transport::MessageReceiver;
use crate::world::{RunningUpstreamProgram, UpstreamOutputReader};

/// Maximum number of bytes of a program's output per read.
const PIECE_BYTES: usize = 64 << 10;
/// Longest wait for the rest of a program's standard error after its output has ended.
const LAST_WORDS_WAIT: Duration = Duration::from_millis(200);
/// Time without output after which reading stops, if the program has exited but a child process
/// holds the pipe open.
const DRAIN: Duration = Duration::from_millis(200);
/// Longest time to read a program's output after the program has exited.
const DRAIN_MAX: Duration = Duration::from_secs(2);

/// Starts a conversation with the program `started` over its pipes. A line of output may have at
/// most `bytes_max` bytes.
pub(crate) fn open(
    started: RunningUpstreamProgram,
    bytes_max: usize,
    receiver: Arc<dyn MessageReceiver>,
) -> UpstreamConversation {
    let RunningUpstreamProgram { input, output, errors, exited, refused_hosts, hold } = started;
    let (conversation, lines, ends) =
        UpstreamConversation::start(receiver, hold, AnswerBusyPollState::for_reader());
    let writer = Arc::new(PipeLineWriter::new(input));
    let conversation = conversation.with_writer(writer.clone());
    if let Some(refused_hosts) = refused_hosts {
        conversation.set_refused_hosts(refused_hosts);
    }
    let errors = toolgate_net::spawn_task(read_errors(errors, conversation.incoming()));
    toolgate_net::spawn_task(run_until(
        ends.clone(),
        write_lines(writer, lines, conversation.incoming()),
    ));
    let output = ProgramOutputPieces::new(output, conversation.busy_poll().clone());
    toolgate_net::spawn_task(run_until(
        ends,
        read_lines(output, bytes_max, conversation.incoming(), errors, exited),
    ));
    conversation
}

/// Writes queued lines to the program: those that could not be written at once.
async fn write_lines(
    writer: Arc<PipeLineWriter>,
    mut lines: mpsc::Receiver<Bytes>,
    incoming: IncomingMessageReceiver,
) {
    loop {
        tokio::select! {
            line = lines.recv() => match line {
                Some(line) => writer.accept(&line),
                None => return,
            },
            () = writer.wait_rest() => {}
        }
        // Waiting lines are written together in one system call.
        let mut more = 0;
        while more < 64 << 10 {
            let Ok(line) = lines.try_recv() else { break };
            more += line.len();
            writer.accept(&line);
        }
        if let Err(err) = writer.write_rest().await {
            return incoming.shared.end(format!("writing to it failed: {err}"));
        }
    }
}

async fn read_errors(mut errors: impl AsyncRead + Unpin, incoming: IncomingMessageReceiver) {
    let mut piece = vec![0; 4096];
    while let Ok(len @ 1..) = errors.read(&mut piece).await {
        tracing::debug!(
            "error output of an upstream: {}",
            String::from_utf8_lossy(&piece[..len]).trim_end()
        );
        incoming.shared.keep_error_output(&piece[..len]);
    }
}

async fn read_lines(
    mut output: ProgramOutputPieces,
    bytes_max: usize,
    incoming: IncomingMessageReceiver,
    errors: JoinHandle<()>,
    exited: CancellationToken,
) {
    let mut is_over = pin!(async {
        exited.cancelled().await;
        sleep(DRAIN).await;
    });
    let mut drained = None;
    let mut line = Vec::new();
    let why = loop {
        line.clear();
        let note_begun = |begun: &[u8]| record_begun(&incoming, begun);
        let read = tokio::select! {
            // Available output is read before the timer is checked.
            biased;
            read = next_line(&mut output, &mut line, bytes_max, note_begun) => read,
            () = &mut is_over => break OUTPUT_HELD_OPEN.to_owned(),
        };
        match read {
            Ok(LineReadOutcome::Whole) => incoming.handle(&line),
            Ok(LineReadOutcome::TooLong(cut)) => incoming.fail_too_long(&cut, bytes_max),
            Ok(LineReadOutcome::End) => break "it exited".to_owned(),
            Err(err) => break format!("reading from it failed: {err}"),
        }
        if line.capacity() > 1 << 20 {
            line = Vec::new();
        }
        if exited.is_cancelled() && drained.get_or_insert_with(Instant::now).elapsed() > DRAIN_MAX {
            break OUTPUT_HELD_OPEN.to_owned();
        }
    };
    let _ = tokio::time::timeout(LAST_WORDS_WAIT, errors).await;
    incoming.shared.end(why);
}

const OUTPUT_HELD_OPEN: &str = "the program exited, but a child process keeps its output open";

/// Outcome of reading one line of a program's output.
enum LineReadOutcome {
    Whole,
    /// The line is too long. The value contains its beginning and end.
    TooLong(TruncatedText),
    End,
}

/// Records the beginning of an output line that is not a message, such as a prompt that waits for
/// input.
fn record_begun(incoming: &IncomingMessageReceiver, begun: &[u8]) {
    let start = strip_byte_order_mark_bytes(begun).trim_ascii_start();
    if !start.is_empty() && !start.starts_with(b"{") && !start.starts_with(b"[") {
        incoming.shared.record_output(begun);
    }
}

/// Reads one line of a program's output into `line`, or truncates it if it is longer than
/// `bytes_max`. Passes an incomplete line to `note_begun`.
async fn next_line(
    output: &mut ProgramOutputPieces,
    line: &mut Vec<u8>,
    bytes_max: usize,
    note_begun: impl Fn(&[u8]),
) -> std::io::Result<LineReadOutcome> {
    let mut cut: Option<TruncatedText> = None;
    loop {
        let piece = output.next().await?;
        if piece.is_empty() {
            return Ok(match cut {
                Some(cut) => LineReadOutcome::TooLong(cut),
                None if line.is_empty() => LineReadOutcome::End,
                None => LineReadOutcome::Whole,
            });
        }
        let end = memchr::memchr(b'\n', piece);
        let taken = end.unwrap_or(piece.len());
        if cut.is_none() && line.len() + taken > bytes_max {
            let mut begun = TruncatedText::default();
            begun.append(&std::mem::take(line));
            cut = Some(begun);
        }
        match &mut cut {
            Some(cut) => cut.append(&piece[..taken]),
            None => line.extend_from_slice(&piece[..taken]),
        }
        if end.is_none() && cut.is_none() {
            note_begun(line);
        }
        output.take(end.map_or(taken, |end| end + 1));
        if end.is_some() {
            return Ok(cut.map_or(LineReadOutcome::Whole, LineReadOutcome::TooLong));
        }
    }
}

/// Reader of a program's output, which returns the bytes as they arrive.
struct ProgramOutputPieces {
    output: Box<dyn UpstreamOutputReader>,
    busy_poll: Arc<AnswerBusyPollState>,
    piece: Box<[u8]>,
    /// Range of the bytes that were read but not yet consumed.
    unread: Range<usize>,
}

impl ProgramOutputPieces {
    fn new(output: Box<dyn UpstreamOutputReader>, busy_poll: Arc<AnswerBusyPollState>) -> Self {
        Self { output, busy_poll, piece: vec![0; PIECE_BYTES].into(), unread: 0..0 }
    }

    /// Returns the output bytes that are available. Returns no bytes at the end of the output.
    async fn next(&mut self) -> std::io::Result<&[u8]> {
        let Self { output, busy_poll, piece, unread } = self;
        while Range::is_empty(unread) {
            tokio::select! {
                biased;
                read = output.read(piece) => {
                    *unread = 0..read?;
                    busy_poll.note_arrival();
                    break;
                }
                () = busy_poll.wait_wanted() => {
                    let mut piece = ReadBuf::new(piece);
                    if busy_poll.try_read(|end| output.read_busy(end, &mut piece)) {
                        *unread = 0..piece.filled().len();
                    }
                }
            }
        }
        Ok(&piece[unread.clone()])
    }

    fn take(&mut self, bytes: usize) {
        self.unread.start += bytes;
    }
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::task::{Context, Poll};

    use tokio::io::{AsyncWriteExt, DuplexStream};
    use toolgate_contract::KeepActiveGuard;

    use super::super::scripted::{new_request, no_receiver};
    use super::*;
    use crate::transport::{TransportConnection, UpstreamRequestFailure};
    use crate::world::{RefusedHostsFn, UpstreamRefusedHost};

    impl UpstreamOutputReader for DuplexStream {}

    /// Program output that never wakes its reader. Only a polling reader receives its bytes.
    struct NeverWakingProgramOutput(&'static [u8]);

    impl AsyncRead for NeverWakingProgramOutput {
        fn poll_read(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
            _: &mut ReadBuf<'_>,
        ) -> Poll<std::io::Result<()>> {
            Poll::Pending
        }
    }

    impl UpstreamOutputReader for NeverWakingProgramOutput {
        fn read_busy(&self, end: Instant, piece: &mut ReadBuf<'_>) -> bool {
            assert!(end > Instant::now());
            piece.put_slice(self.0);
            true
        }
    }

    #[tokio::test]
    async fn output_found_by_polling_is_handled_like_output_that_is_read() {
        let busy_poll = Arc::new(AnswerBusyPollState::for_reader());
        let output = Box::new(NeverWakingProgramOutput(b"one\ntw"));
        let mut output = ProgramOutputPieces::new(output, busy_poll.clone());
        let mut line = Vec::new();
        for expected in ["one", "twone"] {
            let quick_answers = async {
                loop {
                    busy_poll.wait(true, tokio::task::yield_now()).await;
                }
            };
            tokio::select! {
                biased;
                outcome = next_line(&mut output, &mut line, 8, |_| {}) => {
                    assert!(matches!(outcome, Ok(LineReadOutcome::Whole)));
                }
                () = quick_answers => {}
            }
            assert_eq!(line, expected.as_bytes());
            line.clear();
            let waits = tokio::time::timeout(DRAIN, next_line(&mut output, &mut line, 8, |_| {}));
            assert!(waits.await.is_err(), "the reader polls only while an answer is awaited");
        }
    }

    #[tokio::test]
    async fn the_reason_of_an_exit_names_the_hosts_that_were_refused() {
        let refused_hosts: RefusedHostsFn = Arc::new(|| {
            let reason = "it is not in `hosts`".to_owned();
            vec![UpstreamRefusedHost { host: "a.example:443".to_owned(), tries: 2, reason }]
        });
        let (far, output) = tokio::io::duplex(16);
        drop(far);
        let started = RunningUpstreamProgram {
            input: Box::new(tokio::io::sink()),
            output: Box::new(output),
            errors: Box::new(tokio::io::empty()),
            exited: CancellationToken::new(),
            refused_hosts: Some(refused_hosts),
            hold: KeepActiveGuard::none(),
        };
        let conversation = open(started, 1 << 20, no_receiver());
        conversation.closed().cancelled().await;
        let expected = "it exited; refused host a.example:443 (2 tries): it is not in `hosts`";
        assert_eq!(conversation.closed_reason(), expected);
    }

    #[tokio::test]
    async fn output_before_an_exit_is_read_even_if_the_pipe_stays_open() {
        let (mut far, output) = tokio::io::duplex(1 << 10);
        let exited = CancellationToken::new();
        let started = RunningUpstreamProgram {
            input: Box::new(tokio::io::sink()),
            output: Box::new(output),
            errors: Box::new(tokio::io::empty()),
            exited: exited.clone(),
            refused_hosts: None,
            hold: KeepActiveGuard::none(),
        };
        let conversation = open(started, 1 << 20, no_receiver());
        let finish = async {
            let answer = b"{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}\n";
            far.write_all(answer).await.expect("it is read");
            exited.cancel();
        };
        let first = new_request(1, "ping");
        let second = new_request(2, "ping");
        let calls = async {
            tokio::join!(
                conversation.request(first, no_receiver()),
                conversation.request(second, no_receiver()),
                finish
            )
        };
        let (first, second, ()) = calls.await;
        assert!(first.is_ok(), "{first:?}");
        assert!(
            matches!(&second, Err(UpstreamRequestFailure::Lost(why)) if why.contains(OUTPUT_HELD_OPEN)),
            "{second:?}"
        );
        assert!(conversation.closed().is_cancelled());
    }
}
