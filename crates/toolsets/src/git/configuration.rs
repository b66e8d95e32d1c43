//! Selects the git settings that apply, and disables settings that make git run programs.
//!
//! A git configuration can name programs: hooks, filters, drivers, pagers and signers. The user's
//! own configuration supplies the identity and a few preferences. A repository's configuration
//! applies completely, except settings that run programs.

use std::ffi::OsString;

/// Git settings that every git command receives. They take precedence over every configuration
/// file.
const FORCED_SETTINGS: [(&str, &str); 25] = [
    ("core.fsmonitor", "false"),
    ("core.pager", "cat"),
    ("core.editor", "false"),
    ("sequence.editor", "false"),
    ("core.askPass", ""),
    ("core.sshCommand", "false"),
    ("core.alternateRefsCommand", "false"),
    ("credential.helper", ""),
    ("protocol.allow", "never"),
    ("commit.gpgSign", "false"),
    ("tag.gpgSign", "false"),
    ("log.showSignature", "false"),
    ("gpg.program", "false"),
    ("gpg.ssh.program", "false"),
    ("gpg.x509.program", "false"),
    ("diff.ignoreSubmodules", "dirty"),
    ("status.submoduleSummary", "false"),
    ("submodule.recurse", "false"),
    ("fetch.recurseSubmodules", "false"),
    ("gc.auto", "0"),
    ("maintenance.auto", "false"),
    ("mailmap.file", ""),
    ("color.ui", "false"),
    ("column.ui", "never"),
    // A folder inside a repository that looks like a bare repository is not one.
    ("safe.bareRepository", "explicit"),
];

/// The default values of git settings that change how git prints paths and differences. They take
/// precedence over every configuration file, so that results have one format in all repositories.
const PRINT_SETTINGS: [(&str, &str); 19] = [
    ("core.quotePath", "false"),
    ("color.diff", "false"),
    ("log.showRoot", "true"),
    ("i18n.logOutputEncoding", "UTF-8"),
    ("diff.noprefix", "false"),
    ("diff.mnemonicPrefix", "false"),
    ("diff.srcPrefix", "a/"),
    ("diff.dstPrefix", "b/"),
    ("diff.relative", "false"),
    ("diff.renames", "true"),
    ("diff.renameLimit", "1000"),
    ("diff.context", "3"),
    ("diff.interHunkContext", "0"),
    ("diff.orderFile", "/dev/null"),
    ("diff.suppressBlankEmpty", "false"),
    ("diff.autoRefreshIndex", "true"),
    ("diff.indentHeuristic", "true"),
    ("diff.statNameWidth", "0"),
    ("diff.statGraphWidth", "0"),
];

/// The keys that apply from the user's and the system's git configuration. All other keys of these
/// configurations are ignored.
const INHERITED_KEYS: [&str; 15] = [
    "user.name",
    "user.email",
    "user.useconfigonly",
    "author.name",
    "author.email",
    "committer.name",
    "committer.email",
    "safe.directory",
    "core.autocrlf",
    "core.eol",
    "core.safecrlf",
    "core.excludesfile",
    "i18n.commitencoding",
    "merge.conflictstyle",
    "diff.algorithm",
];

/// A git configuration as `git config --list --show-scope -z` prints it.
#[derive(Debug, Default)]
pub(super) struct GitConfig {
    entries: Vec<GitConfigEntry>,
}

/// An entry of a git configuration: its origin, key and value.
#[derive(Debug)]
struct GitConfigEntry {
    /// True if the entry comes from the repository. False if it comes from the user or the system.
    is_from_repository: bool,
    key: String,
    /// The value of the entry. `None` for a key without a value, which git interprets as true.
    value: Option<String>,
}

/// The kinds of programs that the settings allow git to run.
#[derive(Debug, Clone, Copy)]
pub(super) struct AllowedGitPrograms {
    pub(super) hooks: bool,
    pub(super) filters: bool,
}

impl GitConfig {
    /// Parses the fields that `git config` prints: alternately a scope, and a `key\nvalue` text.
    pub(super) fn parse(fields: &[String]) -> Self {
        let entries = fields.chunks_exact(2).map(|pair| {
            let (key, value) = match pair[1].split_once('\n') {
                Some((key, value)) => (key, Some(value.to_owned())),
                None => (pair[1].as_str(), None),
            };
            let is_from_repository = matches!(pair[0].as_str(), "local" | "worktree");
            GitConfigEntry { is_from_repository, key: key.to_owned(), value }
        });
        Self { entries: entries.collect() }
    }

