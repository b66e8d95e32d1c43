//! Starts worker processes on behalf of the server, and sends one request at a time to each of
//! them.

use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, recv, socketpair};

use super::ProcessRunnerState;
use super::packed_program::WorkerExecutable;
use crate::programs::{ChildProcess, PreparedProgram};
use crate::sandbox::{read_frame, write_frame};

/// The longest time from the start of a worker process until it is ready.
const START_TIMEOUT: Duration = Duration::from_secs(10);
/// The maximum length of the reason that a worker states if it cannot start to work, in bytes.
const REASON_BYTES_MAX: usize = 4 << 10;

/// A starter of worker processes that run one executable, see
/// [`ProcessRunner::workers`](super::ProcessRunner::workers).
pub struct WorkerProcessStarter {
    runner: Weak<ProcessRunnerState>,
    name: &'static str,
    executable: WorkerExecutable,
}

/// A worker: a process of this server that answers requests and has no access to files, networks or
/// other processes. Dropping this value kills the process.
pub struct WorkerProcess {
    connection: UnixStream,
    process: ChildProcess,
    /// The unpacked program that the worker runs. All workers of one program share the memory.
    _program: Option<Arc<OwnedFd>>,
}

/// The reason why a worker process gave no answer. Do not send another request to that worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkerFailure {
    /// The worker had already ended before the request, so the request is not the cause.
    EndedBefore,
    /// The worker ended while it handled the request, for example at its limit of memory or
    /// processor time, or sent a malformed answer.
    Crashed,
    /// The worker took too long to answer.
    TimedOut,
}

impl WorkerProcessStarter {
    pub(super) fn new(
        runner: Weak<ProcessRunnerState>,
        name: &'static str,
        executable: WorkerExecutable,
    ) -> Self {
        Self { runner, name, executable }
    }

    /// Starts a worker, and waits until it has given up its rights. Blocks.
    ///
    /// # Errors
    /// The executable is missing or damaged, or the process cannot be started or cannot give up its
    /// rights. The error is `Interrupted` if the runner of this starter has ended.
    pub fn start(&self) -> io::Result<WorkerProcess> {
        let runner = self.runner.upgrade().ok_or(io::ErrorKind::Interrupted)?;
        let flags = SocketFlags::CLOEXEC;
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        let (path, program) = self.executable.open()?;
        let image = PreparedProgram::with_handle(path, self.name, &theirs)?;
        drop(theirs);
        let process = runner.spawner.spawn_worker(image)?;
        let connection = UnixStream::from(ours);
        let worker = WorkerProcess { connection, process, _program: program };
        let mut stream = DeadlineStream::new(&worker.connection, START_TIMEOUT);
        let reason = read_frame(&mut stream, REASON_BYTES_MAX)?;
        let reason = reason.ok_or(io::ErrorKind::UnexpectedEof)?;
        if reason.is_empty() {
            Ok(worker)
        } else {
            Err(io::Error::other(String::from_utf8_lossy(&reason).into_owned()))
        }
    }
}

impl WorkerProcess {
    /// Sends `request` and returns the answer, which has at most `answer_bytes_max` bytes. Blocks
    /// for at most `timeout`.
    ///
    /// # Errors
    /// The worker gave no answer.
    pub fn exchange(
        &mut self,
        request: &[u8],
        answer_bytes_max: usize,
        timeout: Duration,
    ) -> Result<Vec<u8>, WorkerFailure> {
        exchange_over(&self.connection, request, answer_bytes_max, timeout)
    }
}

impl Drop for WorkerProcess {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.process.kill_and_wait();
    }
}

fn exchange_over(
    connection: &UnixStream,
    request: &[u8],
    answer_bytes_max: usize,
    timeout: Duration,
) -> Result<Vec<u8>, WorkerFailure> {
    let mut byte = [0_u8];
    // Bytes that nobody asked for are no answer to this request, and an end is no fault of it.
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    if !matches!(recv(connection, &mut byte, flags), Err(Errno::AGAIN)) {
        return Err(WorkerFailure::EndedBefore);
    }
    let mut stream = DeadlineStream::new(connection, timeout);
    match write_frame(&mut stream, request) {
        Ok(()) => {}
        Err(err) if err.kind() == io::ErrorKind::TimedOut => return Err(WorkerFailure::TimedOut),
        Err(_) => return Err(WorkerFailure::EndedBefore),
    }
    match read_frame(&mut stream, answer_bytes_max) {
        Ok(Some(answer)) => Ok(answer),
        Err(err) if err.kind() == io::ErrorKind::TimedOut => Err(WorkerFailure::TimedOut),
        Ok(None) | Err(_) => Err(WorkerFailure::Crashed),
    }
}

