//! Wire contracts: how requests, results, errors and tool names are spelled.
//!
//! A dialect is pure: bytes in, bytes out, no IO, no clock, no async. What a
//! conversation remembers between frames is its own.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde_json::Value;
use toolgate_contract::{
    Answer, Askable, Beside, CallError, Caller, Change, Envelope, Event, Frame, Given, Head,
    Interest, Job, Level, Question, Reply, Request, Told, Via, Watched,
};

pub mod mcp;
pub mod zyra;
pub mod synesthetic;
pub mod workstation;
pub mod mira;
pub mod envelope;

mod confined;
mod enveloped;
mod instructions;
mod json;
mod rpc;
#[cfg(any(fuzzing, test))]
pub mod fuzzing;

pub use instructions::Instructions;

/// Every dialect, by name: a new one is a file and a line here.
pub fn all(facts: &Arc<Facts>) -> Vec<Arc<dyn Dialect>> {
    vec![
        Arc::new(mcp::Mcp::new(facts.clone())),
        Arc::new(zyra::Zyra::new(facts.clone())),
        Arc::new(mira::Mira::new(facts.clone())),
        Arc::new(synesthetic::Synesthetic),
        Arc::new(workstation::Workstation::new(facts.clone())),
        Arc::new(envelope::EnvelopeWire),
    ]
}

/// One wire contract.
pub trait Dialect: Send + Sync + 'static {
    /// The name it is chosen and recorded by.
    fn name(&self) -> &'static str;
    /// Where it is spoken over HTTP; a path that ends in `/` stands for all below it.
    fn paths(&self) -> &'static [&'static str];
    /// Whether a request is for this dialect although its path is another's.
    fn claims(&self, _head: &Head) -> bool {
        false
    }
    /// A conversation with `caller` that has not begun.
    fn converse(&self, caller: &Caller) -> Box<dyn Conversation>;
    /// The session that a frame says it belongs to.
    fn session<'h>(&self, head: &'h Head) -> Option<&'h str>;
    /// What to answer a frame that names a session nobody has.
    fn unknown_session(&self) -> Reply;
    /// `reply`, telling the client that its session is `id` from now on.
    fn open_session(&self, reply: Reply, id: &str) -> Reply;
    /// What to answer a frame that was not taken in.
    fn refuse(&self, why: &Refused) -> Reply;
    /// What a frame comes to that was not taken in; by default what [`Dialect::refuse`] answers.
    /// Of one that is too large there is no body.
    fn turn_away(&self, _frame: &Frame, why: &Refused) -> Reading {
        Reading::Reply(self.refuse(why))
    }
    /// What a request over HTTP comes to whose body did not arrive as one that can be read, where
    /// the wire has words for that.
    fn unreadable(&self, _head: &Head, _why: &str) -> Option<Reading> {
        None
    }
    /// What becomes of a WebSocket that may not be opened; by default it is not.
    fn turn_away_socket(&self, _head: &Head, why: &Refused) -> Result<Upgrade, Reply> {
        Err(self.refuse(why))
    }
    /// Where it is spoken over HTTP on a listener of its own; by default at its paths.
    fn own_paths(&self) -> &'static [&'static str] {
        self.paths()
    }
    /// The most bytes a line may have, where the wire says so.
    fn line_bytes_max(&self) -> Option<usize> {
        None
    }
    /// Whether lines are answered one after the other, each before the next is read.
    fn in_order(&self) -> bool {
        false
    }
    /// The secret by which a client says who it is, where this wire has a place of its own for it.
    fn credential(&self, _head: &Head) -> Option<String> {
        None
    }
    /// Whether anybody may ask this, whoever they are.
    fn is_open(&self, _head: &Head) -> bool {
        false
    }
    /// Which half of a conversation of two a request at this head's path is, where the wire has
    /// such.
    fn duplex(&self, _head: &Head) -> Option<Duplex> {
        None
    }
    /// Where the client of the two-halved conversation `id` is to say what it says.
    fn duplex_endpoint(&self, _id: &str) -> String {
        String::new()
    }
    /// What to answer who says something in a conversation of two halves that is not there.
    fn unknown_duplex(&self) -> Reply {
        Reply::empty(404)
    }
    /// What to answer a client that comes back for the rest of a stream nobody knows.
    fn unknown_event(&self, _id: &str) -> Reply {
        Reply::empty(400)
    }
    /// What a WebSocket is for that a client wants to open at this head's path; or the refusal.
    fn upgrade(&self, _head: &Head) -> Result<Upgrade, Reply> {
        Err(Reply::empty(426))
    }
}

/// A half of a conversation whose halves are requests of their own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Duplex {
    /// The stream of what is said to the client.
    Open,
    /// Something that the client says.
    Say {
        /// In which conversation.
        id: String,
    },
}

/// What a WebSocket is for.
pub enum Upgrade {
    /// A conversation, a frame a message.
    Converse,
    /// Watching a job.
    Watch(Watching),
    /// Saying one thing, and closing with a status code of RFC 6455.
    Close(Bytes, u16),
}

