//! Relays the bytes of a tunnel in one direction: small amounts through a buffer, and large amounts
//! inside the kernel, which moves them through a pipe without copying.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::io::Errno;
use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::net::TcpStream;
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::timeout;

/// The size of the buffer through which a tunnel copies data, in bytes.
const COPY_BYTES: usize = 64 << 10;
/// The number of bytes after which one direction of a tunnel uses a pipe. For fewer bytes, opening
/// a pipe costs more than it saves.
const SPLICE_AFTER_BYTES: usize = 512 << 10;
/// The capacity of a pipe, in bytes.
const PIPE_BYTES: usize = 1 << 20;
/// The idle time after which one direction of a tunnel closes its pipe.
const PIPE_IDLE_TIMEOUT: Duration = Duration::from_secs(1);
/// The permits for pipes: at most 16 for all tunnels together. Without a permit, a tunnel copies
/// data through a buffer. The kernel limits the pipes of a user to 64 MiB, and the user's other
/// programs need pipes, too.
static PIPES: Semaphore = Semaphore::const_new(16);

/// A pipe through which the kernel moves data from one connection to another.
struct SplicePipe {
    reader: OwnedFd,
    writer: OwnedFd,
    _place: SemaphorePermit<'static>,
}

/// The reason why one direction of a tunnel stopped using its pipe. The pipe is then empty.
#[derive(Debug, PartialEq, Eq)]
enum SpliceStop {
    /// The sender has closed the connection for writing after its last data.
    EndOfData,
    /// The sender has sent nothing for [`PIPE_IDLE_TIMEOUT`].
    Idle,
    /// The kernel cannot move data between these connections.
    Unsupported,
}

/// Relays all data from `from` to `to`, and then closes `to` for writing. Buffers at most 1 MiB.
///
/// # Errors
/// The connection is lost. A cancelled relay loses data, so both connections must be closed then.
pub(super) async fn relay(from: &mut ReadHalf<'_>, to: &mut WriteHalf<'_>) -> io::Result<()> {
    relay_with(from, to, SPLICE_AFTER_BYTES).await
}

/// Relays data like [`relay`]. Uses a pipe after `splice_after` bytes have been copied through a
/// buffer.
async fn relay_with(
    from: &mut ReadHalf<'_>,
    to: &mut WriteHalf<'_>,
    splice_after: usize,
) -> io::Result<()> {
    let mut can_splice = true;
    let mut buffer = vec![0; COPY_BYTES];
    let mut copied = 0;
    loop {
        if can_splice && copied >= splice_after {
            copied = 0;
            if let Some(pipe) = SplicePipe::open() {
                match pipe.relay(from.as_ref(), to.as_ref()).await? {
                    SpliceStop::EndOfData => return to.shutdown().await,
                    SpliceStop::Idle => {}
                    SpliceStop::Unsupported => can_splice = false,
                }
            }
        }
        let length = from.read(&mut buffer).await?;
        if length == 0 {
            return to.shutdown().await;
        }
        to.write_all(buffer.get(..length).unwrap_or_default()).await?;
        copied += length;
    }
}

impl SplicePipe {
    /// Opens a pipe. Returns `None` if too many pipes are open or the system refuses.
    fn open() -> Option<Self> {
        let place = PIPES.try_acquire().ok()?;
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).ok()?;
        // A smaller pipe works, too.
        let _ = fcntl_setpipe_size(&writer, PIPE_BYTES);
        Some(Self { reader, writer, _place: place })
    }

    /// Moves data from `from` to `to` through this pipe.
    async fn relay(&self, from: &TcpStream, to: &TcpStream) -> io::Result<SpliceStop> {
        loop {
            // The pipe is empty, so only the connection can block.
            let filling = from.async_io(Interest::READABLE, || self.fill(from));
            let mut held = match timeout(PIPE_IDLE_TIMEOUT, filling).await {
                Ok(Ok(0)) => return Ok(SpliceStop::EndOfData),
                Ok(Ok(length)) => length,
                Ok(Err(err)) if is_unsupported(&err) => return Ok(SpliceStop::Unsupported),
                Ok(Err(err)) => return Err(err),
                Err(_) => return Ok(SpliceStop::Idle),
            };
            while held > 0 {
                let moved = to.async_io(Interest::WRITABLE, || self.drain(to, held)).await?;
                if moved == 0 {
                    return Err(io::ErrorKind::WriteZero.into());
                }
                held = held.saturating_sub(moved);
            }
        }
    }

    /// Moves data of `from` into this pipe. Returns the number of moved bytes, which is 0 if `from`
    /// has ended.
    fn fill(&self, from: &TcpStream) -> io::Result<usize> {
        Ok(splice(from, None, &self.writer, None, PIPE_BYTES, splice_flags())?)
    }

    /// Moves at most `length` bytes from this pipe to `to`. Returns the number of moved bytes.
    fn drain(&self, to: &TcpStream, length: usize) -> io::Result<usize> {
        Ok(splice(&self.reader, None, to, None, length, splice_flags())?)
    }
}

fn splice_flags() -> SpliceFlags {
    SpliceFlags::MOVE | SpliceFlags::NONBLOCK
}

