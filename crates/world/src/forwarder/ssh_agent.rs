//! The SSH agent of one run of a program: passes on to the user's agent only the lists of keys and
//! the signatures that a login to an allowed host needs.
//!
//! A signature is only made for a connection whose server has proved that it is the allowed host
//! (`session-bind@openssh.com`). Otherwise, the program could log in elsewhere as the user.

use std::io;
use std::os::unix::net::UnixListener as StdUnixListener;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::runtime::Handle;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};
use tokio_util::task::AbortOnDropHandle;
use toolgate_contract::lock_mutex;

use super::ssh_keys::{SshFieldReader, fingerprint, is_signed_by, push_number, push_string};
use super::ssh_remotes::SshRemote;

/// Message type of an SSH agent (draft-ietf-sshm-ssh-agent): the agent refuses a request.
const FAILURE: u8 = 5;
/// Message type of an SSH agent: a request without a result succeeded.
const SUCCESS: u8 = 6;
/// Message type of an SSH agent: the client requests the list of keys.
const REQUEST_IDENTITIES: u8 = 11;
/// Message type of an SSH agent: the list of keys.
const IDENTITIES_ANSWER: u8 = 12;
/// Message type of an SSH agent: the client requests a signature.
const SIGN_REQUEST: u8 = 13;
/// Message type of an SSH agent: the signature.
const SIGN_RESPONSE: u8 = 14;
/// Message type of an SSH agent: the client uses an extension of the protocol.
const EXTENSION: u8 = 27;
/// The extension with which a client proves which server it is connected to.
const SESSION_BIND: &[u8] = b"session-bind@openssh.com";
/// The flags of a sign request that an SSH agent accepts: they select a hash algorithm for RSA
/// keys.
const SIGN_FLAGS: u32 = 0b110;
/// The type of the message with which a client of SSH logs in (RFC 4252).
const USERAUTH_REQUEST: u8 = 50;

/// The maximum size of a program's message to its SSH agent, in bytes.
const REQUEST_BYTES_MAX: usize = 16 << 10;
/// The maximum size of an answer of the user's agent, in bytes.
const ANSWER_BYTES_MAX: usize = 256 << 10;
/// The maximum number of connections of one program to its SSH agent at the same time. Further
/// connections wait.
const CONNECTIONS_MAX: usize = 16;
/// The longest idle time of a connection to the agent, and the longest wait for a program to read
/// an answer.
const IDLE_TIMEOUT: Duration = Duration::from_secs(120);
/// The longest wait for the user's agent, which may ask the user.
const AGENT_TIMEOUT: Duration = Duration::from_secs(60);
/// The maximum number of signatures for one program in each [`SIGNATURE_PERIOD`].
const SIGNATURES_MAX: u32 = 60;
/// The period for which [`SIGNATURES_MAX`] limits the signatures.
const SIGNATURE_PERIOD: Duration = Duration::from_secs(60);
/// The pause after a connection could not be accepted, for example for lack of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// The SSH agent socket of one run of a program, and the SSH servers that the program may use.
pub(crate) struct RunSshAgent {
    /// The listener on the socket that the program sees.
    pub(crate) listener: StdUnixListener,
    /// The SSH servers that the program may use, each with the socket of the user's SSH agent.
    pub(crate) remotes: Arc<[SshRemote]>,
}

impl RunSshAgent {
    /// Serves the SSH agent socket on `runtime` until the returned handle is dropped.
    pub(super) fn start(self, runtime: &Handle) -> io::Result<AbortOnDropHandle<()>> {
        let Self { listener, remotes } = self;
        listener.set_nonblocking(true)?;
        let listener = UnixListener::from_std(listener)?;
        let signatures = Mutex::new((Instant::now(), 0));
        let agent = Arc::new(FilteredSshAgent { remotes, signatures });
        Ok(AbortOnDropHandle::new(toolgate_net::spawn_task_on(runtime, serve(listener, agent))))
    }
}

/// The SSH agent that a program sees. It passes allowed requests on to the user's agent.
struct FilteredSshAgent {
    remotes: Arc<[SshRemote]>,
    /// The start of the current period for the limit of signatures, and the number of signatures in
    /// it.
    signatures: Mutex<(Instant, u32)>,
}

/// A connection of the program to an SSH server that has proved its host key.
struct BoundSshSession {
    id: Vec<u8>,
    host_key: Vec<u8>,
    /// The `session-bind` message with which the program proved the host key.
    proof: Vec<u8>,
}

/// The SSH login for which a program requests a signature.
struct SshLoginRequest<'m> {
    key: &'m [u8],
    user: &'m [u8],
}

