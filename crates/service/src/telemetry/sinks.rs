//! Receivers of data about calls: metrics and traces, if the settings enable them.

use std::sync::Arc;
use std::time::Duration;

use toolgate_contract::TraceContext;
use toolgate_host::{CallObserver, CallSpan, ObservedCallEnd, ObservedCallStart};
use toolgate_upstream::Upstreams;

use super::metrics::{CallMeasurement, CallMetrics};
use super::span::RunningCallSpan;
use super::traces::{SpanCounts, TraceExporter};
use crate::config;

/// Longest time to wait for the trace collector at shutdown.
const CLOSE_MAX: Duration = Duration::from_secs(2);

/// Receivers of data about calls: metrics and traces, if they are enabled. Clones share the
/// receivers.
#[derive(Clone, Default)]
pub(crate) struct TelemetrySinks {
    pub(crate) metrics: Option<Arc<CallMetrics>>,
    traces: Option<Arc<TraceExporter>>,
}

impl TelemetrySinks {
    /// Creates the metrics and traces that `config` enables. The metrics include the state of
    /// `upstreams`. Does not contact the trace collector yet.
    ///
    /// # Errors
    /// The collector's URL is invalid.
    pub(crate) fn from_config(
        config: &config::TelemetrySection,
        upstreams: Option<&Upstreams>,
    ) -> anyhow::Result<Self> {
        let metrics = config.metrics.then(|| Arc::new(CallMetrics::new(upstreams)));
        let traces = config.otlp.as_deref().map(TraceExporter::to_collector).transpose()?;
        Ok(Self { metrics, traces: traces.map(Arc::new) })
    }

    /// Returns an observer that records calls in metrics and traces, or `None` if neither is
    /// enabled.
    pub(crate) fn observer(&self) -> Option<Arc<dyn CallObserver>> {
        let is_enabled = self.metrics.is_some() || self.traces.is_some();
        is_enabled.then(|| Arc::new(self.clone()) as Arc<dyn CallObserver>)
    }

    /// Returns the numbers of trace spans that were sent and dropped.
    pub(crate) fn span_counts(&self) -> SpanCounts {
        self.traces.as_ref().map(|traces| traces.span_counts()).unwrap_or_default()
    }

    /// Waits up to 2 s until all trace spans are sent.
    pub(crate) async fn close(&self) {
        if let Some(traces) = &self.traces {
            traces.close(CLOSE_MAX).await;
        }
    }
}

/// A running call that metrics or traces observe.
struct ObservedTelemetryCall {
    sinks: TelemetrySinks,
    measurement: Option<CallMeasurement>,
    span: Option<RunningCallSpan>,
}

impl CallObserver for TelemetrySinks {
    fn begin_call(&self, call: &ObservedCallStart<'_>) -> Box<dyn CallSpan> {
        Box::new(ObservedTelemetryCall {
            sinks: self.clone(),
            measurement: self.metrics.as_ref().map(|metrics| metrics.begin_call(call)),
            span: self.traces.as_ref().and_then(|traces| traces.begin_span(call)),
        })
    }
}

impl CallSpan for ObservedTelemetryCall {
    fn trace(&self) -> Option<TraceContext> {
        self.span.as_ref().map(RunningCallSpan::trace_context)
    }

    fn end(self: Box<Self>, how: &ObservedCallEnd<'_>) {
        let Self { sinks, measurement, span } = *self;
        if let (Some(metrics), Some(measurement)) = (&sinks.metrics, measurement) {
            metrics.end_call(&measurement, how.outcome);
        }
        if let (Some(traces), Some(span)) = (&sinks.traces, span) {
            traces.end_span(span, how);
        }
    }
}
