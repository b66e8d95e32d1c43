//! Listeners of every kind that nobody may reach, and what they heard.

use std::io::Read;
use std::net::{TcpListener, UdpSocket};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::{Path, PathBuf};

/// All that listen.
#[derive(Default)]
pub(super) struct Ears(Vec<Ear>);

enum Ear {
    Udp(UdpSocket),
    Tcp(TcpListener),
    Unix { name: String, listener: UnixListener, file: Option<PathBuf> },
}

impl Ears {
    /// A port of UDP.
    pub(super) fn udp(&mut self) -> anyhow::Result<u16> {
        let socket = UdpSocket::bind("127.0.0.1:0")?;
        socket.set_nonblocking(true)?;
        let port = socket.local_addr()?.port();
        self.0.push(Ear::Udp(socket));
        Ok(port)
    }

    /// A port of TCP.
    pub(super) fn tcp(&mut self) -> anyhow::Result<u16> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        listener.set_nonblocking(true)?;
        let port = listener.local_addr()?.port();
        self.0.push(Ear::Tcp(listener));
        Ok(port)
    }

    /// A socket in the file system.
    pub(super) fn unix(&mut self, file: &Path) -> anyhow::Result<()> {
        let listener = UnixListener::bind(file)?;
        listener.set_nonblocking(true)?;
        let name = file.display().to_string();
        self.0.push(Ear::Unix { name, listener, file: Some(file.to_owned()) });
        Ok(())
    }

    /// An abstract socket.
    pub(super) fn nameless(&mut self, name: &str) -> anyhow::Result<()> {
        let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(name)?)?;
        listener.set_nonblocking(true)?;
        self.0.push(Ear::Unix { name: format!("@{name}"), listener, file: None });
        Ok(())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// What they have heard since they were last asked, a line each.
    pub(super) fn heard(&mut self) -> Vec<String> {
        let mut all = Vec::new();
        for ear in &self.0 {
            let mut bytes = [0; 4096];
            match ear {
                Ear::Udp(socket) => {
                    while let Ok(length) = socket.recv(&mut bytes) {
                        all.push(format!("the UDP listener heard {length} bytes"));
                    }
                }
                Ear::Tcp(listener) => {
                    while let Ok((mut stream, _)) = listener.accept() {
                        _ = stream.set_nonblocking(true);
                        let length = stream.read(&mut bytes).unwrap_or(0);
                        all.push(format!("the TCP listener was connected to, {length} bytes"));
                    }
                }
                Ear::Unix { name, listener, .. } => {
                    while listener.accept().is_ok() {
                        all.push(format!("the socket {name} was connected to"));
                    }
                }
            }
        }
        all
    }
}

impl Drop for Ear {
    fn drop(&mut self) {
        if let Self::Unix { file: Some(file), .. } = self {
            _ = std::fs::remove_file(file);
        }
    }
}