    /// Returns the value of `key` in the repository's own configuration. Returns `None` if `key` is
    /// not set there.
    pub(super) fn repository_value(&self, key: &str) -> Option<&str> {
        let mut entries = self.entries.iter().rev();
        entries.find(|entry| entry.is_from_repository && entry.key == key)?.value.as_deref()
    }

    /// Returns the first key that is not valid UTF-8, with the invalid bytes replaced. toolgate
    /// cannot override such a key, because the exact name is lost.
    pub(super) fn first_invalid_key(&self) -> Option<&str> {
        let mut keys = self.entries.iter().map(|entry| entry.key.as_str());
        keys.find(|key| key.contains(char::REPLACEMENT_CHARACTER))
    }

    /// Returns the names of all git filters that the configuration defines.
    pub(super) fn filter_names(&self) -> Vec<String> {
        let mut names = Vec::new();
        for entry in &self.entries {
            let is_program = ["clean", "smudge", "process"].contains(&key_name(&entry.key));
            if let Some(name) = subsection(&entry.key, "filter").filter(|_| is_program)
                && entry.value.as_ref().is_some_and(|value| !value.is_empty())
                && !names.iter().any(|known| known == name)
            {
                names.push(name.to_owned());
            }
        }
        names
    }

    /// Returns the git settings that toolgate passes to git: the user's settings that apply, and
    /// settings that stop the configuration from running programs that are not `allowed`.
    pub(super) fn overrides(&self, allowed: AllowedGitPrograms) -> Vec<(OsString, OsString)> {
        let mut all: Vec<(OsString, OsString)> = Vec::new();
        let mut put = |key: &str, value: &str| all.push((key.into(), value.into()));
        for GitConfigEntry { is_from_repository, key, value } in &self.entries {
            let is_hook = key == "core.hookspath" || subsection(key, "hook").is_some();
            let is_filter = subsection(key, "filter").is_some();
            let passes = INHERITED_KEYS.contains(&key.as_str())
                || allowed.hooks && is_hook
                || allowed.filters && is_filter;
            if !is_from_repository && passes && !self.is_set_by_repository(key) {
                put(key, value.as_deref().unwrap_or("true"));
            }
        }
        for (key, value) in FORCED_SETTINGS.into_iter().chain(PRINT_SETTINGS) {
            put(key, value);
        }
        if !allowed.hooks {
            put("core.hooksPath", "/dev/null");
        }
        for GitConfigEntry { key, .. } in
            self.entries.iter().filter(|entry| entry.is_from_repository)
        {
            match (key.split('.').next().unwrap_or_default(), key_name(key)) {
                ("filter", "clean" | "smudge" | "process") if !allowed.filters => put(key, ""),
                ("filter", "required") if !allowed.filters => put(key, "false"),
                // A failing merge driver causes a conflict, so no program merges the file.
                ("merge", "driver") if subsection(key, "merge").is_some() => put(key, "false"),
                // Program that compares one kind of file; `--no-textconv` covers the other kind.
                ("diff", "command") if subsection(key, "diff").is_some() => put(key, "false"),
                // The content of a file, or an attribute, decides if it is binary.
                ("diff", "binary") if subsection(key, "diff").is_some() => put(key, "auto"),
                ("hook", "command") if !allowed.hooks => {
                    if let Some(name) = subsection(key, "hook") {
                        put(&format!("hook.{name}.enabled"), "false");
                    }
                }
                _ => {}
            }
        }
        all
    }

    /// Returns true if the repository's own configuration sets `key` and therefore takes precedence
    /// over the user's. Always returns false for `safe.directory`, which only a user may set.
    fn is_set_by_repository(&self, key: &str) -> bool {
        key != "safe.directory"
            && self.entries.iter().any(|entry| entry.is_from_repository && entry.key == key)
    }
}

/// Returns the variable name of a configuration key, which is the text after the last dot.
fn key_name(key: &str) -> &str {
    key.rsplit('.').next().unwrap_or_default()
}

