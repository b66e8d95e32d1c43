//! Limits of the transports. Some come from settings, the others are constants.

use std::time::Duration;

use toolgate_budget::InputMemoryBudget;
use toolgate_host::GateSettings;
use toolgate_transports::http::{HttpServerLimits, OpenConnectionCounter};

use crate::config::Config;
use crate::serve::exchange::HttpSessionLimits;
use crate::serve::lines::LineStreamLimits;

/// Time for the headers of an HTTP request to arrive, and idle time after which a connection is
/// closed. Browsers and proxies keep idle connections for about as long.
const HEAD_TIME: Duration = Duration::from_secs(60);

/// Time for the body of an HTTP request to arrive. At 100 Mbit/s, the largest message takes a tenth
/// of this time.
const BODY_TIME: Duration = Duration::from_secs(30);

/// Time for a client to read the next part of a response. A client that is still there reads
/// sooner.
const WRITE_TIME: Duration = Duration::from_secs(30);

/// Time until a slow call is answered with an event stream instead of a single message. After this
/// time most calls have ended, and no client or proxy has given up yet.
const STREAM_AFTER: Duration = Duration::from_secs(2);

/// Silence after which an event stream gets a comment and a WebSocket a ping. Proxies close
/// connections that are silent for 30 s or longer.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// Maximum number of MCP sessions for each allowed connection. A client keeps its session while it
/// has no connection.
const SESSIONS_PER_CONNECTION: usize = 4;

/// Maximum number of messages that wait for a WebSocket client before it counts as too slow.
const SOCKET_MESSAGES_MAX: usize = 256;

/// Maximum number of bytes of messages that wait for a WebSocket client. A single larger message is
/// allowed if none waits.
const SOCKET_BYTES_MAX: usize = 1 << 20;

/// Maximum number of requests in flight from one client of a line-based stream. This is more than
/// an agent has open, and few enough to keep in memory.
const IN_FLIGHT_MAX: usize = 1024;

/// Time for calls in flight to finish after a stdio client closes its end of the stream. Scripts
/// pipe requests in and want the answers; a client that has exited wants the server to end.
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

/// Returns the time that calls have to end after they are cancelled at shutdown, plus 500 ms in
/// which the client can read their answers. The sum is less than the time after which the server
/// exits anyway.
fn wrap_up_time() -> Duration {
    GateSettings::default().cancel_grace + Duration::from_millis(500)
}

/// Returns the account of the memory that the input of all callers may take.
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
