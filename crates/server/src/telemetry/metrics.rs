//! Metrics in the OpenMetrics text format, for Prometheus and compatible servers.
//!
//! Labels come only from tools, dialects, outcomes and upstreams. Caller names and input never
//! become labels, so the number of series is bounded.

use std::fmt::{Error, Write};
use std::sync::atomic::Ordering;
use std::time::Instant;

use jiff::Timestamp;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Registry, Unit};
use toolgate_contract::ToolId;
use toolgate_host::{CallStart, CallTarget, HostGauges};
use toolgate_upstream::Upstreams;

use super::traces::SpanCounts;
use super::upstreams::UpstreamCollector;

/// Media type of the metrics text.
pub(crate) const MEDIA_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// Upper bounds of the call duration histogram, in seconds.
const DURATION_BUCKETS_S: [f64; 14] =
    [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0, 120.0];

/// Metrics of the server.
pub(crate) struct CallMetrics {
    registry: Registry,
    calls: Family<CallLabels, Counter>,
    durations: Family<ToolLabels, Histogram, fn() -> Histogram>,
    current: CurrentGauges,
}

/// Gauges that are read when metrics are requested.
#[derive(Default)]
struct CurrentGauges {
    running: Family<PoolLabels, Gauge>,
    running_max: Family<PoolLabels, Gauge>,
    waiting: Family<PoolLabels, Gauge>,
    waiting_max: Family<PoolLabels, Gauge>,
    jobs: Family<StateLabels, Gauge>,
    jobs_max: Family<StateLabels, Gauge>,
    jobs_ended: Family<StateLabels, Counter>,
    connections: Gauge,
    connections_max: Gauge,
    streams: Gauge,
    streams_max: Gauge,
    sessions: Gauge,
    sessions_max: Gauge,
    records: Gauge,
    records_max: Gauge,
    records_failing: Gauge,
    spans_sent: Counter,
    spans_dropped: Counter,
}

/// Numbers of connections, streams and sessions, each with its limit.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ConnectionCounts {
    pub(crate) connections: usize,
    pub(crate) connections_max: usize,
    pub(crate) streams: usize,
    pub(crate) streams_max: usize,
    pub(crate) sessions: usize,
    pub(crate) sessions_max: usize,
}

