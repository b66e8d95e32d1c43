//! Proxy between a server and PostgreSQL, for tests: it can stall, drop and delay the traffic. The
//! proxy listens on TCP, and connects to the Unix socket of PostgreSQL.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::Duration;

/// Largest number of bytes that the proxy passes on at once.
const PIECE_BYTES: usize = 64 << 10;

/// Decides which traffic the proxy passes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DatabaseProxyMode {
    /// Passes on all traffic.
    Open,
    /// Passes on nothing and keeps connections open. PostgreSQL receives the statements later, when
    /// the mode changes.
    Stalled,
    /// Closes all connections, and each new connection at once.
    Dropped,
    /// Passes on statements and drops answers. A connection with a dropped answer is closed when
    /// the mode changes.
    Unanswered,
    /// Passes on each piece of the traffic after this delay.
    Delayed(Duration),
}

/// Running proxy between a server and PostgreSQL. Dropping it closes its connections.
pub(crate) struct DatabaseProxy {
    address: SocketAddr,
    state: Arc<DatabaseProxyState>,
}

/// State that the threads of one database proxy share.
struct DatabaseProxyState {
    /// Path of PostgreSQL's Unix socket.
    socket: PathBuf,
    mode: Mutex<DatabaseProxyMode>,
    mode_changed: Condvar,
    connections: Mutex<Vec<Weak<ProxiedConnection>>>,
    is_over: AtomicBool,
}

/// Both sockets of a connection through the proxy: to the client and to PostgreSQL.
struct ProxiedConnection {
    client: TcpStream,
    database: UnixStream,
}

/// Direction of traffic through the database proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ProxyDirection {
    Statements,
    Answers,
}

impl DatabaseProxy {
    /// Starts a proxy on a free port in front of the PostgreSQL server with the Unix socket
    /// `socket`.
    pub(crate) fn start(socket: &Path) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let state = Arc::new(DatabaseProxyState {
            socket: socket.to_owned(),
            mode: Mutex::new(DatabaseProxyMode::Open),
            mode_changed: Condvar::new(),
            connections: Mutex::default(),
            is_over: AtomicBool::new(false),
        });
        let accepting = state.clone();
        thread::spawn(move || accepting.accept_all(&listener));
        Ok(Self { address, state })
    }

    /// Returns the URL for connections to the database through the proxy, for the user `postgres`.
    pub(crate) fn url(&self) -> String {
        format!("postgresql://postgres@{}/postgres", self.address)
    }

    /// Changes the mode of the proxy, also for open connections.
    pub(crate) fn set_mode(&self, mode: DatabaseProxyMode) {
        *self.state.lock_mode() = mode;
        self.state.mode_changed.notify_all();
        if mode == DatabaseProxyMode::Dropped {
            let connections = std::mem::take(&mut *self.state.lock_connections());
            connections.iter().filter_map(Weak::upgrade).for_each(|it| it.close());
        }
    }
}

impl Drop for DatabaseProxy {
    fn drop(&mut self) {
        self.state.is_over.store(true, Ordering::Release);
        self.set_mode(DatabaseProxyMode::Dropped);
        // Wakes the thread that accepts connections.
        let _ = TcpStream::connect(self.address);
    }
}

impl DatabaseProxyState {
    fn accept_all(self: &Arc<Self>, listener: &TcpListener) {
        for client in listener.incoming() {
            if self.is_over.load(Ordering::Acquire) {
                return;
            }
            let Ok(client) = client else { continue };
            // A failure ends the connection, as if PostgreSQL had refused it.
            let _ = self.pass_on(client);
        }
    }

    /// Connects to PostgreSQL, and starts the threads that pass on the traffic between it and
    /// `client`.
    fn pass_on(self: &Arc<Self>, client: TcpStream) -> io::Result<()> {
        client.set_nodelay(true)?;
        let database = UnixStream::connect(&self.socket)?;
        let connection = Arc::new(ProxiedConnection { client, database });
        let mut connections = self.lock_connections();
        connections.retain(|it| it.strong_count() > 0);
        connections.push(Arc::downgrade(&connection));
        drop(connections);
        // The mode may have changed before the connection was in the list.
        if *self.lock_mode() == DatabaseProxyMode::Dropped {
            connection.close();
        }
        for direction in [ProxyDirection::Statements, ProxyDirection::Answers] {
            let (state, connection) = (self.clone(), connection.clone());
            thread::spawn(move || {
                match direction {
                    ProxyDirection::Statements => {
                        state.copy(&connection.client, &connection.database, direction);
                    }
                    ProxyDirection::Answers => {
                        state.copy(&connection.database, &connection.client, direction);
                    }
                }
                connection.close();
            });
        }
        Ok(())
    }

    /// Copies one direction of a connection's traffic until the connection ends.
    fn copy(&self, mut from: impl Read, mut to: impl Write, direction: ProxyDirection) {
        let mut piece = vec![0; PIECE_BYTES];
        loop {
            let read = match from.read(&mut piece) {
                Ok(read) if read > 0 => read,
                Ok(_) | Err(_) => return,
            };
            if !self.wait_to_pass(direction) || to.write_all(&piece[..read]).is_err() {
                return;
            }
        }
    }

    /// Waits until a piece of the traffic may be passed on. Returns false if the piece must be
    /// dropped and its connection closed.
    fn wait_to_pass(&self, direction: ProxyDirection) -> bool {
        let mut is_lost = false;
        let mut mode = self.lock_mode();
        loop {
            let current = *mode;
            match current {
                DatabaseProxyMode::Open => return !is_lost,
                DatabaseProxyMode::Dropped => return false,
                DatabaseProxyMode::Delayed(time) => {
                    drop(mode);
                    thread::sleep(time);
                    return !is_lost;
                }
                DatabaseProxyMode::Unanswered if direction == ProxyDirection::Statements => {
                    return true;
                }
                DatabaseProxyMode::Unanswered => is_lost = true,
                DatabaseProxyMode::Stalled => {}
            }
            mode = self.mode_changed.wait(mode).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn lock_mode(&self) -> MutexGuard<'_, DatabaseProxyMode> {
        self.mode.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_connections(&self) -> MutexGuard<'_, Vec<Weak<ProxiedConnection>>> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ProxiedConnection {
    fn close(&self) {
        // Each side may have closed it already.
        let _ = self.client.shutdown(Shutdown::Both);
        let _ = self.database.shutdown(Shutdown::Both);
    }
}
