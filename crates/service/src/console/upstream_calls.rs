//! State of each upstream, and statistics of the recent calls of its tools.

use std::collections::HashMap;

use jiff::Timestamp;
use toolgate_contract::fold_name;
use toolgate_host::{AuditIndex, AuditRecordFilter, CallGrouping, CallStatistics};
use toolgate_upstream::{UpstreamHealth, UpstreamState};

use super::WebConsole;

/// State of one upstream, and statistics of its recent calls.
pub(crate) struct UpstreamCallStatistics {
    pub(crate) name: String,
    pub(crate) state: UpstreamState,
    pub(crate) health: UpstreamHealth,
    pub(crate) calls: CallStatistics,
}

impl UpstreamCallStatistics {
    /// Returns true if the upstream cannot be reached.
    pub(crate) fn is_down(&self) -> bool {
        self.health.is_failing == Some(true) || self.state == UpstreamState::Failing
    }
}

/// State of all upstreams and statistics of their calls, for the console.
pub(crate) struct UpstreamCallReport {
    /// Statistics of each upstream: unavailable upstreams first, otherwise in the order of the
    /// settings.
    pub(crate) upstreams: Vec<UpstreamCallStatistics>,
    /// Start of the period whose calls are counted. `None` if there is no index of calls.
    pub(crate) counted_from: Option<Timestamp>,
    pub(crate) owners: UpstreamToolPrefixes,
}

/// Names of upstreams, by the prefix of their tools' names.
pub(crate) struct UpstreamToolPrefixes(HashMap<String, String>);

impl UpstreamToolPrefixes {
    fn new(console: &WebConsole, names: impl Iterator<Item = String>) -> Self {
        let settings = (console.sources.settings)();
        let with_prefix = |name: String| {
            let prefix = settings.upstream.get(&name).and_then(|one| one.prefix.as_ref());
            let start = format!("{}_", prefix.unwrap_or(&name));
            (fold_name(&start).into_owned(), name)
        };
        Self(names.map(with_prefix).collect())
    }

    /// Returns the name of the upstream that has the tool `tool`, according to the prefix of the
    /// tool's name. `tool` may have any spelling. Returns `None` if no upstream has such a prefix.
    pub(crate) fn find(&self, tool: &str) -> Option<&String> {
        let tool = fold_name(tool);
        // The longest prefix counts: one upstream may be named `a` and another `a_b`.
        tool.rmatch_indices('_').find_map(|(at, _)| self.0.get(&tool[..=at]))
    }
}

/// Returns the state of all upstreams, and statistics of their calls since the start of the
/// previous full hour.
pub(crate) async fn report(console: &WebConsole) -> UpstreamCallReport {
    let states = console.sources.upstreams.states();
    let mut health: HashMap<_, _> = console.sources.upstreams.health().into_iter().collect();
    let owners = UpstreamToolPrefixes::new(console, states.iter().map(|(name, _)| name.clone()));
    // Statistics are counted by the hour.
    let hour = Timestamp::now().as_second().div_euclid(3600) - 1;
    let since = Timestamp::from_second(hour * 3600).ok();
    let filter = AuditRecordFilter { since, ..AuditRecordFilter::default() };
    let count = move |index: &AuditIndex| index.statistics(&[CallGrouping::Tool], &filter);
    let called = match states.is_empty() {
        true => Err(String::new()),
        false => console.audit.run("calls of tools".to_owned(), count).await,
    };
    let mut sums: HashMap<String, CallStatistics> = HashMap::new();
    for one in called.iter().flat_map(|called| called.iter()) {
        if let Some(owner) = one.group.first().and_then(|tool| owners.find(tool)) {
            sums.entry(owner.clone()).or_default().add(one);
        }
    }
    let mut upstreams: Vec<_> = states
        .into_iter()
        .map(|(name, state)| {
            let health = health.remove(&name).unwrap_or_default();
            let calls = sums.remove(&name).unwrap_or_default();
            UpstreamCallStatistics { name, state, health, calls }
        })
        .collect();
    upstreams.sort_by_key(|one| !one.is_down());
    let counted_from = since.filter(|_| called.is_ok());
    UpstreamCallReport { upstreams, counted_from, owners }
}
