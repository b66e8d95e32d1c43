//! What is told of calls beside their records: counted, traced, or neither.

use std::sync::Arc;
use std::time::Duration;

use toolgate_contract::Trace;
use toolgate_host::{Begins, Ends, Seen, Witness};
use toolgate_upstream::Upstreams;

use super::metrics::{Counting, Metrics};
use super::span::Open;
use super::traces::{Sent, Traces};
use crate::config;

/// How long whoever stops waits for a collector.
const CLOSE_MAX: Duration = Duration::from_secs(2);

/// What is told of calls. Where nothing is configured nothing is made.
#[derive(Clone, Default)]
pub(crate) struct Told {
    pub(crate) metrics: Option<Arc<Metrics>>,
    traces: Option<Arc<Traces>>,
}

impl Told {
    /// As `config` has it, and of `upstreams` how they are; a collector is not waited for.
    ///
    /// # Errors
    /// When the collector's address is none.
    pub(crate) fn of(
        config: &config::Telemetry,
        upstreams: Option<&Upstreams>,
    ) -> anyhow::Result<Self> {
        let metrics = config.metrics.then(|| Arc::new(Metrics::new(upstreams)));
        let traces = config.otlp.as_deref().map(Traces::to).transpose()?;
        Ok(Self { metrics, traces: traces.map(Arc::new) })
    }

    /// Whoever is to be told of each call.
    pub(crate) fn witness(&self) -> Option<Arc<dyn Witness>> {
        let told = self.metrics.is_some() || self.traces.is_some();
        told.then(|| Arc::new(self.clone()) as Arc<dyn Witness>)
    }

    /// How many spans a collector has, and how many none has.
    pub(crate) fn sent(&self) -> Sent {
        self.traces.as_ref().map(|traces| traces.sent()).unwrap_or_default()
    }

    /// Waits until what was traced is at the collector, for a while at most.
    pub(crate) async fn close(&self) {
        if let Some(traces) = &self.traces {
            traces.close(CLOSE_MAX).await;
        }
    }
}

/// A call that goes on.
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
