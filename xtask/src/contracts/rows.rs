//! The requirements of the five contracts, a row each, as `tests/contracts/rows.tsv` has them.

use anyhow::{Context, ensure};

use super::rows_file;

/// Which contract a row is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Seed {
    Synesthetic,
    Envelope,
    Workstation,
    Mira,
    Zyra,
    /// None: what holds across them.
    Across,
}

impl Seed {
    pub(crate) const ALL: [Self; 6] = [
        Self::Synesthetic,
        Self::Envelope,
        Self::Workstation,
        Self::Mira,
        Self::Zyra,
        Self::Across,
    ];

    /// What its rows begin with.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Synesthetic => "S0",
            Self::Envelope => "S1",
            Self::Workstation => "S2",
            Self::Mira => "S3",
            Self::Zyra => "S4",
            Self::Across => "X",
        }
    }

    /// What it is, for people.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Synesthetic => "Synesthetic",
            Self::Envelope => "Envelope",
            Self::Workstation => "Workstation",
            Self::Mira => "Mira",
            Self::Zyra => "Zyra",
            Self::Across => "Across the contracts",
        }
    }
}

/// One requirement.
pub(crate) struct Row {
    /// E.g. `S0-23`.
    pub(crate) id: String,
    pub(crate) seed: Seed,
    /// `M` it must, `S` it should, `O` it may; `N` it names a tool of another language.
    pub(crate) level: String,
    /// What it asks, shortened.
    pub(crate) asks: String,
    /// What stands for it here, where it names what only another language has.
    pub(crate) here: Option<String>,
}

/// The rows that ask that all others of their contract hold.
const WHOLE: [&str; 2] = ["S0-79", "S0-82"];

impl Row {
    /// All rows, in order.
    pub(crate) fn all() -> anyhow::Result<Vec<Self>> {
        let file = rows_file();
        let text = std::fs::read_to_string(&file)
            .with_context(|| format!("{} cannot be read", file.display()))?;
        text.lines().map(Self::read).collect()
    }

    fn read(line: &str) -> anyhow::Result<Self> {
        let fields: Vec<&str> = line.split('\t').collect();
        let (id, level, asks) = match fields[..] {
            [id, level, asks] | [id, level, asks, _] => (id, level, asks),
            _ => anyhow::bail!(
                "`{line}` is not a row: it needs an id, a level, a requirement, and optionally a replacement"
            ),
        };
        let seed = id.split('-').next().unwrap_or_default();
        let seed = Seed::ALL.into_iter().find(|one| one.name() == seed);
        ensure!(["M", "S", "O", "N"].contains(&level), "`{id}` has the unknown level `{level}`");
        Ok(Self {
            id: id.to_owned(),
            seed: seed.with_context(|| format!("`{id}` belongs to no contract"))?,
            level: level.to_owned(),
            asks: asks.to_owned(),
            here: fields.get(3).map(|here| (*here).to_owned()),
        })
    }

    /// Whether it asks that all others of its contract hold, and nothing else.
    pub(crate) fn is_whole_seed(&self) -> bool {
        WHOLE.contains(&self.id.as_str())
    }
}
