//! What is told of calls beside their records.

use std::sync::Arc;

use toolgate_contract::Trace;
use toolgate_host::{Begins, Ends, Seen, Witness};

use super::metrics::{Counting, Metrics};
use crate::config;

/// What is told of calls. Where nothing is configured nothing is made.
#[derive(Clone, Default)]
pub(crate) struct Told {
    pub(crate) metrics: Option<Arc<Metrics>>,
}

impl Told {
    /// As `config` has it.
    pub(crate) fn of(config: &config::Telemetry) -> Self {
        Self { metrics: config.metrics.then(|| Arc::new(Metrics::new())) }
    }

    /// Whoever is to be told of each call.
    pub(crate) fn witness(&self) -> Option<Arc<dyn Witness>> {
        self.metrics.is_some().then(|| Arc::new(self.clone()) as Arc<dyn Witness>)
    }
}

/// A call that goes on.
struct Going {
    told: Told,
    counting: Option<Counting>,
}

impl Witness for Told {
    fn begins(&self, call: &Begins<'_>) -> Box<dyn Seen> {
        let counting = self.metrics.as_ref().map(|metrics| metrics.begins(call));
        Box::new(Going { told: self.clone(), counting })
    }
}

impl Seen for Going {
    fn trace(&self) -> Option<Trace> {
        None
    }

    fn ends(self: Box<Self>, how: &Ends<'_>) {
        let Self { told, counting } = *self;
        if let (Some(metrics), Some(counting)) = (&told.metrics, counting) {
            metrics.ends(&counting, how.outcome);
        }
    }
}
