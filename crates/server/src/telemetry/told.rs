//! Telemetry sinks of calls: metrics, traces, both or none.

use std::sync::Arc;
use std::time::Duration;

use toolgate_contract::Trace;
use toolgate_host::{Begins, Ends, Seen, Witness};
use toolgate_upstream::Upstreams;

use super::metrics::{Counting, Metrics};
use super::span::Open;
use super::traces::{Sent, Traces};
use crate::config;

/// Longest wait for the trace collector at shutdown.
const CLOSE_MAX: Duration = Duration::from_secs(2);

/// Metrics and traces, as far as they are enabled.
#[derive(Clone, Default)]
pub(crate) struct Told {
    pub(crate) metrics: Option<Arc<Metrics>>,
    traces: Option<Arc<Traces>>,
}

impl Told {
    /// Creates the enabled sinks of `config`. Metrics include `upstreams`. The collector is not
    /// contacted yet.
    ///
    /// # Errors
    /// When the collector's URL is invalid.
    pub(crate) fn of(
        config: &config::Telemetry,
        upstreams: Option<&Upstreams>,
    ) -> anyhow::Result<Self> {
        let metrics = config.metrics.then(|| Arc::new(Metrics::new(upstreams)));
        let traces = config.otlp.as_deref().map(Traces::to).transpose()?;
        Ok(Self { metrics, traces: traces.map(Arc::new) })
    }

    /// Returns the observer of calls, if any sink is enabled.
    pub(crate) fn witness(&self) -> Option<Arc<dyn Witness>> {
        let told = self.metrics.is_some() || self.traces.is_some();
        told.then(|| Arc::new(self.clone()) as Arc<dyn Witness>)
    }

    /// Returns the numbers of sent and dropped spans.
    pub(crate) fn sent(&self) -> Sent {
        self.traces.as_ref().map(|traces| traces.sent()).unwrap_or_default()
    }

    /// Waits up to 2 s until all spans are sent.
    pub(crate) async fn close(&self) {
        if let Some(traces) = &self.traces {
            traces.close(CLOSE_MAX).await;
        }
    }
}

/// Running call that is observed.
struct Going {
    told: Told,
    counting: Option<Counting>,
    span: Option<Open>,
}

impl Witness for Told {
    fn begins(&self, call: &Begins<'_>) -> Box<dyn Seen> {
        Box::new(Going {
            told: self.clone(),
            counting: self.metrics.as_ref().map(|metrics| metrics.begins(call)),
            span: self.traces.as_ref().and_then(|traces| traces.begins(call)),
        })
    }
}

impl Seen for Going {
    fn trace(&self) -> Option<Trace> {
        self.span.as_ref().map(Open::context)
    }

    fn ends(self: Box<Self>, how: &Ends<'_>) {
        let Self { told, counting, span } = *self;
        if let (Some(metrics), Some(counting)) = (&told.metrics, counting) {
            metrics.ends(&counting, how.outcome);
        }
        if let (Some(traces), Some(span)) = (&told.traces, span) {
            traces.ends(span, how);
        }
    }
}