/// Accepts connections of a program to its SSH agent until the task is aborted.
async fn serve(listener: UnixListener, agent: Arc<FilteredSshAgent>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            Some(_) = connections.join_next(), if !connections.is_empty() => {}
            accepted = listener.accept(), if connections.len() < CONNECTIONS_MAX => {
                match accepted {
                    Ok((stream, _)) => {
                        connections.spawn(serve_connection(stream, agent.clone()));
                    }
                    Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
                }
            }
        }
    }
}

/// Answers the messages of a program until it closes the connection, or sends a message that is too
/// long.
async fn serve_connection(mut stream: UnixStream, agent: Arc<FilteredSshAgent>) {
    let mut session = None;
    loop {
        let reading = timeout(IDLE_TIMEOUT, read_message(&mut stream, REQUEST_BYTES_MAX));
        let Ok(Ok(message)) = reading.await else { return };
        let answer = agent.answer(&message, &mut session).await.unwrap_or_else(|| {
            let kind = message.first().copied().unwrap_or_default();
            tracing::debug!("refused a message of type {kind} to the SSH agent of a program");
            vec![FAILURE]
        });
        let writing = timeout(IDLE_TIMEOUT, write_message(&mut stream, &answer));
        let Ok(Ok(())) = writing.await else { return };
    }
}

impl FilteredSshAgent {
    /// Returns the agent's answer to `message`, or `None` if the agent refuses the message. Sets
    /// `session` if `message` proves the SSH server of the connection.
    async fn answer(
        &self,
        message: &[u8],
        session: &mut Option<BoundSshSession>,
    ) -> Option<Vec<u8>> {
        match *message.first()? {
            REQUEST_IDENTITIES if message.len() == 1 => self.list_keys(session.as_ref()).await,
            SIGN_REQUEST => self.sign(message, session.as_ref()?).await,
            EXTENSION if session.is_none() => {
                *session = Some(self.bind(message)?);
                Some(vec![SUCCESS])
            }
            _ => None,
        }
    }

    /// Checks a `session-bind` message, with which a program proves its SSH server, and returns the
    /// session. Returns `None` if the server is not allowed, or if `message` is for agent
    /// forwarding.
    fn bind(&self, message: &[u8]) -> Option<BoundSshSession> {
        let mut fields = SshFieldReader::new(message);
        let is_bind = fields.read_byte()? == EXTENSION && fields.read_string()? == SESSION_BIND;
        let (host_key, id) = (fields.read_string()?, fields.read_string()?);
        let signature = fields.read_string()?;
        let is_forwarded = fields.read_byte()? != 0;
        let is_known = self.remotes.iter().any(|remote| remote.has_host_key(host_key));
        let is_proof = is_bind && is_known && !is_forwarded && !id.is_empty() && fields.is_at_end();
        if !is_proof || !is_signed_by(host_key, signature, id) {
            return None;
        }
        Some(BoundSshSession {
            id: id.to_vec(),
            host_key: host_key.to_vec(),
            proof: message.to_vec(),
        })
    }

    /// Returns the list of those keys of the user's agent that the program may use. With a
    /// `session`, these are the keys for its server. Without one, these are the keys for all
    /// servers.
    async fn list_keys(&self, session: Option<&BoundSshSession>) -> Option<Vec<u8>> {
        let mut keys: Vec<Vec<u8>> = Vec::new();
        for remote in self.remotes.iter() {
            if session.is_some_and(|session| !remote.has_host_key(&session.host_key)) {
                continue;
            }
            let answer = ask_agent(remote, session, &[REQUEST_IDENTITIES]).await?;
            for key in read_keys(&answer)? {
                let is_new = !keys.iter().any(|known| known == key);
                if is_new && remote.has_key(&fingerprint(key)) {
                    keys.push(key.to_vec());
                }
            }
        }
        let mut list = vec![IDENTITIES_ANSWER];
        push_number(&mut list, keys.len());
        for key in &keys {
            push_string(&mut list, key);
            // The comment may name the user or a file.
            push_string(&mut list, b"");
        }
        Some(list)
    }

    /// Returns the signature that `message` requests. Returns `None` if the request is not for a
    /// login to the server of `session` with an allowed key and user.
    async fn sign(&self, message: &[u8], session: &BoundSshSession) -> Option<Vec<u8>> {
        let SshLoginRequest { key, user } = SshLoginRequest::parse(message, session)?;
        let fingerprint = fingerprint(key);
        let mut remotes = self.remotes.iter();
        let remote = remotes.find(|remote| {
            remote.has_host_key(&session.host_key)
                && remote.has_key(&fingerprint)
                && remote.has_user(user)
        })?;
        if !self.count_signature() {
            return None;
        }
        let answer = ask_agent(remote, Some(session), message).await?;
        (answer.first() == Some(&SIGN_RESPONSE)).then_some(answer)
    }