/// Why a frame was not taken in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refused {
    /// It is larger than the transport takes.
    TooLarge {
        /// The cap in bytes.
        limit: usize,
    },
    /// There are too many sessions.
    Busy {
        /// What there is too much of.
        message: String,
    },
    /// Whoever sent it does not say who they are, or nobody known.
    Unauthorized {
        /// Whether they said anything at all.
        said: bool,
    },
    /// Whoever sent it says who they are several times in one place.
    Several,
    /// Whoever sent it has said too often who they are not.
    Throttled {
        /// How long to wait.
        retry_after: Duration,
    },
    /// An ask with the same key is still in flight.
    Repeated {
        /// The key.
        key: Key,
    },
}

/// One client's frames in order, and what must be remembered between them.
pub trait Conversation: Send {
    /// Reads one frame.
    fn read(&mut self, frame: &Frame) -> Reading;
    /// One reply out of the replies to a batch, in order.
    fn join(&self, replies: Vec<Reply>) -> Reply;
    /// Spells what is told unasked, in a conversation that has begun; `None` where nothing is.
    fn tidings(&self) -> Option<Arc<dyn ListenTicket>> {
        None
    }
}

/// What a frame turned out to be.
#[allow(clippy::large_enum_variant, reason = "most frames are asks, and a box would cost each")]
pub enum Reading {
    /// Answered on the spot.
    Reply(Reply),
    /// Answered on the spot by several messages in this order; only where a frame's head is a line.
    Replies(Vec<Reply>),
    /// Something for the host.
    Ask(Ask),
    /// Whoever asked `key` no longer wants the answer.
    Cancel {
        /// The ask.
        key: Key,
        /// What to answer to this frame itself.
        reply: Reply,
    },
    /// Several in one frame.
    Batch(Vec<Reading>),
    /// A job to be watched, told as a stream of events.
    Watch(Watching),
    /// Changes to be told of as they happen, until whoever asked cancels or leaves.
    Listen(Listening),
    /// A stream for what is told unasked; or, after the event of that id, what is left of the
    /// stream that it was the last of.
    Tidings {
        /// The id.
        after: Option<String>,
    },
    /// Changes of the resource `uri` are not wanted any more.
    Unwatch {
        /// What it is read by.
        uri: String,
        /// What to answer to this frame itself.
        reply: Reply,
    },
    /// The answer to what the client was asked.
    Told {
        /// What the question was known by.
        id: String,
        /// What the client says.
        heard: Heard,
        /// What to answer to this frame itself.
        reply: Reply,
    },
    /// The conversation began: on a transport without connections it is a session from now on.
    Opened(Reply),
    /// The conversation is over.
    Closed(Reply),
}

/// A request with what is needed to spell its answer.
pub struct Ask {
    /// Which of the conversation's asks it is.
    pub key: Key,
    /// What is asked.
    pub request: Request,
    /// Spells the answer.
    pub ticket: Arc<dyn Ticket>,
    /// What it means when the client's connection goes away.
    pub on_leave: OnLeave,
    /// Whether the client can take a stream of events with the answer.
    pub events: Accepts,
    /// How the client can be asked something meanwhile.
    pub asking: Asking,
    /// What came beside it.
    pub beside: Beside,
    /// How long the wire lets it take, where that is less than a tool may.
    pub within: Option<Duration>,
    /// How it came, where its answer is an envelope.
    pub via: Option<Box<Via>>,
}

/// How a client can be asked something.
#[derive(Debug, Clone, PartialEq)]
pub enum Asking {
    /// Not at all.
    Nobody,
    /// The request ends with the questions, and is made again with the answers.
    Again {
        /// What can be asked.
        can: Askable,
        /// The answers that came with this request.
        given: Given,
        /// What the host said with the questions, and wants to be told again.
        state: Option<String>,
    },
    /// While its request is worked on.
    Now(Askable),
}

/// What a client says to a question, as its wire has it.
#[derive(Debug, Clone, PartialEq)]
pub enum Heard {
    /// A result.
    Result(Value),
    /// An error, in a sentence.
    Error(String),
}

/// The wire's own name for an ask, unique among those in flight in a conversation.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Key(pub String);

/// What it means when the connection that a request came on goes away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnLeave {
    /// Nobody wants the answer.
    Cancels,
    /// The work goes on.
    Continues,
}

/// What a client can take in answer to one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Accepts {
    /// One message.
    Message,
    /// A stream of events that ends with the message.
    Stream,
    /// The same, and where it breaks off the client comes back for the rest.
    Resumable,
}

