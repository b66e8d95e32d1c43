//! Messages as lines on the pipes of a program.

use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, BufReader};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::cut::Cut;
use super::pen::Pen;
use super::talk::{Ear, Talk, until};
use crate::wire::Hears;
use crate::world::Started;

/// How long its last words are waited for when it ends.
const LAST_WORDS_WAIT: Duration = Duration::from_millis(200);
/// How long its output is read on once the program has ended, when something that it started holds
/// it open; and how long where there is always more.
const DRAIN: Duration = Duration::from_millis(200);
const DRAIN_MAX: Duration = Duration::from_secs(2);

/// Speaks to `started` in lines of at most `bytes_max`.
pub(crate) fn open(started: Started, bytes_max: usize, hears: Arc<dyn Hears>) -> Talk {
    let Started { input, output, errors, ended, hold } = started;
    let (talk, lines, ends) = Talk::begin(hears, hold);
    let pen = Arc::new(Pen::new(input));
    let talk = talk.written_by(pen.clone());
    let errors = tokio::spawn(listened(errors, talk.ear()));
    tokio::spawn(until(ends.clone(), written(pen, lines, talk.ear())));
    tokio::spawn(until(ends, read(output, bytes_max, talk.ear(), errors, ended)));
    talk
}

/// Writes the lines that whoever says them could not write at once.
async fn written(pen: Arc<Pen>, mut lines: mpsc::Receiver<Bytes>, ear: Ear) {
    loop {
        tokio::select! {
            line = lines.recv() => match line {
                Some(line) => pen.takes(&line),
                None => return,
            },
            () = pen.is_left() => {}
        }
        // What waits goes with it, at the price of one system call.
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
    output: impl AsyncRead + Unpin,
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
    let mut output = BufReader::with_capacity(64 << 10, output);
    let mut line = Vec::new();
    let why = loop {
        line.clear();
        let read = tokio::select! {
            // What is there is read before the time is looked at.
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
    /// Only its beginning and its end were kept.
    TooLong(Cut),
    End,
}

/// Reads one line into `line`, or the beginning of one that is longer than `bytes_max`.
async fn next_line(
    output: &mut BufReader<impl AsyncRead + Unpin>,
    line: &mut Vec<u8>,
    bytes_max: usize,
) -> std::io::Result<Line> {
    let mut cut: Option<Cut> = None;
    loop {
        let piece = output.fill_buf().await?;
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
        output.consume(end.map_or(taken, |end| end + 1));
        if end.is_some() {
            return Ok(cut.map_or(Line::Whole, Line::TooLong));
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;
    use toolgate_contract::Hold;

    use super::super::scripted::{asks, deaf};
    use super::*;
    use crate::wire::{Trouble, Wire};

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
        let (first, second) = (asks(1, "ping"), asks(2, "ping"));
        let calls =
            async { tokio::join!(talk.request(first, deaf()), talk.request(second, deaf()), ends) };
        let (first, second, ()) = calls.await;
        assert!(first.is_ok(), "{first:?}");
        assert!(matches!(&second, Err(Trouble::Lost(why)) if why.contains(HELD)), "{second:?}");
        assert!(talk.gone().is_cancelled());
    }
}