    /// Counts a signature towards the limit for the current period. Returns `false` if the limit is
    /// already reached.
    fn count_signature(&self) -> bool {
        let mut signatures = lock_mutex(&self.signatures);
        let (since, count) = &mut *signatures;
        if since.elapsed() >= SIGNATURE_PERIOD {
            (*since, *count) = (Instant::now(), 0);
        }
        *count = count.saturating_add(1);
        *count <= SIGNATURES_MAX
    }
}

impl<'m> SshLoginRequest<'m> {
    /// Parses the sign request `message`. Returns `None` if the request is for anything but a login
    /// with the requested key in `session`.
    fn parse(message: &'m [u8], session: &BoundSshSession) -> Option<Self> {
        let mut request = SshFieldReader::new(message);
        let is_request = request.read_byte()? == SIGN_REQUEST;
        let (key, data) = (request.read_string()?, request.read_string()?);
        let has_known_flags = request.read_number()? & !SIGN_FLAGS == 0;
        let mut login = SshFieldReader::new(data);
        let is_in_session = login.read_string()? == session.id.as_slice();
        let is_login = login.read_byte()? == USERAUTH_REQUEST;
        let user = login.read_string()?;
        let is_connection = login.read_string()? == b"ssh-connection";
        let method = login.read_string()?;
        let has_signature = login.read_byte()? == 1;
        let _algorithm = login.read_string()?;
        let is_with_key = login.read_string()? == key;
        let is_at_host = match method {
            b"publickey" => true,
            b"publickey-hostbound-v00@openssh.com" => {
                login.read_string()? == session.host_key.as_slice()
            }
            _ => false,
        };
        let is_whole = request.is_at_end() && login.is_at_end();
        let conditions = [
            is_request,
            has_known_flags,
            is_in_session,
            is_login,
            is_connection,
            has_signature,
            is_with_key,
            is_at_host,
            is_whole,
        ];
        conditions.iter().all(|holds| *holds).then_some(Self { key, user })
    }
}

/// Returns the public keys in `answer`, with which an SSH agent lists its keys.
fn read_keys(answer: &[u8]) -> Option<Vec<&[u8]>> {
    let mut fields = SshFieldReader::new(answer);
    if fields.read_byte()? != IDENTITIES_ANSWER {
        return None;
    }
    let count = fields.read_number()?;
    let mut keys = Vec::new();
    for _ in 0..count {
        keys.push(fields.read_string()?);
        let _comment = fields.read_string()?;
    }
    Some(keys)
}

/// Sends `request` to the user's SSH agent for `remote`. If there is a `session`, first sends its
/// proof. Returns the agent's answer, or `None` if the agent does not answer.
async fn ask_agent(
    remote: &SshRemote,
    session: Option<&BoundSshSession>,
    request: &[u8],
) -> Option<Vec<u8>> {
    let agent = remote.agent()?;
    let asking = async {
        let mut stream = UnixStream::connect(agent).await?;
        if let Some(session) = session {
            // The agent needs it for keys that the user has limited to some hosts. Agents that do
            // not know the message answer with a failure.
            write_message(&mut stream, &session.proof).await?;
            read_message(&mut stream, ANSWER_BYTES_MAX).await?;
        }
        write_message(&mut stream, request).await?;
        read_message(&mut stream, ANSWER_BYTES_MAX).await
    };
    let why = match timeout(AGENT_TIMEOUT, asking).await {
        Ok(Ok(answer)) => return Some(answer),
        Ok(Err(err)) => err.to_string(),
        Err(_) => "it does not answer".to_owned(),
    };
    tracing::warn!("the SSH agent at {} cannot be used: {why}", agent.display());
    None
}

