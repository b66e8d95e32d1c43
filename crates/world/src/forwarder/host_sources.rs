//! Presets of hosts for settings: for example, `@npm` stands for the hosts that your own
//! configuration of npm names.

/// A package manager, or git, whose configuration names hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PackageHostSource {
    /// Package manager npm, whose configuration names the user's registry.
    Npm,
    /// Package manager pnpm, whose configuration names the user's registry.
    Pnpm,
    /// Yarn 1, whose configuration names the user's registry.
    Yarn,
    /// Yarn 2 and newer, whose configuration names the user's registry.
    ModernYarn,
    /// Package manager pip, whose configuration names the user's package index.
    Pip,
    /// Package manager uv, whose configuration names the user's package index.
    Uv,
    /// Package manager cargo, whose configuration names the user's registry.
    Cargo,
    /// Go, whose configuration names the user's module proxies and checksum database.
    Go,
    /// Maven, whose configuration names the user's repositories.
    Maven,
    /// NuGet, whose configuration names the user's package sources.
    Nuget,
    /// Package manager apt, whose configuration names the machine's package sources.
    Apt,
    /// Git, whose configuration names the remotes of the workspace's repository.
    Git,
}

/// The presets that settings can name instead of hosts, each with the package managers that are
/// asked for its hosts.
const PRESETS: [(&str, &[PackageHostSource]); 8] = [
    (
        "@npm",
        &[
            PackageHostSource::Npm,
            PackageHostSource::Pnpm,
            PackageHostSource::Yarn,
            PackageHostSource::ModernYarn,
        ],
    ),
    ("@pypi", &[PackageHostSource::Pip, PackageHostSource::Uv]),
    ("@cargo", &[PackageHostSource::Cargo]),
    ("@go", &[PackageHostSource::Go]),
    ("@maven", &[PackageHostSource::Maven]),
    ("@nuget", &[PackageHostSource::Nuget]),
    ("@debian", &[PackageHostSource::Apt]),
    ("@git", &[PackageHostSource::Git]),
];

impl PackageHostSource {
    /// Returns the package managers that the preset `text` asks for hosts.
    ///
    /// # Errors
    /// A sentence that lists the presets, if `text` is none of them.
    pub(super) fn parse_preset(text: &str) -> Result<&'static [Self], String> {
        let known = PRESETS.iter().find(|(name, _)| *name == text);
        known.map(|(_, sources)| *sources).ok_or_else(|| {
            let names = PRESETS.map(|(name, _)| name).join(", ");
            format!("{text:?} is not a preset of hosts; the presets are {names}")
        })
    }

    /// Returns the name of the executable of the package manager.
    pub fn name(self) -> &'static str {
        match self {
            Self::Npm => "npm",
            Self::Pnpm => "pnpm",
            Self::Yarn => "yarn",
            Self::ModernYarn => "yarn (2 or newer)",
            Self::Pip => "pip",
            Self::Uv => "uv",
            Self::Cargo => "cargo",
            Self::Go => "go",
            Self::Maven => "Maven",
            Self::Nuget => "NuGet",
            Self::Apt => "apt",
            Self::Git => "git",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_preset_is_refused_with_a_list_of_the_presets() {
        assert_eq!(PackageHostSource::parse_preset("@cargo"), Ok(&[PackageHostSource::Cargo][..]));
        for text in ["@crates", "@", "@NPM", "@npm:443"] {
            let refusal = PackageHostSource::parse_preset(text).unwrap_err();
            assert!(refusal.contains("@npm, @pypi, @cargo, @go, @maven, @nuget"), "{refusal}");
        }
    }
}
