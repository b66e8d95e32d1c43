//! Reports the current load of a host and its limits.

/// Current load of a host: its calls, jobs and audit log.
#[derive(Debug, Clone)]
pub struct HostLoadGauges {
    /// Numbers of running and waiting calls, by pool.
    pub pools: [CallPoolGauge; 2],
    /// Load of the jobs, if the host has jobs.
    pub jobs: Option<JobGauge>,
    /// Load of the audit log, if the host has one.
    pub records: Option<AuditQueueGauge>,
}

/// Load of a pool of slots that calls share.
#[derive(Debug, Clone, Copy)]
pub struct CallPoolGauge {
    /// Name of the pool: `calls`, or `programs` for calls that run programs.
    pub name: &'static str,
    /// Number of running calls in the pool.
    pub running: usize,
    /// Maximum number of running calls in the pool.
    pub running_max: usize,
    /// Number of calls that wait for a slot.
    pub waiting: usize,
    /// Maximum number of waiting calls in the pool.
    pub waiting_max: usize,
}

/// Numbers of this server's jobs by state.
#[derive(Debug, Clone, Copy)]
pub struct JobGauge {
    /// Number of jobs that wait for their turn.
    pub queued: usize,
    /// Maximum number of waiting jobs.
    pub queued_max: usize,
    /// Number of running jobs.
    pub running: usize,
    /// Maximum number of running jobs.
    pub running_max: usize,
    /// Number of jobs that this server has ended, by final state.
    pub ended: [(&'static str, u64); 3],
}

/// Load of the queue of audit records.
#[derive(Debug, Clone, Copy)]
pub struct AuditQueueGauge {
    /// Number of audit records that wait to be written.
    pub waiting: u64,
    /// Maximum number of waiting and open audit records.
    pub capacity: usize,
    /// True if the last write to the audit log failed.
    pub failing: bool,
}