/// Returns true if `err` means that the kernel, or a filter of system calls, does not support the
/// system call.
fn is_unsupported(err: &io::Error) -> bool {
    let errno = Errno::from_io_error(err);
    errno.is_some_and(|errno| [Errno::INVAL, Errno::NOSYS, Errno::PERM].contains(&errno))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tokio::net::TcpSocket;

    use super::*;

    /// The data that one end of a tunnel sends in a test, and the sizes of the pieces in which it
    /// sends and receives. After the data, the end closes its connection for writing.
    #[derive(Debug, Clone)]
    struct TunnelEndPlan {
        length: usize,
        seed: u8,
        written_bytes: usize,
        read_bytes: usize,
    }

    impl TunnelEndPlan {
        fn data(&self) -> Vec<u8> {
            // The period is a prime number, so that a lost or moved piece is noticed.
            let period: Vec<u8> = (0..=250).map(|byte: u8| byte ^ self.seed).collect();
            period.into_iter().cycle().take(self.length).collect()
        }
    }

    fn end_plan() -> impl Strategy<Value = TunnelEndPlan> {
        let length = prop_oneof![0..4_usize, 0..200_000_usize, 1_000_000..3_000_000_usize];
        let piece = || prop_oneof![500..5_000_usize, 50_000..500_000_usize];
        (length, any::<u8>(), piece(), piece()).prop_map(
            |(length, seed, written_bytes, read_bytes)| TunnelEndPlan {
                length,
                seed,
                written_bytes,
                read_bytes,
            },
        )
    }

    /// Returns both ends of a connection whose buffers are too small for the data of a full pipe.
    async fn connected_pair() -> (TcpStream, TcpStream) {
        let [listening, connecting] = [(); 2].map(|()| {
            let socket = TcpSocket::new_v4().unwrap();
            socket.set_send_buffer_size(16 << 10).unwrap();
            socket.set_recv_buffer_size(16 << 10).unwrap();
            socket
        });
        listening.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let listener = listening.listen(1).unwrap();
        let address = listener.local_addr().unwrap();
        let (connected, accepted) = tokio::join!(connecting.connect(address), listener.accept());
        (connected.unwrap(), accepted.unwrap().0)
    }

    /// Sends and receives data at the end `stream` of a tunnel as `plan` says. Returns all data
    /// that arrived.
    async fn play_end(mut stream: TcpStream, plan: &TunnelEndPlan) -> Vec<u8> {
        let (mut reader, mut writer) = stream.split();
        let sending = async {
            for piece in plan.data().chunks(plan.written_bytes) {
                writer.write_all(piece).await.unwrap();
                tokio::task::yield_now().await;
            }
            writer.shutdown().await.unwrap();
        };
        let receiving = async {
            let (mut all, mut buffer) = (Vec::new(), vec![0; plan.read_bytes]);
            loop {
                match reader.read(&mut buffer).await.unwrap() {
                    0 => return all,
                    length => all.extend_from_slice(&buffer[..length]),
                }
                tokio::task::yield_now().await;
            }
        };
        tokio::join!(sending, receiving).1
    }

    /// Runs a tunnel whose ends send and receive as `plans` say, with a pipe after `splice_after`
    /// bytes. Returns the data that arrived at each end.
    async fn run_ends(plans: &[TunnelEndPlan; 2], splice_after: usize) -> (Vec<u8>, Vec<u8>) {
        let ((program, mut client), (mut server, host)) =
            (connected_pair().await, connected_pair().await);
        let relaying = async {
            let (mut from_client, mut to_client) = client.split();
            let (mut from_server, mut to_server) = server.split();
            tokio::try_join!(
                relay_with(&mut from_client, &mut to_server, splice_after),
                relay_with(&mut from_server, &mut to_client, splice_after),
            )
        };
        let playing =
            async { tokio::join!(play_end(program, &plans[0]), play_end(host, &plans[1])) };
        let (relayed, received) = tokio::join!(relaying, playing);
        relayed.unwrap();
        received
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(16))]
        #[test]
        fn all_data_arrives_unchanged_in_both_directions_with_and_without_a_pipe(
            plans in [end_plan(), end_plan()],
            splice_after in prop_oneof![Just(0), Just(usize::MAX), 1..1_000_000_usize],
        ) {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let (at_program, at_host) = runtime.unwrap().block_on(run_ends(&plans, splice_after));
            prop_assert!(at_host == plans[0].data(), "the host received other data");
            prop_assert!(at_program == plans[1].data(), "the program received other data");
        }
    }

    #[tokio::test]
    async fn a_pipe_moves_data_and_ends_when_the_sender_closes_its_direction() {
        let ((mut sender, from), (to, mut receiver)) =
            (connected_pair().await, connected_pair().await);
        let pipe = SplicePipe::open().unwrap();
        sender.write_all(b"hello").await.unwrap();
        sender.shutdown().await.unwrap();
        assert_eq!(pipe.relay(&from, &to).await.unwrap(), SpliceStop::EndOfData);
        drop(to);
        let mut received = String::new();
        receiver.read_to_string(&mut received).await.unwrap();
        assert_eq!(received, "hello");
    }

    #[tokio::test]
    async fn an_idle_direction_gives_its_pipe_back_and_goes_on_later() {
        let ((mut sender, from), (to, mut receiver)) =
            (connected_pair().await, connected_pair().await);
        let pipe = SplicePipe::open().unwrap();
        assert_eq!(pipe.relay(&from, &to).await.unwrap(), SpliceStop::Idle);
        sender.write_all(b"later").await.unwrap();
        drop(sender);
        assert_eq!(pipe.relay(&from, &to).await.unwrap(), SpliceStop::EndOfData);
        let mut received = [0; 5];
        receiver.read_exact(&mut received).await.unwrap();
        assert_eq!(received, *b"later");
    }
}