/// Running call that is counted when it ends.
pub(super) struct CallMeasurement {
    tool: ToolLabel,
    dialect: DialectLabel,
    started_at: Instant,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CallLabels {
    tool: ToolLabel,
    dialect: DialectLabel,
    outcome: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ToolLabels {
    tool: ToolLabel,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PoolLabels {
    pool: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StateLabels {
    state: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct BuildLabels {
    version: &'static str,
}

type DialectLabel = std::borrow::Cow<'static, str>;

/// Tool label of a call. Special values start with `_`, which no tool id does.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum ToolLabel {
    Tool(ToolId),
    Unknown,
    Resources,
    Prompts,
}

impl EncodeLabelValue for ToolLabel {
    fn encode(&self, encoder: &mut LabelValueEncoder) -> Result<(), Error> {
        encoder.write_str(match self {
            Self::Tool(id) => id.as_str(),
            Self::Unknown => "_unknown",
            Self::Resources => "_resources",
            Self::Prompts => "_prompts",
        })
    }
}

impl CallMetrics {
    pub(super) fn new(upstreams: Option<&Upstreams>) -> Self {
        let mut registry = Registry::with_prefix("toolgate");
        let build = Info::new(BuildLabels { version: env!("CARGO_PKG_VERSION") });
        registry.register("build", "Which toolgate this is", build);
        let started = Gauge::<i64>::default();
        started.set(Timestamp::now().as_second());
        let about = "When this process began to count, since the epoch";
        registry.register_with_unit("start_time", about, Unit::Seconds, started);
        let calls = Family::<CallLabels, Counter>::default();
        registry.register("calls", "Calls that have ended, by how", calls.clone());
        let histogram: fn() -> Histogram = || Histogram::new(DURATION_BUCKETS_S);
        let durations = Family::<ToolLabels, Histogram, _>::new_with_constructor(histogram);
        let about = "How long calls took, from when they were read to their end";
        registry.register_with_unit("call_duration", about, Unit::Seconds, durations.clone());
        let current = CurrentGauges::default();
        current.register(&mut registry);
        if let Some(upstreams) = upstreams {
            registry.register_collector(Box::new(UpstreamCollector(upstreams.clone())));
        }
        Self { registry, calls, durations, current }
    }

    /// Starts the measurement of a call.
    pub(super) fn begin_call(&self, call: &CallStart<'_>) -> CallMeasurement {
        let tool = match call.target {
            CallTarget::Tool(id) => ToolLabel::Tool(id.clone()),
            CallTarget::Resource(guard) => ToolLabel::Tool(guard.clone()),
            CallTarget::UnknownTool => ToolLabel::Unknown,
            CallTarget::UnknownResource => ToolLabel::Resources,
            CallTarget::Prompt(_) => ToolLabel::Prompts,
        };
        CallMeasurement { tool, dialect: call.dialect.clone(), started_at: Instant::now() }
    }

    /// Counts a call that has ended with `outcome`.
    pub(super) fn end_call(&self, call: &CallMeasurement, outcome: &'static str) {
        let took = call.started_at.elapsed().as_secs_f64();
        let CallMeasurement { tool, dialect, .. } = call;
        let tool = tool.clone();
        let dialect = dialect.clone();
        self.durations.get_or_create(&ToolLabels { tool: tool.clone() }).observe(took);
        self.calls.get_or_create(&CallLabels { tool, dialect, outcome }).inc();
    }

    /// Returns all metrics as text.
    pub(crate) fn openmetrics_text(
        &self,
        gauges: &HostGauges,
        connected: ConnectionCounts,
        sent: SpanCounts,
    ) -> String {
        self.current.update(gauges, connected, sent);
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = encode(&mut text, &self.registry);
        text
    }
}

impl CurrentGauges {
    fn register(&self, registry: &mut Registry) {
        let gauges = [
            ("calls_running", "Calls that hold a slot", &self.running),
            ("calls_running_max", "How many may", &self.running_max),
            ("calls_waiting", "Calls that wait for a slot", &self.waiting),
            ("calls_waiting_max", "How many may", &self.waiting_max),
        ];
        for (name, about, gauge) in gauges {
            registry.register(name, about, gauge.clone());
        }
        registry.register("jobs", "Jobs of this server that have not ended", self.jobs.clone());
        registry.register("jobs_max", "How many there may be", self.jobs_max.clone());
        registry.register("jobs_ended", "Jobs this server has ended", self.jobs_ended.clone());
        let gauges = [
            ("connections", "Connections over HTTP", &self.connections),
            ("connections_max", "How many there may be", &self.connections_max),
            ("streams", "Event streams and WebSockets that clients keep open", &self.streams),
            ("streams_max", "How many there may be", &self.streams_max),
            ("sessions", "MCP sessions over HTTP", &self.sessions),
            ("sessions_max", "How many there may be", &self.sessions_max),
            ("audit_records_waiting", "Records that wait to be written", &self.records),
            ("audit_records_waiting_max", "How many may", &self.records_max),
            ("audit_failing", "Whether the audit log cannot be written", &self.records_failing),
        ];
        for (name, about, gauge) in gauges {
            registry.register(name, about, gauge.clone());
        }
        registry.register("spans_sent", "Spans that a collector has", self.spans_sent.clone());
        let about = "Spans that no collector has: too many waited, or it did not take them";
        registry.register("spans_dropped", about, self.spans_dropped.clone());
    }

    fn update(&self, gauges: &HostGauges, connected: ConnectionCounts, sent: SpanCounts) {
        let whole = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        for pool in gauges.pools {
            let of = PoolLabels { pool: pool.name };
            self.running.get_or_create(&of).set(whole(pool.running));
            self.running_max.get_or_create(&of).set(whole(pool.running_max));
            self.waiting.get_or_create(&of).set(whole(pool.waiting));
            self.waiting_max.get_or_create(&of).set(whole(pool.waiting_max));
        }
        if let Some(jobs) = gauges.jobs {
            let states = [
                ("queued", jobs.queued, jobs.queued_max),
                ("running", jobs.running, jobs.running_max),
            ];
            for (state, count, max) in states {
                self.jobs.get_or_create(&StateLabels { state }).set(whole(count));
                self.jobs_max.get_or_create(&StateLabels { state }).set(whole(max));
            }
            for (state, count) in jobs.ended {
                set_counter(&self.jobs_ended.get_or_create(&StateLabels { state }), count);
            }
        }
        self.connections.set(whole(connected.connections));
        self.connections_max.set(whole(connected.connections_max));
        self.streams.set(whole(connected.streams));
        self.streams_max.set(whole(connected.streams_max));
        self.sessions.set(whole(connected.sessions));
        self.sessions_max.set(whole(connected.sessions_max));
        if let Some(records) = gauges.records {
            self.records.set(i64::try_from(records.waiting).unwrap_or(i64::MAX));
            self.records_max.set(whole(records.capacity));
            self.records_failing.set(i64::from(records.failing));
        }
        set_counter(&self.spans_sent, sent.sent);
        set_counter(&self.spans_dropped, sent.dropped);
    }
}

/// Sets a counter to a value that is counted elsewhere.
fn set_counter(counter: &Counter, count: u64) {
    counter.inner().store(count, Ordering::Relaxed);
}