/// Reads a message of at most `bytes_max` bytes. Returns it without the length that precedes it.
async fn read_message(stream: &mut UnixStream, bytes_max: usize) -> io::Result<Vec<u8>> {
    let length = usize::try_from(stream.read_u32().await?).map_err(io::Error::other)?;
    if length == 0 || length > bytes_max {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut message = vec![0; length];
    stream.read_exact(&mut message).await?;
    Ok(message)
}

/// Writes the length of `message`, and then `message`.
async fn write_message(stream: &mut UnixStream, message: &[u8]) -> io::Result<()> {
    let mut framed = Vec::with_capacity(message.len() + 4);
    push_string(&mut framed, message);
    stream.write_all(&framed).await
}

#[cfg(test)]
mod tests {
    use super::*;

    const SESSION_ID: &[u8] = &[7; 32];

    fn session() -> BoundSshSession {
        BoundSshSession {
            id: SESSION_ID.to_vec(),
            host_key: b"host key".to_vec(),
            proof: Vec::new(),
        }
    }

    /// The fields of a sign request, from which a test builds the request.
    struct SignRequestParts<'p> {
        id: &'p [u8],
        kind: u8,
        service: &'p [u8],
        method: &'p [u8],
        key: &'p [u8],
        /// Bytes that follow the key in the data to sign.
        rest: &'p [u8],
        flags: u32,
    }

    const LOGIN: SignRequestParts<'_> = SignRequestParts {
        id: SESSION_ID,
        kind: USERAUTH_REQUEST,
        service: b"ssh-connection",
        method: b"publickey",
        key: b"key",
        rest: b"",
        flags: 0,
    };

    /// Returns the user name that the agent reads from a sign request with `parts`.
    fn user(parts: &SignRequestParts<'_>) -> Option<String> {
        let mut data = Vec::new();
        push_string(&mut data, parts.id);
        data.push(parts.kind);
        push_string(&mut data, b"git");
        push_string(&mut data, parts.service);
        push_string(&mut data, parts.method);
        data.push(1);
        push_string(&mut data, b"ssh-ed25519");
        push_string(&mut data, parts.key);
        data.extend_from_slice(parts.rest);
        let mut message = vec![SIGN_REQUEST];
        push_string(&mut message, b"key");
        push_string(&mut message, &data);
        message.extend_from_slice(&parts.flags.to_be_bytes());
        let login = SshLoginRequest::parse(&message, &session())?;
        Some(String::from_utf8(login.user.to_vec()).unwrap())
    }

    #[test]
    fn a_signature_is_made_only_for_a_login_in_the_session_of_an_allowed_host() {
        assert_eq!(user(&LOGIN), Some("git".to_owned()));
        assert_eq!(user(&SignRequestParts { flags: 4, ..LOGIN }), Some("git".to_owned()));
        let method = b"publickey-hostbound-v00@openssh.com";
        let (mut host, mut other) = (Vec::new(), Vec::new());
        push_string(&mut host, b"host key");
        push_string(&mut other, b"other key");
        let bound = SignRequestParts { method, rest: &host, ..LOGIN };
        assert_eq!(user(&bound), Some("git".to_owned()));
        for refused in [
            SignRequestParts { id: b"other", ..LOGIN },
            SignRequestParts { kind: USERAUTH_REQUEST + 1, ..LOGIN },
            SignRequestParts { service: b"ssh-userauth", ..LOGIN },
            SignRequestParts { method: b"hostbased", ..LOGIN },
            SignRequestParts { method, rest: &other, ..LOGIN },
            SignRequestParts { method, ..LOGIN },
            SignRequestParts { key: b"other key", ..LOGIN },
            SignRequestParts { rest: b"more", ..LOGIN },
            SignRequestParts { flags: 1, ..LOGIN },
        ] {
            assert_eq!(user(&refused), None);
        }
        let mut file = vec![SIGN_REQUEST];
        push_string(&mut file, b"key");
        push_string(&mut file, b"SSHSIG\0\0\0\x03git");
        file.extend_from_slice(&[0; 4]);
        assert!(SshLoginRequest::parse(&file, &session()).is_none());
    }

    #[test]
    fn a_list_of_keys_with_a_wrong_length_is_refused() {
        let mut list = vec![IDENTITIES_ANSWER];
        push_number(&mut list, 1);
        push_string(&mut list, b"key");
        assert_eq!(read_keys(&list), None);
        push_string(&mut list, b"comment");
        assert_eq!(read_keys(&list), Some(vec![&b"key"[..]]));
        assert_eq!(read_keys(&[FAILURE]), None);
        assert_eq!(read_keys(&[IDENTITIES_ANSWER, 255, 255, 255, 255]), None);
    }

    #[test]
    fn signatures_of_one_program_are_limited() {
        let signatures = Mutex::new((Instant::now(), 0));
        let agent = FilteredSshAgent { remotes: Arc::from([]), signatures };
        for _ in 0..SIGNATURES_MAX {
            assert!(agent.count_signature());
        }
        assert!(!agent.count_signature());
    }
}
