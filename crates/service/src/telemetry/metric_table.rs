//! Table of all metrics of the server.

use prometheus_client::registry::Unit;
use toolgate_host::{CallPoolGauge, HostLoadGauges};
use toolgate_upstream::UpstreamState;

use super::metrics::ConnectionCounts;
use super::traces::SpanCounts;

/// A metric of the server. In the output, `toolgate_` precedes its name, and `_total` follows the
/// name of a counter.
pub(super) struct MetricDefinition {
    pub(super) name: &'static str,
    /// Unit of the metric, which is the last word of its full name.
    pub(super) unit: Option<Unit>,
    /// Description of the metric, without a full stop.
    pub(super) help: &'static str,
    pub(super) labels: &'static [&'static str],
    pub(super) source: MetricValueSource,
}

/// Type of a metric, and the source of its values.
pub(super) enum MetricValueSource {
    /// Counter of calls that have ended.
    Calls,
    /// Counter of calls that have ended, by caller.
    CallerCalls,
    /// Histogram of call durations.
    CallDurations,
    /// Gauge whose samples this function computes from the current load of the server. The metrics
    /// page leaves out a metric without samples.
    Gauge(fn(&ServerLoad) -> Vec<MetricSample>),
    /// Counter whose samples this function computes from the current load of the server.
    Counter(fn(&ServerLoad) -> Vec<MetricSample>),
}

/// Value of a metric, and the value of its label if the metric has one label.
pub(super) struct MetricSample {
    pub(super) label: Option<String>,
    pub(super) value: u64,
}

/// Load of the server at the time when a client requests the metrics.
pub(super) struct ServerLoad {
    /// Time at which this process started, in seconds since the Unix epoch.
    pub(super) started_at_s: u64,
    pub(super) host: HostLoadGauges,
    pub(super) connections: ConnectionCounts,
    pub(super) spans: SpanCounts,
    /// State of each upstream, by the upstream's name.
    pub(super) upstreams: Vec<(String, UpstreamState)>,
}

const POOL: &[&str] = &["pool"];
const STATE: &[&str] = &["state"];
const UPSTREAM: &[&str] = &["upstream"];
const NO_LABELS: &[&str] = &[];

