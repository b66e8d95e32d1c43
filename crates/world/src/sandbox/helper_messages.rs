//! The messages between the server and an idle sandbox helper.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, send,
    sendmsg, socketpair,
};
use rustix::process::Pid;

use super::setup_step::{FAILURE_BYTES, SandboxSetupFailure};

/// The number of handles in an order to a sandbox helper.
const HANDLES: usize = 7;

/// An order of the server to a sandbox helper, to start one program. `H` is the type of the handles
/// in the order.
pub(super) struct SandboxHelperOrder<H> {
    /// The standard streams of the program to start.
    pub(super) streams: [H; 3],
    /// The sealed file with the message: a `SandboxPlan` in the first order, a
    /// `SandboxSpawnRequest` in later orders.
    pub(super) message: H,
    /// The pipe that reports the error if the program cannot be started. The pipe closes without
    /// data once the program has started.
    pub(super) failure_pipe: H,
    /// The pipe for the exit status, if a reaper runs beside the program.
    pub(super) exit_pipe: H,
    pub(super) workspace: H,
}

/// A message from a sandbox helper to the server.
#[derive(Debug)]
pub(super) enum SandboxHelperAnswer {
    /// The sandbox helper has created a process, which waits for the next order.
    ProcessReady(Pid),
    /// The waiting process has accepted the order and carries the tag of its run.
    OrderTaken,
    /// The helper has opened the listener of a forwarder in its network namespace.
    ListenerOpened(OwnedFd),
    Failed(SandboxSetupFailure),
}

/// Creates a socket pair that preserves message boundaries. Returns the server's end and the
/// helper's end.
pub(super) fn message_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let kind = SocketType::SEQPACKET;
    let flags = SocketFlags::CLOEXEC;
    Ok(socketpair(AddressFamily::UNIX, kind, flags, None)?)
}

impl<H: AsFd> SandboxHelperOrder<H> {
    pub(super) fn send(&self, line: impl AsFd) -> io::Result<()> {
        let [stdin, stdout, stderr] = self.streams.each_ref();
        let handles = [
            stdin,
            stdout,
            stderr,
            &self.message,
            &self.failure_pipe,
            &self.exit_pipe,
            &self.workspace,
        ];
        let handles: [BorrowedFd<'_>; HANDLES] = handles.map(AsFd::as_fd);
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(HANDLES))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        control.push(SendAncillaryMessage::ScmRights(&handles));
        sendmsg(line, &[IoSlice::new(&[0])], &mut control, SendFlags::NOSIGNAL)?;
        Ok(())
    }
}

impl SandboxHelperOrder<OwnedFd> {
    /// Receives the next order of the server. `None` if the server has closed the connection.
    pub(super) fn receive(line: impl AsFd) -> io::Result<Option<Self>> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(HANDLES))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut nothing = [0];
        let mut data = [IoSliceMut::new(&mut nothing)];
        let got = recvmsg(line, &mut data, &mut control, RecvFlags::CMSG_CLOEXEC)?;
        if got.bytes == 0 {
            return Ok(None);
        }
        let handles = control.drain().filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(handles) => Some(handles),
            _ => None,
        });
        let handles: Vec<_> = handles.flatten().collect();
        if got.flags.contains(ReturnFlags::CTRUNC) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let handles: [OwnedFd; HANDLES] =
            handles.try_into().map_err(|_| io::ErrorKind::InvalidData)?;
        let [stdin, stdout, stderr, message, birth, end, workspace] = handles;
        Ok(Some(Self {
            streams: [stdin, stdout, stderr],
            message,
            failure_pipe: birth,
            exit_pipe: end,
            workspace,
        }))
    }
}

impl SandboxHelperAnswer {
    const PROCESS_READY: u8 = 0;
    const ORDER_TAKEN: u8 = 1;
    const FAILED: u8 = 2;
    const LISTENER_OPENED: u8 = 3;

    pub(super) fn send(&self, line: impl AsFd) -> io::Result<()> {
        let mut bytes = [0; FAILURE_BYTES + 1];
        let [kind, rest @ ..] = &mut bytes;
        match self {
            Self::ProcessReady(pid) => {
                *kind = Self::PROCESS_READY;
                let [_, number @ ..] = rest;
                *number = pid.as_raw_pid().to_ne_bytes();
            }
            Self::OrderTaken => *kind = Self::ORDER_TAKEN,
            Self::ListenerOpened(listener) => {
                *kind = Self::LISTENER_OPENED;
                return send_with_handle(line, &bytes, listener);
            }
            Self::Failed(failed) => {
                *kind = Self::FAILED;
                *rest = failed.to_bytes();
            }
        }
        send(line, &bytes, SendFlags::NOSIGNAL)?;
        Ok(())
    }

    /// Receives the next message of the sandbox helper. Fails with `UnexpectedEof` if the helper is
    /// gone.
    pub(super) fn receive(line: impl AsFd) -> io::Result<Self> {
        let mut bytes = [0; FAILURE_BYTES + 1];
        let (got, handle) = receive_with_handle(line, &mut bytes)?;
        if got == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let [kind, rest @ ..] = &bytes;
        let answer = match *kind {
            Self::PROCESS_READY => {
                let number = rest.last_chunk().copied().map(i32::from_ne_bytes);
                number.and_then(Pid::from_raw).map(Self::ProcessReady)
            }
            Self::ORDER_TAKEN => Some(Self::OrderTaken),
            Self::FAILED => SandboxSetupFailure::from_bytes(rest).map(Self::Failed),
            Self::LISTENER_OPENED => handle.map(Self::ListenerOpened),
            _ => None,
        };
        answer.ok_or_else(|| io::ErrorKind::InvalidData.into())
    }
}