/// Spells what is said in answer to one request.
pub trait Ticket: Send + Sync + 'static {
    /// The answer; `None` where the wire owes none, as to a cancelled request.
    fn reply(&self, outcome: Result<Answer, CallError>) -> Option<Reply>;
    /// What an envelope says of the answer; by default the answer as it is.
    fn data(&self, answer: &Answer) -> Value {
        enveloped::data(answer)
    }
    /// The answer, in its envelope; asked of tickets whose [`Ask::via`] is there.
    fn enveloped(&self, _envelope: &Envelope) -> Option<Reply> {
        None
    }
    /// What is said while it runs; `None` where the wire or the client wants none.
    fn event(&self, event: &Event) -> Option<Bytes>;
    /// Whether [`Ticket::event`] can ever say anything.
    fn listens(&self) -> bool;
    /// The least level of a line that [`Ticket::event`] says, if it says any.
    fn lines(&self) -> Option<Level> {
        None
    }
    /// Asks the client something, under `id`; `None` where the wire has no words for it.
    fn question(&self, _id: &str, _key: &str, _question: &Question) -> Option<Bytes> {
        None
    }
    /// Says that what was asked under `id` need not be answered any more; `None` where the wire has
    /// no words for it.
    fn unasked(&self, _id: &str) -> Option<Bytes> {
        None
    }
    /// What the client means by what it says to `question`.
    ///
    /// # Errors
    /// When it is no answer to it.
    fn told(&self, _question: &Question, _heard: &Heard) -> Result<Told, String> {
        Err("nothing was asked".to_owned())
    }
    /// Spells what happens to `job`, which was the answer, for a client that wants to hear of it on
    /// the same connection.
    fn follow(&self, _job: &Job) -> Option<Arc<dyn WatchTicket>> {
        None
    }
}

/// A client that wants to be told of changes.
pub struct Listening {
    /// Which of the conversation's asks it is.
    pub key: Key,
    /// What it wants to be told of.
    pub interest: Interest,
    /// Spells it.
    pub ticket: Arc<dyn ListenTicket>,
}

/// Spells what is told of changes; `None` where the wire has no words for it.
pub trait ListenTicket: Send + Sync + 'static {
    /// The first thing said: what will be told, of all that was wanted.
    fn begin(&self, heard: &Interest) -> Option<Bytes>;
    /// Something is not as it was.
    fn changed(&self, change: &Change) -> Option<Bytes>;
    /// How a job is, after something happened to it.
    fn job(&self, job: &Job) -> Option<Bytes>;
    /// The last things said, where the server ends it.
    fn end(&self) -> Vec<Bytes>;
    /// The answer instead of all that, where it is refused; `None` where nothing was asked.
    fn refused(&self, _why: &CallError) -> Option<Reply> {
        None
    }
}

/// A job to be watched.
pub struct Watching {
    /// Its id as the wire has it.
    pub id: String,
    /// What is told, and when.
    pub pace: Pace,
    /// Spells it.
    pub ticket: Arc<dyn WatchTicket>,
}

/// What a watch tells, and when.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pace {
    /// Everything as it happens, from the start, and a sign of life when it was quiet for so long.
    Events {
        /// How long.
        quiet: Duration,
    },
    /// How things are, every so often, until the job has ended or `at_most` is over.
    Snapshots {
        /// How often.
        every: Duration,
        /// For how long.
        at_most: Duration,
    },
}

/// Spells what is told of a job; `None` where the wire or the client wants nothing.
pub trait WatchTicket: Send + Sync + 'static {
    /// The first thing said; `job` is `None` where the caller has no such job, and unless the pace
    /// is of snapshots nothing follows then.
    fn begin(&self, job: Option<&Job>) -> Option<Bytes>;
    /// One thing that happened, or that it ended.
    fn told(&self, what: &Watched) -> Option<Bytes>;
    /// How things are.
    fn snapshot(&self, job: Option<&Job>) -> Option<Bytes>;
    /// A sign of life.
    fn alive(&self) -> Option<Bytes>;
}

/// What a server says of itself.
#[derive(Debug, Clone)]
pub struct Facts {
    /// Its name, for programs.
    pub name: String,
    /// Its name, for people.
    pub title: String,
    /// Its version.
    pub version: String,
    /// What it is, in a sentence.
    pub about: String,
    /// How to use it well, for the agent.
    pub instructions: Instructions,
    /// Whether it keeps jobs.
    pub jobs: bool,
    /// Whether it has resources.
    pub resources: bool,
    /// Whether it has prompts.
    pub prompts: bool,
    /// Whether it has skills.
    pub skills: bool,
    /// Whether clients that know no endpoint but two halves are served over HTTP.
    pub http_sse: bool,
    /// What it says of itself to whoever looks before connecting; `None` is nothing.
    pub card: Option<Card>,
    /// The most bytes of a Zyra request over HTTP, where that is less than of any.
    pub zyra_body_bytes_max: Option<usize>,
    /// Whether who calls over HTTP must say who they are.
    pub keys: bool,
    /// Whether it speaks TLS over HTTP.
    pub tls: bool,
}

/// What a server says of itself before anybody connects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Card {
    /// Its name all over the world, e.g. `com.example/tools`.
    pub name: String,
    /// Where it is, as clients reach it; else where the request found it.
    pub url: Option<String>,
}