/// Every metric, in the order of the metrics page.
pub(super) const METRICS: &[MetricDefinition] = &[
    MetricDefinition {
        name: "build_info",
        unit: None,
        help: "Version of the server; the value is always 1",
        labels: &["version"],
        source: MetricValueSource::Gauge(|_| vec![labeled(env!("CARGO_PKG_VERSION"), 1)]),
    },
    MetricDefinition {
        name: "start_time",
        unit: Some(Unit::Seconds),
        help: "Start of the process, in seconds since the epoch",
        labels: NO_LABELS,
        source: MetricValueSource::Gauge(|load| one(load.started_at_s)),
    },
    MetricDefinition {
        name: "calls",
        unit: None,
        help: "Ended calls by tool, dialect and outcome",
        labels: &["tool", "dialect", "outcome"],
        source: MetricValueSource::Calls,
    },
    MetricDefinition {
        name: "caller_calls",
        unit: None,
        help: "Ended calls by caller and result (`ok` or `failed`); callers after the first 100 are `_others`",
        labels: &["caller", "result"],
        source: MetricValueSource::CallerCalls,
    },
    MetricDefinition {
        name: "call_duration",
        unit: Some(Unit::Seconds),
        help: "Duration of calls, from reading the request to the end of the call",
        labels: &["tool"],
        source: MetricValueSource::CallDurations,
    },
    gauge("calls_running", "Calls that hold a slot", POOL, |load| {
        of_pools(load, |pool| pool.running)
    }),
    gauge("calls_running_max", "Slots for calls", POOL, |load| {
        of_pools(load, |pool| pool.running_max)
    }),
    gauge("calls_waiting", "Calls that wait for a slot", POOL, |load| {
        of_pools(load, |pool| pool.waiting)
    }),
    gauge("calls_waiting_max", "Maximum number of calls that may wait for a slot", POOL, |load| {
        of_pools(load, |pool| pool.waiting_max)
    }),
    gauge("jobs", "Jobs of this server that have not ended", STATE, |load| {
        let jobs = load.host.jobs.iter();
        let jobs = jobs.flat_map(|jobs| [("queued", jobs.queued), ("running", jobs.running)]);
        jobs.map(|(state, count)| labeled(state, wide(count))).collect()
    }),
    gauge("jobs_max", "Maximum number of jobs of this server", STATE, |load| {
        let jobs = load.host.jobs.iter();
        let jobs =
            jobs.flat_map(|jobs| [("queued", jobs.queued_max), ("running", jobs.running_max)]);
        jobs.map(|(state, count)| labeled(state, wide(count))).collect()
    }),
    counter("jobs_ended", "Jobs that this server has ended", STATE, |load| {
        let ended = load.host.jobs.iter().flat_map(|jobs| jobs.ended);
        ended.map(|(state, count)| labeled(state, count)).collect()
    }),
    gauge("connections", "Open HTTP connections", NO_LABELS, |load| {
        one(wide(load.connections.connections))
    }),
    gauge("connections_max", "Maximum number of open HTTP connections", NO_LABELS, |load| {
        one(wide(load.connections.connections_max))
    }),
    gauge("streams", "Open event streams and WebSockets", NO_LABELS, |load| {
        one(wide(load.connections.streams))
    }),
    gauge(
        "streams_max",
        "Maximum number of open event streams and WebSockets",
        NO_LABELS,
        |load| one(wide(load.connections.streams_max)),
    ),
    gauge("sessions", "Open MCP sessions over HTTP", NO_LABELS, |load| {
        one(wide(load.connections.sessions))
    }),
    gauge("sessions_max", "Maximum number of open MCP sessions over HTTP", NO_LABELS, |load| {
        one(wide(load.connections.sessions_max))
    }),
    gauge("audit_records_waiting", "Audit records that wait to be written", NO_LABELS, |load| {
        load.host.records.iter().flat_map(|records| one(records.waiting)).collect()
    }),
    gauge(
        "audit_records_waiting_max",
        "Maximum number of audit records that may wait",
        NO_LABELS,
        |load| load.host.records.iter().flat_map(|records| one(wide(records.capacity))).collect(),
    ),
    gauge("audit_failing", "1 if the last write of the audit log failed", NO_LABELS, |load| {
        load.host.records.iter().flat_map(|records| one(u64::from(records.failing))).collect()
    }),
    counter("spans_sent", "Spans that the collector accepted", NO_LABELS, |load| {
        one(load.spans.sent)
    }),
    counter(
        "spans_dropped",
        "Spans that toolgate dropped or the collector refused",
        NO_LABELS,
        |load| one(load.spans.dropped),
    ),
    gauge("upstream_connected", "1 if the upstream is connected", UPSTREAM, |load| {
        of_upstreams(load, UpstreamState::Connected)
    }),
    gauge("upstream_failing", "1 if the last connection attempt failed", UPSTREAM, |load| {
        of_upstreams(load, UpstreamState::Failing)
    }),
];

const fn gauge(
    name: &'static str,
    help: &'static str,
    labels: &'static [&'static str],
    read: fn(&ServerLoad) -> Vec<MetricSample>,
) -> MetricDefinition {
    MetricDefinition { name, unit: None, help, labels, source: MetricValueSource::Gauge(read) }
}

const fn counter(
    name: &'static str,
    help: &'static str,
    labels: &'static [&'static str],
    read: fn(&ServerLoad) -> Vec<MetricSample>,
) -> MetricDefinition {
    MetricDefinition { name, unit: None, help, labels, source: MetricValueSource::Counter(read) }
}

fn one(value: u64) -> Vec<MetricSample> {
    vec![MetricSample { label: None, value }]
}

fn labeled(label: impl Into<String>, value: u64) -> MetricSample {
    MetricSample { label: Some(label.into()), value }
}

fn wide(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}

fn of_pools(load: &ServerLoad, count: fn(&CallPoolGauge) -> usize) -> Vec<MetricSample> {
    load.host.pools.iter().map(|pool| labeled(pool.name, wide(count(pool)))).collect()
}

fn of_upstreams(load: &ServerLoad, wanted: UpstreamState) -> Vec<MetricSample> {
    let upstreams = load.upstreams.iter();
    upstreams.map(|(name, state)| labeled(name, u64::from(*state == wanted))).collect()
}
