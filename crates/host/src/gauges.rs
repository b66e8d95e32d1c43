//! Reports the current load of a host and its limits.

/// Current load of a host.
#[derive(Debug, Clone)]
pub struct HostGauges {
    /// Running and waiting calls, by pool.
    pub pools: [PoolGauge; 2],
    /// Load of the jobs, if the host has jobs.
    pub jobs: Option<JobGauge>,
    /// Load of the audit log, if the host has one.
    pub records: Option<RecordGauge>,
}

/// Calls that share a pool of slots.
#[derive(Debug, Clone, Copy)]
pub struct PoolGauge {
    /// Name of the pool: `calls`, or `programs` for calls that run programs.
    pub name: &'static str,
    /// Running calls.
    pub running: usize,
    /// Largest number of running calls.
    pub running_max: usize,
    /// Calls that wait for a slot.
    pub waiting: usize,
    /// Largest number of waiting calls.
    pub waiting_max: usize,
}

/// Jobs of this server.
#[derive(Debug, Clone, Copy)]
pub struct JobGauge {
    /// Jobs that wait for their turn.
    pub queued: usize,
    /// Largest number of waiting jobs.
    pub queued_max: usize,
    /// Running jobs.
    pub running: usize,
    /// Largest number of running jobs.
    pub running_max: usize,
    /// Jobs that this server has ended, by final state.
    pub ended: [(&'static str, u64); 3],
}

/// Records on their way to the audit log.
#[derive(Debug, Clone, Copy)]
pub struct RecordGauge {
    /// Records that wait to be written.
    pub waiting: u64,
    /// Largest number of waiting and open records.
    pub capacity: usize,
    /// True if the last write failed.
    pub failing: bool,
}
