//! Metrics in the OpenMetrics text format, for Prometheus and compatible servers.
//!
//! Values of labels come only from tools, dialects, outcomes, upstreams, and the names of the first
//! callers. Input never becomes a label, so the number of time series is bounded.

use std::collections::HashSet;
use std::fmt::{self, Error, Write};
use std::sync::{Arc, Mutex, RwLock};
use std::time::Instant;

use jiff::Timestamp;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{
    DescriptorEncoder, EncodeLabelSet, EncodeLabelValue, EncodeMetric, LabelValueEncoder,
};
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use toolgate_contract::{ToolId, lock_mutex, lock_read, lock_write};
use toolgate_host::{CallTarget, HostLoadGauges, ObservedCallStart};
use toolgate_upstream::Upstreams;

use super::metric_table::{METRICS, MetricDefinition, MetricSample, MetricValueSource, ServerLoad};
use super::traces::SpanCounts;

/// Media type of the text with all metrics.
pub(crate) const MEDIA_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// Upper bounds of the call duration histogram, in seconds.
const DURATION_BUCKETS_S: [f64; 14] =
    [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0, 120.0];

/// Maximum number of callers that have their own label in metrics. All other callers share the
/// label [`OTHER_CALLERS`].
const CALLERS_MAX: usize = 100;
/// Label that all callers beyond [`CALLERS_MAX`] share. No caller has this name.
const OTHER_CALLERS: &str = "_others";

/// Metrics of the server: counts and durations of calls, and the current load.
pub(crate) struct CallMetrics {
    registry: Registry,
    calls: Family<CallMetricLabels, Counter>,
    caller_calls: Family<CallerMetricLabels, Counter>,
    /// Names of callers that have their own label in metrics.
    callers: RwLock<HashSet<Arc<str>>>,
    durations: Family<ToolMetricLabels, Histogram, fn() -> Histogram>,
    started_at_s: u64,
    upstreams: Option<Upstreams>,
    load: ServerLoadCell,
}

/// Load of the server that the metrics collectors write. The value is set immediately before the
/// collectors run.
type ServerLoadCell = Arc<Mutex<Option<ServerLoad>>>;

/// Collector of a metric that is computed from the current load of the server.
struct ServerLoadCollector {
    row: &'static MetricDefinition,
    load: ServerLoadCell,
}

impl fmt::Debug for ServerLoadCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ServerLoadCollector").field(&self.row.name).finish()
    }
}

impl Collector for ServerLoadCollector {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        let load = lock_mutex(&self.load);
        let Some(load) = &*load else { return Ok(()) };
        match self.row.source {
            MetricValueSource::Calls
            | MetricValueSource::CallerCalls
            | MetricValueSource::CallDurations => Ok(()),
            MetricValueSource::Gauge(read) => {
                encode_samples(encoder, self.row, &read(load), |value| {
                    ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX))
                })
            }
            MetricValueSource::Counter(read) => {
                encode_samples(encoder, self.row, &read(load), ConstCounter::new)
            }
        }
    }
}

fn encode_samples<M: EncodeMetric>(
    mut encoder: DescriptorEncoder<'_>,
    row: &MetricDefinition,
    samples: &[MetricSample],
    metric: impl Fn(u64) -> M,
) -> Result<(), Error> {
    let Some(first) = samples.first() else { return Ok(()) };
    let help = format!("{}.", row.help);
    let kind = metric(first.value).metric_type();
    let mut family = encoder.encode_descriptor(row.name, &help, row.unit.as_ref(), kind)?;
    for sample in samples {
        match (&sample.label, row.labels) {
            (Some(value), [label, ..]) => {
                let labels = [(*label, value.as_str())];
                metric(sample.value).encode(family.encode_family(&labels)?)?;
            }
            (Some(_) | None, _) => return metric(sample.value).encode(family),
        }
    }
    Ok(())
}