/// A connection whose reads and writes fail with `TimedOut` after a point in time.
struct DeadlineStream<'s> {
    connection: &'s UnixStream,
    until: Instant,
}

impl<'s> DeadlineStream<'s> {
    fn new(connection: &'s UnixStream, timeout: Duration) -> Self {
        Self { connection, until: Instant::now() + timeout }
    }

    /// Returns the time until the deadline, which is never zero. Fails with `TimedOut` after the
    /// deadline.
    fn time_left(&self) -> io::Result<Option<Duration>> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(Some(left)) }
    }
}

impl Read for DeadlineStream<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.connection.set_read_timeout(self.time_left()?)?;
        let mut connection = self.connection;
        connection.read(buffer).map_err(name_timeout)
    }
}

impl Write for DeadlineStream<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.connection.set_write_timeout(self.time_left()?)?;
        let mut connection = self.connection;
        connection.write(bytes).map_err(name_timeout)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Returns `err`, with the kind `TimedOut` for a timeout, which sockets report as `WouldBlock`.
fn name_timeout(err: io::Error) -> io::Error {
    match err.kind() {
        io::ErrorKind::WouldBlock => io::ErrorKind::TimedOut.into(),
        _ => err,
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(20);

    /// Sends a request to a simulated worker: a thread that runs `work` at its end of the
    /// connection.
    fn exchange_with(
        work: impl FnOnce(UnixStream) + Send + 'static,
        timeout: Duration,
    ) -> Result<Vec<u8>, WorkerFailure> {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let worker = thread::spawn(move || work(theirs));
        let answer = exchange_over(&ours, b"request", 16, timeout);
        drop(ours);
        worker.join().unwrap();
        answer
    }

    #[test]
    fn a_request_gets_the_answer_of_the_worker() {
        let answer = exchange_with(
            |mut line| {
                let request = read_frame(&mut line, 16).unwrap().unwrap();
                write_frame(&mut line, &[&request[..], b"!"].concat()).unwrap();
            },
            TIMEOUT,
        );
        assert_eq!(answer.unwrap(), b"request!");
    }

    #[test]
    fn a_worker_that_ends_without_a_whole_answer_has_crashed() {
        for answer in [&b""[..], b"\x05\0", b"\x05\0\0\0abc", b"\xff\xff\xff\xff"] {
            let work = move |mut line: UnixStream| {
                read_frame(&mut line, 16).unwrap();
                line.write_all(answer).unwrap();
            };
            assert_eq!(exchange_with(work, TIMEOUT), Err(WorkerFailure::Crashed), "{answer:?}");
        }
    }

    #[test]
    fn a_worker_that_does_not_answer_in_time_has_timed_out() {
        let silent = |mut line: UnixStream| {
            read_frame(&mut line, 16).unwrap();
            // Returns once the server has given up.
            read_frame(&mut line, 16).unwrap();
        };
        let answer = exchange_with(silent, Duration::from_millis(50));
        assert_eq!(answer, Err(WorkerFailure::TimedOut));
    }

    #[test]
    fn a_worker_that_ended_before_a_request_is_not_blamed_for_it() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        drop(theirs);
        let answer = exchange_over(&ours, b"request", 16, TIMEOUT);
        assert_eq!(answer, Err(WorkerFailure::EndedBefore));
    }

    #[test]
    fn an_answer_without_a_request_is_never_taken_for_the_next_answer() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        write_frame(&mut theirs, b"early").unwrap();
        let answer = exchange_over(&ours, b"request", 16, TIMEOUT);
        assert_eq!(answer, Err(WorkerFailure::EndedBefore));
    }

    #[test]
    fn a_starter_without_its_runner_starts_nothing() {
        let starter =
            WorkerProcessStarter::new(Weak::new(), "toolgate-test", WorkerExecutable::Server);
        assert_eq!(starter.start().err().map(|err| err.kind()), Some(io::ErrorKind::Interrupted));
    }
}
