//! Metrics of upstream connections, read when metrics are requested.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;
use toolgate_upstream::{UpstreamState, Upstreams};

/// Collector of the states of all upstreams.
pub(super) struct UpstreamCollector(pub(super) Upstreams);

impl fmt::Debug for UpstreamCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OfUpstreams")
    }
}

impl Collector for UpstreamCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let states = self.0.states();
        if states.is_empty() {
            return Ok(());
        }
        for (name, about, state) in [
            ("upstream_connected", "Whether there is a connection to it", UpstreamState::Connected),
            (
                "upstream_failing",
                "Whether it could not be reached when last tried",
                UpstreamState::Failing,
            ),
        ] {
            let mut all = encoder.encode_descriptor(name, about, None, MetricType::Gauge)?;
            for (upstream, is) in &states {
                let of = [("upstream", upstream.as_str())];
                let gauge = ConstGauge::new(i64::from(*is == state));
                gauge.encode(all.encode_family(&of)?)?;
            }
        }
        Ok(())
    }
}