/// Numbers of connections, streams and sessions of the HTTP server, and their limits.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ConnectionCounts {
    pub(crate) connections: usize,
    pub(crate) connections_max: usize,
    pub(crate) streams: usize,
    pub(crate) streams_max: usize,
    pub(crate) sessions: usize,
    pub(crate) sessions_max: usize,
}

/// Labels and start time of a running call for the metrics. The call is counted when it ends.
pub(super) struct CallMeasurement {
    caller: Arc<str>,
    tool: ToolMetricLabel,
    dialect: DialectMetricLabel,
    started_at: Instant,
}

/// Labels of the metric that counts all calls that have ended.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CallMetricLabels {
    tool: ToolMetricLabel,
    dialect: DialectMetricLabel,
    outcome: &'static str,
}

/// Labels of the metric that counts calls by caller.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CallerMetricLabels {
    caller: Arc<str>,
    result: &'static str,
}

/// Labels of the metric of call durations by tool.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ToolMetricLabels {
    tool: ToolMetricLabel,
}

/// Name of a dialect as a label of metrics.
type DialectMetricLabel = std::borrow::Cow<'static, str>;

/// Value of the label for the tool of a call in metrics. Special values start with `_`, unlike
/// every tool id.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum ToolMetricLabel {
    Tool(ToolId),
    Unknown,
    Resources,
    Prompts,
}

impl EncodeLabelValue for ToolMetricLabel {
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
        let calls = Family::<CallMetricLabels, Counter>::default();
        let caller_calls = Family::<CallerMetricLabels, Counter>::default();
        let histogram: fn() -> Histogram = || Histogram::new(DURATION_BUCKETS_S);
        let durations = Family::<ToolMetricLabels, Histogram, _>::new_with_constructor(histogram);
        let load = ServerLoadCell::default();
        for row in METRICS {
            match (&row.source, row.unit.clone()) {
                (MetricValueSource::Calls, _) => {
                    registry.register(row.name, row.help, calls.clone());
                }
                (MetricValueSource::CallerCalls, _) => {
                    registry.register(row.name, row.help, caller_calls.clone());
                }
                (MetricValueSource::CallDurations, Some(unit)) => {
                    registry.register_with_unit(row.name, row.help, unit, durations.clone());
                }
                (MetricValueSource::CallDurations, None) => {
                    registry.register(row.name, row.help, durations.clone());
                }
                (MetricValueSource::Gauge(_) | MetricValueSource::Counter(_), _) => {
                    let load = load.clone();
                    registry.register_collector(Box::new(ServerLoadCollector { row, load }));
                }
            }
        }
        let started_at_s = u64::try_from(Timestamp::now().as_second()).unwrap_or_default();
        let upstreams = upstreams.cloned();
        let callers = RwLock::default();
        Self { registry, calls, caller_calls, callers, durations, started_at_s, upstreams, load }
    }

    /// Starts the measurement of a call for the metrics.
    pub(super) fn begin_call(&self, call: &ObservedCallStart<'_>) -> CallMeasurement {
        let tool = match call.target {
            CallTarget::Tool(id) => ToolMetricLabel::Tool(id.clone()),
            CallTarget::Resource(guard) => ToolMetricLabel::Tool(guard.clone()),
            CallTarget::UnknownTool => ToolMetricLabel::Unknown,
            CallTarget::UnknownResource => ToolMetricLabel::Resources,
            CallTarget::Prompt(_) => ToolMetricLabel::Prompts,
        };
        let caller = self.caller_label(&call.caller.name);
        CallMeasurement { caller, tool, dialect: call.dialect.clone(), started_at: Instant::now() }
    }

    /// Returns the metrics label of the caller `name`: the name itself, or [`OTHER_CALLERS`] if too
    /// many callers already have labels.
    fn caller_label(&self, name: &Arc<str>) -> Arc<str> {
        if lock_read(&self.callers).contains(name) {
            return name.clone();
        }
        let mut callers = lock_write(&self.callers);
        if callers.len() >= CALLERS_MAX && !callers.contains(name) {
            return OTHER_CALLERS.into();
        }
        callers.insert(name.clone());
        name.clone()
    }

    /// Counts a call that has ended with `outcome`, and records its duration.
    pub(super) fn end_call(&self, call: &CallMeasurement, outcome: &'static str) {
        let seconds = call.started_at.elapsed().as_secs_f64();
        let CallMeasurement { caller, tool, dialect, .. } = call;
        let result = if outcome == "ok" { "ok" } else { "failed" };
        self.caller_calls
            .get_or_create(&CallerMetricLabels { caller: caller.clone(), result })
            .inc();
        let tool = tool.clone();
        let dialect = dialect.clone();
        self.durations.get_or_create(&ToolMetricLabels { tool: tool.clone() }).observe(seconds);
        self.calls.get_or_create(&CallMetricLabels { tool, dialect, outcome }).inc();
    }

    /// Returns all metrics as text in the OpenMetrics format.
    pub(crate) fn openmetrics_text(
        &self,
        host: HostLoadGauges,
        connections: ConnectionCounts,
        spans: SpanCounts,
    ) -> String {
        let upstreams = self.upstreams.as_ref().map(Upstreams::states).unwrap_or_default();
        let started_at_s = self.started_at_s;
        let load = ServerLoad { started_at_s, host, connections, spans, upstreams };
        *lock_mutex(&self.load) = Some(load);
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = encode(&mut text, &self.registry);
        text
    }
}

