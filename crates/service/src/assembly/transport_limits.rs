//! Limits of the transports. Some come from the settings, and the others are constants.

use std::time::Duration;

use toolgate_budget::InputMemoryBudget;
use toolgate_host::GateSettings;
use toolgate_transports::http::{HttpServerLimits, OpenConnectionCounter};

use crate::config::Config;
use crate::serve::exchange::HttpSessionLimits;
use crate::serve::lines::LineStreamLimits;

/// Time for the headers of an HTTP request to arrive. An HTTP connection that is idle for this time
/// is closed.
const HEAD_TIME: Duration = Duration::from_secs(60);

/// Time for the body of an HTTP request to arrive. At 100 Mbit/s, the largest message takes a tenth
/// of this time.
const BODY_TIME: Duration = Duration::from_secs(30);

/// Time for which the server waits for a client to read more of a response. After this time, the
/// server closes the connection.
const WRITE_TIME: Duration = Duration::from_secs(30);

/// Time after which the answer to a slow call becomes an event stream instead of a single message.
/// Most calls end earlier, and clients and proxies wait longer.
const STREAM_AFTER: Duration = Duration::from_secs(2);

/// Time without messages after which an event stream gets a comment and a WebSocket a ping. Proxies
/// close connections that are silent for 30 s or longer.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// Maximum number of MCP sessions for each allowed connection. Sessions outnumber connections,
/// because a session continues while its client has no connection.
const SESSIONS_PER_CONNECTION: usize = 4;

/// Maximum number of messages that wait for a WebSocket client. A client with more waiting messages
/// is too slow and is disconnected.
const SOCKET_MESSAGES_MAX: usize = 256;

/// Maximum total size of the messages that wait for a WebSocket client, in bytes. A larger message
/// is allowed if no other message waits.
const SOCKET_BYTES_MAX: usize = 1 << 20;

/// Maximum number of requests in flight from one client that sends one message per line. Agents
/// send fewer, and so many requests still fit into memory.
const IN_FLIGHT_MAX: usize = 1024;

/// Time for calls in flight to finish after a stdio client closes the server's standard input. A
/// script that pipes requests into the server therefore still gets the answers.
const EOF_GRACE: Duration = Duration::from_secs(1);

/// Returns the limits of a stdio client.
pub(crate) fn line_bounds(config: &Config) -> LineStreamLimits {
    LineStreamLimits {
        line_bytes_max: config.limits.message_bytes,
        in_flight_max: IN_FLIGHT_MAX,
        eof_grace: EOF_GRACE,
        drain: Duration::from_millis(config.server.drain_ms),
        wrap_up: wrap_up_time(),
    }
}

/// Returns the time between cancelling the calls at shutdown and closing the connections: the grace
/// period of cancelled calls, plus 500 ms in which the client can read their answers. The server
/// exits later than that.
fn wrap_up_time() -> Duration {
    GateSettings::default().cancel_grace + Duration::from_millis(500)
}

/// Returns the memory budget that the requests of all callers share.
pub(crate) fn input_memory(config: &Config) -> InputMemoryBudget {
    InputMemoryBudget::new(config.limits.message_bytes)
}

/// Returns the limits of the HTTP server.
pub(crate) fn http_bounds(config: &Config) -> HttpServerLimits {
    let connections_max = config.server.connections_max;
    // Event streams leave room for calls. The streams of one caller leave room for other callers.
    let streams_max = connections_max.div_ceil(2);
    HttpServerLimits {
        body_bytes_max: config.limits.message_bytes,
        input_memory: input_memory(config),
        body_time_max: BODY_TIME,
        unsent_bytes_max: config.limits.message_bytes.saturating_mul(4).max(64 << 20),
        head_time_max: HEAD_TIME,
        write_time_max: WRITE_TIME,
        connections_max,
        streams_max,
        streams_each: streams_max.div_ceil(2),
        socket_waiting_messages: SOCKET_MESSAGES_MAX,
        socket_waiting_bytes: SOCKET_BYTES_MAX,
        occupancy: OpenConnectionCounter::default(),
        keep_alive: KEEP_ALIVE,
        // Calls that are cancelled after the drain time still get an answer.
        drain: Duration::from_millis(config.server.drain_ms) + wrap_up_time(),
    }
}

/// Returns the limits of sessions over HTTP.
pub(crate) fn session_bounds(config: &Config) -> HttpSessionLimits {
    HttpSessionLimits {
        sessions_max: config.server.connections_max.saturating_mul(SESSIONS_PER_CONNECTION),
        stream_after: STREAM_AFTER,
        socket: line_bounds(config),
    }
}
