//! Sockets that no program of the server may reach. They record every connection and datagram that
//! arrives.

use std::io::Read;
use std::net::{TcpListener, UdpSocket};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::{Path, PathBuf};

/// Sockets that one attempt opens, and that no program of the server may reach.
#[derive(Default)]
pub(super) struct AttackListeners(Vec<AttackListener>);

/// Socket that records the connections or datagrams that arrive.
enum AttackListener {
    Udp(UdpSocket),
    Tcp(TcpListener),
    Unix { name: String, listener: UnixListener, file: Option<PathBuf> },
}

impl AttackListeners {
    /// Listens for UDP on a free port of the loopback address, and returns the port.
    pub(super) fn listen_udp(&mut self) -> anyhow::Result<u16> {
        let socket = UdpSocket::bind("127.0.0.1:0")?;
        socket.set_nonblocking(true)?;
        let port = socket.local_addr()?.port();
        self.0.push(AttackListener::Udp(socket));
        Ok(port)
    }

    /// Listens for TCP on a free port of the loopback address, and returns the port.
    pub(super) fn listen_tcp(&mut self) -> anyhow::Result<u16> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        listener.set_nonblocking(true)?;
        let port = listener.local_addr()?.port();
        self.0.push(AttackListener::Tcp(listener));
        Ok(port)
    }

    /// Listens on the Unix socket `file`.
    pub(super) fn listen_unix(&mut self, file: &Path) -> anyhow::Result<()> {
        let listener = UnixListener::bind(file)?;
        listener.set_nonblocking(true)?;
        let name = file.display().to_string();
        self.0.push(AttackListener::Unix { name, listener, file: Some(file.to_owned()) });
        Ok(())
    }

    /// Listens on the abstract Unix socket `name`.
    pub(super) fn listen_abstract(&mut self, name: &str) -> anyhow::Result<()> {
        let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(name)?)?;
        listener.set_nonblocking(true)?;
        self.0.push(AttackListener::Unix { name: format!("@{name}"), listener, file: None });
        Ok(())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns what arrived since the previous call, one line for each connection or datagram.
    pub(super) fn take_events(&mut self) -> Vec<String> {
        let mut all = Vec::new();
        for ear in &self.0 {
            let mut bytes = [0; 4096];
            match ear {
                AttackListener::Udp(socket) => {
                    while let Ok(length) = socket.recv(&mut bytes) {
                        all.push(format!("the UDP listener received {length} bytes"));
                    }
                }
                AttackListener::Tcp(listener) => {
                    while let Ok((mut stream, _)) = listener.accept() {
                        _ = stream.set_nonblocking(true);
                        let length = stream.read(&mut bytes).unwrap_or(0);
                        all.push(format!("the TCP listener has a connection with {length} bytes"));
                    }
                }
                AttackListener::Unix { name, listener, .. } => {
                    while listener.accept().is_ok() {
                        all.push(format!("the socket {name} has a connection"));
                    }
                }
            }
        }
        all
    }
}

impl Drop for AttackListener {
    fn drop(&mut self) {
        if let Self::Unix { file: Some(file), .. } = self {
            _ = std::fs::remove_file(file);
        }
    }
}
