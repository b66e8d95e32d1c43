//! Rows of the table of benchmark results, and the performance goals of each row.

use serde_json::{Value, json};

use crate::contenders::{FLOOR, OURS};

/// One row of the table of benchmark results.
pub(crate) struct BenchResultRow {
    /// Name of the row, which also identifies the row in earlier runs.
    what: &'static str,
    unit: &'static str,
    ours: f64,
    floor: Option<f64>,
    peers: Vec<(&'static str, f64)>,
    /// Processor time per call of each server, in microseconds, with the name of the server.
    cpu: Vec<(&'static str, f64)>,
    targets: Vec<PerformanceGoal>,
    /// Curve to plot, if the row has one: the unit of its values, and pairs of a count and the
    /// value at that count.
    curve: Option<(&'static str, Vec<(f64, f64)>)>,
}

/// Performance goal that a figure of toolgate must reach.
pub(crate) enum PerformanceGoal {
    /// Goal: toolgate's figure is at least this multiple of the floor (the figure of a minimal
    /// server).
    RatioAtLeast(f64),
    /// Goal: toolgate's figure is at least this multiple of the figure of the named peer.
    PeerRatioAtLeast(&'static str, f64),
    /// Goal: toolgate's figure is at most this multiple of the floor (the figure of a minimal
    /// server).
    RatioAtMost(f64),
    /// Goal: toolgate's figure is at most this multiple of the figure of the named peer.
    PeerRatioAtMost(&'static str, f64),
    /// Goal: toolgate's processor time for a call is at most this multiple of the minimal server's.
    CpuRatioAtMost(f64),
    /// Goal: toolgate's processor time for a call is at most this multiple of the named peer's.
    PeerCpuRatioAtMost(&'static str, f64),
    /// Goal: toolgate's figure is at least the first multiple of the floor (the figure of a minimal
    /// server), or its processor time for a call is at most the second multiple of the minimal
    /// server's.
    RatioAtLeastOrCpuAtMost(f64, f64),
    /// Goal: toolgate's processor time for a call is at most this number of microseconds.
    CpuAtMost(f64),
    /// Goal: toolgate's figure exceeds the floor (the figure of a minimal server) by at most this
    /// number.
    DifferenceAtMost(f64),
    /// Goal: toolgate's figure is at most this number.
    AtMost(f64),
    /// Goal: toolgate's figure is at least this number.
    AtLeast(f64),
}

impl BenchResultRow {
    /// Returns a row with toolgate's figure `ours`. Start `unit` with a space if one is printed
    /// between number and unit.
    pub(crate) fn new(what: &'static str, unit: &'static str, ours: f64) -> Self {
        let (peers, cpu, targets) = (Vec::new(), Vec::new(), Vec::new());
        Self { what, unit, ours, floor: None, peers, cpu, targets, curve: None }
    }

    /// Sets the floor: the figure of a minimal program, or another figure to compare with.
    pub(crate) fn with_floor(self, floor: f64) -> Self {
        Self { floor: Some(floor), ..self }
    }

    /// Sets the figures of other servers, each with the name of the server.
    pub(crate) fn with_peers(self, peers: Vec<(&'static str, f64)>) -> Self {
        Self { peers, ..self }
    }

    /// Sets the processor time per call of each server, in microseconds, with the name of the
    /// server.
    pub(crate) fn with_cpu(self, cpu: Vec<(&'static str, f64)>) -> Self {
        Self { cpu, ..self }
    }

    /// Sets the curve to plot: pairs of a count and the value at that count, in `unit`.
    pub(crate) fn with_curve(self, unit: &'static str, curve: Vec<(f64, f64)>) -> Self {
        Self { curve: Some((unit, curve)), ..self }
    }

    /// Returns the unit and the points of the curve, if there is one.
    pub(crate) fn curve(&self) -> Option<(&'static str, &[(f64, f64)])> {
        self.curve.as_ref().map(|(unit, curve)| (*unit, &curve[..]))
    }

    /// Adds a performance goal to the row.
    pub(crate) fn with_target(mut self, target: PerformanceGoal) -> Self {
        self.targets.push(target);
        self
    }

    pub(crate) fn what(&self) -> &'static str {
        self.what
    }

    /// Returns true if the row has figures of other servers.
    pub(crate) fn has_peers(&self) -> bool {
        !self.peers.is_empty()
    }

    /// Returns names and figures of toolgate, of the floor (the minimal server) if it was measured,
    /// and of each other server.
    pub(crate) fn contenders(&self) -> Vec<(&'static str, f64)> {
        let floor = self.floor.map(|floor| (FLOOR, floor));
        [(OURS, self.ours)].into_iter().chain(floor).chain(self.peers.iter().copied()).collect()
    }

    /// Returns the processor time of the server `name` per call in microseconds, if it was
    /// measured.
    fn cpu_of(&self, name: &str) -> Option<f64> {
        self.cpu.iter().find(|(other, _)| *other == name).map(|(_, micros)| *micros)
    }

    /// Returns toolgate's processor time per call divided by that of the server `name`.
    fn cpu_ratio(&self, name: &str) -> Option<f64> {
        Some(self.cpu_of(OURS)? / self.cpu_of(name)?)
    }

    /// Returns the table cell with the processor time per call of toolgate, and that of the minimal
    /// server in brackets.
    fn cpu_cell(&self) -> String {
        let Some(ours) = self.cpu_of(OURS) else { return "–".to_owned() };
        match self.cpu_of(FLOOR) {
            Some(floor) => format!("{ours:.1} µs ({floor:.1} µs)"),
            None => format!("{ours:.1} µs"),
        }
    }

    /// Formats `value` with the row's unit. Values below 100 have one decimal place, others none.
    pub(crate) fn number(&self, value: f64) -> String {
        let unit = self.unit;
        if value < 100.0 { format!("{value:.1}{unit}") } else { format!("{value:.0}{unit}") }
    }

    /// Returns true if toolgate's figures in this row meet the goal `target`.
    fn is_met(&self, target: &PerformanceGoal) -> bool {
        let floor = self.floor.unwrap_or_default();
        match *target {
            PerformanceGoal::RatioAtLeast(least) => self.ours / floor >= least,
            PerformanceGoal::PeerRatioAtLeast(name, least) => {
                // A peer that was left out does not count.
                let mut figures = self.peers.iter().filter(|(peer, _)| *peer == name);
                figures.all(|(_, figure)| self.ours / figure >= least)
            }
            PerformanceGoal::RatioAtMost(most) => self.ours / floor <= most,
            PerformanceGoal::PeerRatioAtMost(name, most) => {
                let mut figures = self.peers.iter().filter(|(peer, _)| *peer == name);
                figures.all(|(_, figure)| self.ours / figure <= most)
            }
            PerformanceGoal::CpuRatioAtMost(most) => {
                self.cpu_ratio(FLOOR).is_some_and(|ratio| ratio <= most)
            }
            PerformanceGoal::PeerCpuRatioAtMost(name, most) => {
                self.cpu_ratio(name).is_none_or(|ratio| ratio <= most)
            }
            PerformanceGoal::RatioAtLeastOrCpuAtMost(least, most) => {
                self.ours / floor >= least
                    || self.cpu_ratio(FLOOR).is_some_and(|ratio| ratio <= most)
            }
            PerformanceGoal::CpuAtMost(most) => {
                self.cpu_of(OURS).is_some_and(|micros| micros <= most)
            }
            PerformanceGoal::DifferenceAtMost(most) => self.ours - floor <= most,
            PerformanceGoal::AtMost(most) => self.ours <= most,
            PerformanceGoal::AtLeast(least) => self.ours >= least,
        }
    }

    /// Returns a text about the performance goal `target` for the table of results.
    fn describe(&self, target: &PerformanceGoal) -> String {
        let unit = self.unit;
        match target {
            PerformanceGoal::RatioAtLeast(least) => format!("≥ {least} × floor"),
            PerformanceGoal::PeerRatioAtLeast(name, least) => format!("≥ {least} × {name}"),
            PerformanceGoal::RatioAtMost(most) => format!("≤ {most} × floor"),
            PerformanceGoal::PeerRatioAtMost(name, most) => format!("≤ {most} × {name}"),
            PerformanceGoal::CpuRatioAtMost(most) => format!("CPU ≤ {most} × floor"),
            PerformanceGoal::PeerCpuRatioAtMost(name, most) => format!("CPU ≤ {most} × {name}"),
            PerformanceGoal::RatioAtLeastOrCpuAtMost(least, most) => {
                format!("≥ {least} × floor or CPU ≤ {most} × floor")
            }
            PerformanceGoal::CpuAtMost(most) => format!("CPU ≤ {most} µs"),
            PerformanceGoal::DifferenceAtMost(most) => format!("≤ floor + {most}{unit}"),
            PerformanceGoal::AtMost(most) => format!("≤ {most}{unit}"),
            PerformanceGoal::AtLeast(least) => format!("≥ {least}{unit}"),
        }
    }

    /// Returns the row as a line of a Markdown table of results.
    fn line(&self) -> String {
        let none = || "–".to_owned();
        let floor = self.floor.map_or_else(none, |floor| self.number(floor));
        let ratio = self.floor.map_or_else(none, |floor| format!("{:.2}", self.ours / floor));
        let targets = match &self.targets[..] {
            [] => none(),
            all => all.iter().map(|it| self.describe(it)).collect::<Vec<_>>().join(", "),
        };
        let verdict = match self.targets.iter().filter(|it| !self.is_met(it)).count() {
            _ if self.targets.is_empty() => "",
            0 => "met",
            _ => "MISSED",
        };
        format!(
            "| {} | {} | {floor} | {ratio} | {} | {targets} | {verdict} |",
            self.what,
            self.number(self.ours),
            self.cpu_cell()
        )
    }

    /// Returns the row as a JSON object.
    pub(crate) fn json(&self) -> Value {
        let by_name = |figures: &[(&'static str, f64)]| {
            let figures = figures.iter().map(|(name, figure)| ((*name).to_owned(), json!(figure)));
            figures.collect::<serde_json::Map<_, _>>()
        };
        let targets: Vec<_> = self
            .targets
            .iter()
            .map(|it| json!({ "asked": self.describe(it), "held": self.is_met(it) }))
            .collect();
        json!({
            "what": self.what,
            "unit": self.unit.trim(),
            "toolgate": self.ours,
            "floor": self.floor,
            "peers": by_name(&self.peers),
            "cpu_us": by_name(&self.cpu),
            "asked": targets,
            "curve": self.curve.as_ref().map(|(unit, points)| json!({ "unit": unit, "points": points })),
        })
    }
}

/// Returns the Markdown table of `rows`.
pub(crate) fn table(rows: &[BenchResultRow]) -> String {
    let mut table = String::from(
        "| | toolgate | floor | ratio | server CPU per call (floor) | target | |\n|---|---|---|---|---|---|---|\n",
    );
    for row in rows {
        table.push_str(&row.line());
        table.push('\n');
    }
    table
}

/// Returns a Markdown table of the figures of other servers, each with the factor by which toolgate
/// is better.
pub(crate) fn peer_table(rows: &[BenchResultRow]) -> String {
    let mut table = String::from("| | toolgate | others |\n|---|---|---|\n");
    for row in rows.iter().filter(|row| !row.peers.is_empty()) {
        let mut peers = row.peers.clone();
        peers.sort_by(|(_, a), (_, b)| b.total_cmp(a));
        let others = peers.iter().map(|(name, figure)| {
            let times = if row.unit == "/s" { row.ours / figure } else { figure / row.ours };
            let cpu = row.cpu_of(name).map(|micros| format!(", CPU {micros:.1} µs"));
            format!("{name} {} (× {times:.1}){}", row.number(*figure), cpu.unwrap_or_default())
        });
        let others = others.collect::<Vec<_>>().join(", ");
        table.push_str(&format!("| {} | {} | {others} |\n", row.what, row.number(row.ours)));
    }
    table
}
