//! Tests from inside a confined process that it can leave its network only through the forwarder.

use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

use super::super::plan::NetworkTest;
use crate::forwarder::FORWARDER_PORT;

/// The error number with which the network test reports that a forbidden connection was possible.
pub(in crate::sandbox) const GOT_THROUGH: i32 = libc::EISCONN;
/// The time limit of each step of the network test.
const STEP_TIMEOUT: Duration = Duration::from_secs(5);

/// Tests the network of a program. Direct connections to two listeners outside must fail. Through
/// the forwarder, a connection to only one of the listeners must succeed.
pub(in crate::sandbox) fn run(
    NetworkTest { allowed_port, refused_port }: NetworkTest,
) -> io::Result<()> {
    for port in [allowed_port, refused_port] {
        if TcpStream::connect_timeout(&loopback(port), STEP_TIMEOUT).is_ok() {
            return Err(io::Error::from_raw_os_error(GOT_THROUGH));
        }
    }
    match connect_status(refused_port)?.as_slice() {
        b"403" => {}
        b"200" => return Err(io::Error::from_raw_os_error(GOT_THROUGH)),
        _ => return Err(io::Error::from_raw_os_error(libc::EPROTO)),
    }
    match connect_status(allowed_port)?.as_slice() {
        b"200" => Ok(()),
        _ => Err(io::Error::from_raw_os_error(libc::ECONNREFUSED)),
    }
}

/// Asks the forwarder for a connection to `port` of the machine's loopback interface. Returns the
/// status code in its answer.
fn connect_status(port: u16) -> io::Result<Vec<u8>> {
    const LINE_START: usize = b"HTTP/1.1 ".len();
    let mut stream = TcpStream::connect_timeout(&loopback(FORWARDER_PORT), STEP_TIMEOUT)?;
    stream.set_read_timeout(Some(STEP_TIMEOUT))?;
    stream.write_all(format!("CONNECT 127.0.0.1:{port} HTTP/1.1\r\n\r\n").as_bytes())?;
    let mut line = [0; LINE_START + 3];
    stream.read_exact(&mut line)?;
    Ok(line.get(LINE_START..).unwrap_or_default().to_vec())
}

fn loopback(port: u16) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, port))
}