/// Sends `bytes` as one message with `handle`.
pub(super) fn send_with_handle(line: impl AsFd, bytes: &[u8], handle: &OwnedFd) -> io::Result<()> {
    let handles = [handle.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(&handles));
    sendmsg(line, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Receives one message into `bytes`. Returns its length, and its handle if it has one.
fn receive_with_handle(line: impl AsFd, bytes: &mut [u8]) -> io::Result<(usize, Option<OwnedFd>)> {
    let mut was_reset = false;
    loop {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut data = [IoSliceMut::new(bytes)];
        match recvmsg(&line, &mut data, &mut control, RecvFlags::CMSG_CLOEXEC) {
            Err(Errno::INTR) => {}
            // If the helper left an order unread, this error comes first and its messages follow.
            Err(Errno::CONNRESET) if !was_reset => was_reset = true,
            got => {
                let bytes = got?.bytes;
                let handles = control.drain().filter_map(|message| match message {
                    RecvAncillaryMessage::ScmRights(handles) => Some(handles),
                    _ => None,
                });
                return Ok((bytes, handles.flatten().next()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use rustix::pipe::pipe;

    use super::super::setup_step::SandboxSetupStep;
    use super::*;

    #[test]
    fn orders_and_answers_are_received_as_sent() {
        let (ours, theirs) = message_pair().unwrap();
        let (read, write) = pipe().unwrap();
        let handles = || (read.as_fd(), write.as_fd());
        let ((r, w), birth) = (handles(), write.as_fd());
        SandboxHelperOrder {
            streams: [r, w, w],
            message: r,
            failure_pipe: birth,
            exit_pipe: w,
            workspace: r,
        }
        .send(&ours)
        .unwrap();
        let order = SandboxHelperOrder::receive(&theirs).unwrap().unwrap();
        std::fs::File::from(order.failure_pipe).write_all(b"told").unwrap();
        let mut text = [0; 4];
        std::fs::File::from(order.message).read_exact(&mut text).unwrap();
        assert_eq!(text, *b"told");
        SandboxHelperAnswer::ProcessReady(Pid::from_raw(0x0102_0304).unwrap())
            .send(&theirs)
            .unwrap();
        let why = io::Error::from_raw_os_error(libc::EBUSY);
        SandboxHelperAnswer::Failed(SandboxSetupFailure {
            step: SandboxSetupStep::Groups,
            cause: why,
        })
        .send(&theirs)
        .unwrap();
        let answer = SandboxHelperAnswer::receive(&ours).unwrap();
        assert!(
            matches!(answer, SandboxHelperAnswer::ProcessReady(pid) if pid.as_raw_pid() == 0x0102_0304)
        );
        let SandboxHelperAnswer::Failed(failed) = SandboxHelperAnswer::receive(&ours).unwrap()
        else {
            panic!()
        };
        assert_eq!(
            (failed.step, failed.cause.raw_os_error()),
            (SandboxSetupStep::Groups, Some(libc::EBUSY))
        );
        drop(theirs);
        assert_eq!(
            SandboxHelperAnswer::receive(&ours).unwrap_err().kind(),
            io::ErrorKind::UnexpectedEof
        );
        drop(ours);
    }

    #[test]
    fn an_answer_is_received_although_the_helper_left_an_order_unread() {
        let (ours, theirs) = message_pair().unwrap();
        // The handles are not those of the connection itself: an unread order that contains its own
        // connection would live until the kernel collects such cycles.
        let (read, _write) = pipe().unwrap();
        let handle = read.as_fd();
        let order = SandboxHelperOrder {
            streams: [handle; 3],
            message: handle,
            failure_pipe: handle,
            exit_pipe: handle,
            workspace: handle,
        };
        order.send(&ours).unwrap();
        SandboxHelperAnswer::OrderTaken.send(&theirs).unwrap();
        drop(theirs);
        assert!(matches!(SandboxHelperAnswer::receive(&ours), Ok(SandboxHelperAnswer::OrderTaken)));
        assert_eq!(
            SandboxHelperAnswer::receive(&ours).unwrap_err().kind(),
            io::ErrorKind::UnexpectedEof
        );
    }

    #[test]
    fn a_listener_is_received_with_its_answer() {
        let (ours, theirs) = message_pair().unwrap();
        let (read, write) = pipe().unwrap();
        SandboxHelperAnswer::ListenerOpened(write).send(&theirs).unwrap();
        let SandboxHelperAnswer::ListenerOpened(received) =
            SandboxHelperAnswer::receive(&ours).unwrap()
        else {
            panic!()
        };
        std::fs::File::from(received).write_all(b"told").unwrap();
        let mut text = [0; 4];
        std::fs::File::from(read).read_exact(&mut text).unwrap();
        assert_eq!(text, *b"told");
    }

    #[test]
    fn a_closed_connection_has_no_more_orders() {
        let (ours, theirs) = message_pair().unwrap();
        drop(ours);
        assert!(SandboxHelperOrder::receive(&theirs).unwrap().is_none());
    }
}
