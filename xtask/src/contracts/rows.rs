//! Reads the requirements of the five dialect contracts from `tests/contracts/rows.tsv`, one per
//! row.

use anyhow::{Context, ensure};

use super::rows_file;

/// Contract to which a requirement belongs, or [`Self::Across`] for a requirement of all contracts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum RequirementContract {
    Synesthetic,
    Envelope,
    Workstation,
    Mira,
    Zyra,
    /// Requirements that apply to all contracts.
    Across,
}

impl RequirementContract {
    pub(crate) const ALL: [Self; 6] = [
        Self::Synesthetic,
        Self::Envelope,
        Self::Workstation,
        Self::Mira,
        Self::Zyra,
        Self::Across,
    ];

    /// Returns the prefix of the ids of the contract's requirements, such as `S0`.
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

    /// Returns the title of the contract in the generated page.
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

/// Requirement of a contract: one row of the file of requirements.
pub(crate) struct RequirementRow {
    /// Id of the requirement, e.g. `S0-23`.
    pub(crate) id: String,
    pub(crate) seed: RequirementContract,
    /// Level of the requirement: `M` for must, `S` for should, `O` for may, and `N` for a
    /// requirement that names a tool of another programming language.
    pub(crate) level: String,
    /// Summary of the requirement in a sentence.
    pub(crate) requirement: String,
    /// Replacement in this project, if the requirement names a tool of another programming
    /// language.
    pub(crate) here: Option<String>,
}

/// Ids of the requirements that only say that all others of their contract must hold.
const WHOLE: [&str; 2] = ["S0-79", "S0-82"];

impl RequirementRow {
    /// Reads all requirements from the file, in order.
    pub(crate) fn all() -> anyhow::Result<Vec<Self>> {
        let file = rows_file();
        let text = std::fs::read_to_string(&file)
            .with_context(|| format!("{} cannot be read", file.display()))?;
        text.lines().map(Self::parse).collect()
    }

    fn parse(line: &str) -> anyhow::Result<Self> {
        let fields: Vec<&str> = line.split('\t').collect();
        let (id, level, requirement) = match fields[..] {
            [id, level, requirement] | [id, level, requirement, _] => (id, level, requirement),
            _ => anyhow::bail!(
                "`{line}` is not a row: it needs an id, a level, a requirement, and optionally a replacement"
            ),
        };
        let seed = id.split('-').next().unwrap_or_default();
        let seed = RequirementContract::ALL.into_iter().find(|known| known.name() == seed);
        ensure!(["M", "S", "O", "N"].contains(&level), "`{id}` has the unknown level `{level}`");
        Ok(Self {
            id: id.to_owned(),
            seed: seed.with_context(|| format!("`{id}` belongs to no contract"))?,
            level: level.to_owned(),
            requirement: requirement.to_owned(),
            here: fields.get(3).map(|here| (*here).to_owned()),
        })
    }

    /// Returns true if the requirement only says that all others of its contract must hold.
    pub(crate) fn is_whole_seed(&self) -> bool {
        WHOLE.contains(&self.id.as_str())
    }
}