/// Returns the subsection of the configuration key `key`: `x` in `filter.x.clean`, if `section` is
/// `filter`.
fn subsection<'k>(key: &'k str, section: &str) -> Option<&'k str> {
    let rest = key.strip_prefix(section)?.strip_prefix('.')?;
    rest.rsplit_once('.').map(|(middle, _)| middle)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(entries: &[(&str, &str, &str)]) -> GitConfig {
        let fields = entries
            .iter()
            .flat_map(|(scope, key, value)| [(*scope).to_owned(), format!("{key}\n{value}")]);
        GitConfig::parse(&fields.collect::<Vec<_>>())
    }

    fn overrides(config: &GitConfig, allowed: AllowedGitPrograms, key: &str) -> Vec<String> {
        let all = config.overrides(allowed).into_iter().filter(|(name, _)| name == key);
        all.map(|(_, value)| value.to_string_lossy().into_owned()).collect()
    }

    const NOTHING: AllowedGitPrograms = AllowedGitPrograms { hooks: false, filters: false };
    const ALL: AllowedGitPrograms = AllowedGitPrograms { hooks: true, filters: true };

    #[test]
    fn the_user_s_name_applies_unless_the_repository_sets_its_own() {
        let mut entries = vec![("global", "user.name", "Ada"), ("global", "core.pager", "less")];
        let config = parsed(&entries);
        assert_eq!(overrides(&config, NOTHING, "user.name"), ["Ada"]);
        assert_eq!(overrides(&config, NOTHING, "core.pager"), ["cat"]);
        entries.push(("local", "user.name", "Bob"));
        assert!(overrides(&parsed(&entries), NOTHING, "user.name").is_empty());
    }

    #[test]
    fn safe_directory_is_taken_from_the_user_only() {
        let both = [("system", "safe.directory", "*"), ("local", "safe.directory", "/x")];
        assert_eq!(overrides(&parsed(&both), NOTHING, "safe.directory"), ["*"]);
    }

    #[test]
    fn programs_that_a_repository_configures_are_overridden() {
        let config = parsed(&[
            ("local", "filter.a.b=c.clean", "touch x"),
            ("local", "filter.a.b=c.required", "true"),
            ("local", "merge.mine.driver", "touch x"),
            ("local", "merge.conflictstyle", "diff3"),
            ("local", "diff.odt.command", "touch x"),
            ("local", "hook.lint.command", "touch x"),
            ("global", "filter.lfs.process", "git-lfs filter-process"),
        ]);
        assert_eq!(config.filter_names(), ["a.b=c", "lfs"]);
        assert_eq!(overrides(&config, NOTHING, "filter.a.b=c.clean"), [""]);
        assert_eq!(overrides(&config, NOTHING, "filter.a.b=c.required"), ["false"]);
        assert_eq!(overrides(&config, NOTHING, "merge.mine.driver"), ["false"]);
        assert_eq!(overrides(&config, NOTHING, "diff.odt.command"), ["false"]);
        assert_eq!(overrides(&config, NOTHING, "hook.lint.enabled"), ["false"]);
        assert_eq!(overrides(&config, NOTHING, "core.hooksPath"), ["/dev/null"]);
        assert!(overrides(&config, NOTHING, "filter.lfs.process").is_empty());
        assert_eq!(overrides(&config, ALL, "filter.lfs.process"), ["git-lfs filter-process"]);
        assert!(overrides(&config, ALL, "filter.a.b=c.clean").is_empty());
        assert!(overrides(&config, ALL, "core.hooksPath").is_empty());
        assert_eq!(overrides(&config, ALL, "merge.mine.driver"), ["false"]);
    }

    #[test]
    fn settings_that_change_the_form_of_a_diff_are_overridden() {
        let config = parsed(&[
            ("global", "core.quotepath", "true"),
            ("local", "core.quotepath", "true"),
            ("local", "diff.context", "0"),
            ("local", "diff.notes.binary", "true"),
        ]);
        assert!(overrides(&config, NOTHING, "core.quotepath").is_empty());
        assert_eq!(overrides(&config, NOTHING, "core.quotePath"), ["false"]);
        assert_eq!(overrides(&config, NOTHING, "diff.context"), ["3"]);
        assert_eq!(overrides(&config, NOTHING, "diff.notes.binary"), ["auto"]);
    }
}
