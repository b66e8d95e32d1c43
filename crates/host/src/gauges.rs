//! How much goes on at a host now, and how much may.

use crate::Host;

/// How much goes on at a host.
#[derive(Debug, Clone)]
pub struct Gauges {
    /// Calls that run and wait, by pool.
    pub pools: [PoolGauge; 2],
    /// Jobs, where they are kept.
    pub jobs: Option<JobGauge>,
    /// Records, where they are kept.
    pub records: Option<RecordGauge>,
}

/// Calls that share slots.
#[derive(Debug, Clone, Copy)]
pub struct PoolGauge {
    /// Which: `calls`, or `programs` for those that run such.
    pub name: &'static str,
    /// How many run.
    pub running: usize,
    /// How many may.
    pub running_max: usize,
    /// How many wait for a slot.
    pub waiting: usize,
    /// How many may.
    pub waiting_max: usize,
}

/// The jobs of this server.
#[derive(Debug, Clone, Copy)]
pub struct JobGauge {
    /// How many wait for their turn.
    pub queued: usize,
    /// How many may.
    pub queued_max: usize,
    /// How many run.
    pub running: usize,
    /// How many may.
    pub running_max: usize,
    /// How many it has ended, by the state that they ended in.
    pub ended: [(&'static str, u64); 3],
}

/// Records on their way to the audit log.
#[derive(Debug, Clone, Copy)]
pub struct RecordGauge {
    /// How many wait to be written.
    pub waiting: u64,
    /// How many may wait or be open.
    pub places: usize,
    /// Whether the last try to write failed.
    pub failing: bool,
}

impl Host {
    /// How much goes on now.
    pub fn gauges(&self) -> Gauges {
        Gauges {
            pools: self.gate.limits.gauges(),
            jobs: self.jobs.as_ref().map(crate::jobs::Jobs::gauge),
            records: self.gate.audit.gauge(),
        }
    }
}
