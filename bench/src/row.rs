//! The lines of the table, and what is asked of each.

use serde_json::{Value, json};

use crate::contenders::{FLOOR, OURS};

/// One line of the table.
pub(crate) struct Row {
    what: &'static str,
    unit: &'static str,
    ours: f64,
    floor: Option<f64>,
    peers: Vec<(&'static str, f64)>,
    asked: Vec<Asked>,
    /// What it came to against how many there were of something, and in what.
    curve: Option<(&'static str, Vec<(f64, f64)>)>,
}

/// What is asked for.
pub(crate) enum Asked {
    /// Ours over the floor's, at least.
    Ratio(f64),
    /// Ours over a peer's, at least.
    Times(&'static str, f64),
    /// Ours over the floor's, at most.
    Within(f64),
    /// Ours less the floor's, at most.
    Over(f64),
    /// Ours, at most.
    Most(f64),
    /// Ours, at least.
    Least(f64),
}

impl Row {
    /// What ours came to; a unit has a space before it where one is written.
    pub(crate) fn new(what: &'static str, unit: &'static str, ours: f64) -> Self {
        Self { what, unit, ours, floor: None, peers: Vec::new(), asked: Vec::new(), curve: None }
    }

    /// The same beside the least that a program could do, or beside another.
    pub(crate) fn floor(self, floor: f64) -> Self {
        Self { floor: Some(floor), ..self }
    }

    /// The same beside what others came to.
    pub(crate) fn peers(self, peers: Vec<(&'static str, f64)>) -> Self {
        Self { peers, ..self }
    }

    /// The same, with how it went on the way there: counts, and what it was with so many.
    pub(crate) fn against(self, unit: &'static str, curve: Vec<(f64, f64)>) -> Self {
        Self { curve: Some((unit, curve)), ..self }
    }

    /// How it went on the way, and in what, if that was measured.
    pub(crate) fn curve(&self) -> Option<(&'static str, &[(f64, f64)])> {
        self.curve.as_ref().map(|(unit, curve)| (*unit, &curve[..]))
    }

    /// The same, of which this is asked, too.
    pub(crate) fn asked(mut self, asked: Asked) -> Self {
        self.asked.push(asked);
        self
    }

    pub(crate) fn what(&self) -> &'static str {
        self.what
    }

    /// Whether others were measured, too.
    pub(crate) fn has_peers(&self) -> bool {
        !self.peers.is_empty()
    }

    /// All that were measured, by name.
    pub(crate) fn contenders(&self) -> Vec<(&'static str, f64)> {
        let floor = self.floor.map(|floor| (FLOOR, floor));
        [(OURS, self.ours)].into_iter().chain(floor).chain(self.peers.iter().copied()).collect()
    }

    /// `value` with its unit, to as many digits as mean something.
    pub(crate) fn number(&self, value: f64) -> String {
        let unit = self.unit;
        if value < 100.0 { format!("{value:.1}{unit}") } else { format!("{value:.0}{unit}") }
    }

    fn holds(&self, asked: &Asked) -> bool {
        let floor = self.floor.unwrap_or_default();
        match *asked {
            Asked::Ratio(least) => self.ours / floor >= least,
            Asked::Times(name, least) => {
                // One that was left out holds nothing.
                let mut its = self.peers.iter().filter(|(peer, _)| *peer == name);
                its.all(|(_, its)| self.ours / its >= least)
            }
            Asked::Within(most) => self.ours / floor <= most,
            Asked::Over(most) => self.ours - floor <= most,
            Asked::Most(most) => self.ours <= most,
            Asked::Least(least) => self.ours >= least,
        }
    }

    fn told(&self, asked: &Asked) -> String {
        let unit = self.unit;
        match asked {
            Asked::Ratio(least) => format!("≥ {least} × floor"),
            Asked::Times(name, least) => format!("≥ {least} × {name}"),
            Asked::Within(most) => format!("≤ {most} × floor"),
            Asked::Over(most) => format!("≤ floor + {most}{unit}"),
            Asked::Most(most) => format!("≤ {most}{unit}"),
            Asked::Least(least) => format!("≥ {least}{unit}"),
        }
    }

    fn line(&self) -> String {
        let none = || "–".to_owned();
        let floor = self.floor.map_or_else(none, |floor| self.number(floor));
        let ratio = self.floor.map_or_else(none, |floor| format!("{:.2}", self.ours / floor));
        let asked = match &self.asked[..] {
            [] => none(),
            all => all.iter().map(|it| self.told(it)).collect::<Vec<_>>().join(", "),
        };
        let held = match self.asked.iter().filter(|it| !self.holds(it)).count() {
            _ if self.asked.is_empty() => "",
            0 => "held",
            _ => "MISSED",
        };
        format!(
            "| {} | {} | {floor} | {ratio} | {asked} | {held} |",
            self.what,
            self.number(self.ours)
        )
    }

    /// All that is known of it.
    pub(crate) fn json(&self) -> Value {
        let peers: serde_json::Map<_, _> =
            self.peers.iter().map(|(name, its)| ((*name).to_owned(), json!(its))).collect();
        let asked: Vec<_> = self
            .asked
            .iter()
            .map(|it| json!({ "asked": self.told(it), "held": self.holds(it) }))
            .collect();
        json!({
            "what": self.what,
            "unit": self.unit.trim(),
            "toolgate": self.ours,
            "floor": self.floor,
            "peers": peers,
            "asked": asked,
            "curve": self.curve.as_ref().map(|(unit, points)| json!({ "unit": unit, "points": points })),
        })
    }
}

/// The table of `rows`, and one of those that others were measured in, too.
pub(crate) fn table(rows: &[Row]) -> String {
    let mut table =
        String::from("| | toolgate | floor | ratio | target | |\n|---|---|---|---|---|---|\n");
    for row in rows {
        table.push_str(&row.line());
        table.push('\n');
    }
    table
}

/// What others came to, where they were measured: each with how many times that ours is.
pub(crate) fn beside_others(rows: &[Row]) -> String {
    let mut table = String::from("| | toolgate | others |\n|---|---|---|\n");
    for row in rows.iter().filter(|row| !row.peers.is_empty()) {
        let mut peers = row.peers.clone();
        peers.sort_by(|(_, a), (_, b)| b.total_cmp(a));
        let others = peers.iter().map(|(name, its)| {
            let times = if row.unit == "/s" { row.ours / its } else { its / row.ours };
            format!("{name} {} (× {times:.1})", row.number(*its))
        });
        let others = others.collect::<Vec<_>>().join(", ");
        table.push_str(&format!("| {} | {} | {others} |\n", row.what, row.number(row.ours)));
    }
    table
}