/// Returns the reference page of all metrics.
pub fn metrics_reference() -> String {
    let mut page = String::from(
        "# Metrics\n\n<!-- Written by `cargo xtask codegen` from the table of metrics; edit that. -->\n\n\
         `GET /metrics` returns the metrics in this table in the OpenMetrics text format if \
         `telemetry.metrics` is true. [The guide](../guide/telemetry.md) shows how to scrape the \
         metrics.\n\n\
         | metric | type | labels | meaning |\n|---|---|---|---|\n",
    );
    for row in METRICS {
        let (kind, end) = match row.source {
            MetricValueSource::Calls
            | MetricValueSource::CallerCalls
            | MetricValueSource::Counter(_) => ("counter", "_total"),
            MetricValueSource::CallDurations => ("histogram", ""),
            MetricValueSource::Gauge(_) => ("gauge", ""),
        };
        let unit = row.unit.as_ref().map(|unit| format!("_{}", unit.as_str())).unwrap_or_default();
        let labels: Vec<_> = row.labels.iter().map(|label| format!("`{label}`")).collect();
        // Writing to a string cannot fail.
        let _ = writeln!(
            page,
            "| `toolgate_{}{unit}{end}` | {kind} | {} | {} |",
            row.name,
            labels.join(", "),
            row.help,
        );
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Texts of the shipped alert rules and dashboard, which mention metrics by name.
    const MONITORING: [&str; 2] = [
        include_str!("../../../../docs/monitoring/prometheus-alerts.yml"),
        include_str!("../../../../docs/monitoring/grafana-dashboard.json"),
    ];

    #[test]
    fn the_number_of_caller_labels_is_bounded() {
        let metrics = CallMetrics::new(None);
        for number in 0..CALLERS_MAX {
            let name: Arc<str> = format!("caller-{number}").into();
            assert_eq!(metrics.caller_label(&name), name);
        }
        assert_eq!(&*metrics.caller_label(&"late".into()), OTHER_CALLERS);
        assert_eq!(&*metrics.caller_label(&"caller-7".into()), "caller-7");
    }

    #[test]
    fn alerts_and_the_dashboard_use_only_metrics_that_exist() {
        let known = metrics_reference();
        for text in MONITORING {
            let is_name = |c: char| c.is_ascii_lowercase() || c == '_';
            for rest in text.split("toolgate_").skip(1) {
                let name = rest.split(|c| !is_name(c)).next().unwrap_or_default();
                let name = name.strip_suffix("_bucket").unwrap_or(name);
                assert!(known.contains(&format!("`toolgate_{name}`")), "toolgate_{name}");
            }
        }
    }
}
