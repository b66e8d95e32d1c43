//! Protected names: entries that tools can read but never change, because they contain settings of
//! programs outside the sandbox.

use toolgate_contract::printable::is_hidden;

/// A name that every workspace protects by default.
#[derive(Debug)]
pub(super) struct DefaultProtectedName {
    pub(super) name: &'static str,
    /// The program that reads settings from an entry with this name. The settings can name further
    /// programs, which this program starts.
    reader: ProtectedSettingsReader,
}

/// The program that reads settings from a protected file or folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ProtectedSettingsReader {
    Git,
    Toolgate,
    /// A program other than git and toolgate, for example an editor or an agent.
    Other,
}

/// The names that every workspace protects by default, each with the program that reads it. The
/// list includes the settings of each client of `toolgate connect`.
pub(super) const DEFAULT_PROTECTED: [DefaultProtectedName; 25] = [
    protected(".git", ProtectedSettingsReader::Git),
    protected(".toolgate", ProtectedSettingsReader::Toolgate),
    protected("toolgate.toml", ProtectedSettingsReader::Toolgate),
    protected("toolgate.lock", ProtectedSettingsReader::Toolgate),
    // Claude Code: MCP servers of a project.
    protected(".mcp.json", ProtectedSettingsReader::Other),
    // Claude Code: hooks, permissions, commands.
    protected(".claude", ProtectedSettingsReader::Other),
    // Codex: MCP servers.
    protected(".codex", ProtectedSettingsReader::Other),
    // Cursor: MCP servers, hooks.
    protected(".cursor", ProtectedSettingsReader::Other),
    // Gemini CLI: MCP servers, hooks.
    protected(".gemini", ProtectedSettingsReader::Other),
    // Qwen Code: MCP servers, hooks.
    protected(".qwen", ProtectedSettingsReader::Other),
    // Windsurf: hooks, workflows.
    protected(".windsurf", ProtectedSettingsReader::Other),
    // Zed: tasks, context servers.
    protected(".zed", ProtectedSettingsReader::Other),
    // Visual Studio Code: tasks, MCP servers.
    protected(".vscode", ProtectedSettingsReader::Other),
    // Visual Studio: tasks, MCP servers.
    protected(".vs", ProtectedSettingsReader::Other),
    // JetBrains: run configurations.
    protected(".idea", ProtectedSettingsReader::Other),
    // JetBrains Junie: MCP servers.
    protected(".junie", ProtectedSettingsReader::Other),
    // development containers: commands of their life cycle.
    protected(".devcontainer", ProtectedSettingsReader::Other),
    // Kiro: MCP servers, hooks.
    protected(".kiro", ProtectedSettingsReader::Other),
    // Amazon Q: MCP servers, agents.
    protected(".amazonq", ProtectedSettingsReader::Other),
    // Roo Code: MCP servers.
    protected(".roo", ProtectedSettingsReader::Other),
    // Cline: hooks.
    protected(".cline", ProtectedSettingsReader::Other),
    // Continue: MCP servers.
    protected(".continue", ProtectedSettingsReader::Other),
    // Several agents, and toolgate: skills.
    protected(".agents", ProtectedSettingsReader::Other),
    // opencode: plugins, commands.
    protected(".opencode", ProtectedSettingsReader::Other),
    // opencode: MCP servers, formatters.
    protected("opencode.json", ProtectedSettingsReader::Other),
];

const fn protected(name: &'static str, reader: ProtectedSettingsReader) -> DefaultProtectedName {
    DefaultProtectedName { name, reader }
}

fn default_name(name: &str) -> Option<&'static DefaultProtectedName> {
    DEFAULT_PROTECTED.iter().find(|it| it.name == name)
}

/// Returns `true` if `name` holds settings of editors or other agents and is protected by default.
pub fn is_foreign_settings(name: &str) -> bool {
    default_name(name).is_some_and(|it| it.reader == ProtectedSettingsReader::Other)
}

/// The protected name for which a directory that contains it may not be deleted, copied or moved.
/// No other default name protects such a directory.
const GIT_FOLDER: &str = ".git";

/// The protected paths of a workspace.
#[derive(Debug)]
pub(super) struct ProtectedPaths(Vec<ProtectedPath>);

/// A path that is protected from tools, and the changes that it blocks.
#[derive(Debug)]
struct ProtectedPath {
    /// The normalized names of the components of the protected path.
    names: Vec<String>,
    reach: BlockedPathOperations,
}

/// The changes that a protected path blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BlockedPathOperations {
    /// Block changes whose path contains the protected path, but not changes of a directory that
    /// contains it.
    DirectOnly,
    /// Block changes whose path contains the protected path, and deleting, copying or moving a
    /// directory that contains it.
    InTrees,
    /// Block changes whose path begins with the protected path, and deleting, copying or moving a
    /// directory that contains it.
    AtRoot,
}

impl ProtectedPaths {
    /// Protects `paths` at any depth, and the paths `at_root` at the root only. Each path is a
    /// name, or several names joined by `/`.
    ///
    /// Programs outside the sandbox read the files with the default names, except `.git`, only in
    /// the folder in which they start, and that folder is never below the root. Therefore a
    /// directory below the root that contains such a name may be deleted, copied or moved.
    pub(super) fn new(paths: &[String], at_root: &[String]) -> Self {
        let entry = |path: &str, reach| {
            let names = path_names(path).map(fold_name).collect();
            ProtectedPath { names, reach }
        };
        let anywhere = paths.iter().map(|path| {
            let shallow = path != GIT_FOLDER && default_name(path).is_some();
            let reach = if shallow {
                BlockedPathOperations::DirectOnly
            } else {
                BlockedPathOperations::InTrees
            };
            entry(path, reach)
        });
        let anchored = at_root.iter().map(|path| entry(path, BlockedPathOperations::AtRoot));
        let entries = anywhere.chain(anchored);
        let are_names = |entry: &ProtectedPath| {
            !entry.names.is_empty() && entry.names.iter().all(|name| !name.is_empty())
        };
        Self(entries.filter(are_names).collect())
    }

    /// Returns the first protected part of `path`, in the caller's spelling.
    ///
    /// The comparison is as lenient as the most lenient file system. It ignores case, invisible
    /// code points, and trailing dots and blanks (CVE-2014-9390). It also recognizes DOS short
    /// names (`GIT~1`).
    pub(super) fn find_protected<'p>(&self, path: &'p str) -> Option<&'p str> {
        find(self.0.iter(), path)
    }

    /// Returns the first component of `path` that may not be deleted, copied or moved together with
    /// a directory that contains it. The caller has already checked all directories of `path`.
    pub(super) fn find_in_tree<'p>(&self, path: &'p str) -> Option<&'p str> {
        let entries = |reach: BlockedPathOperations| {
            self.0.iter().filter(move |entry: &&ProtectedPath| entry.reach == reach)
        };
        let longest = |reach: BlockedPathOperations| {
            entries(reach).map(|entry| entry.names.len()).max().unwrap_or(0)
        };
        let in_trees = BlockedPathOperations::InTrees;
        let slashes = path.rmatch_indices('/').nth(longest(in_trees).saturating_sub(1));
        let found = find(entries(in_trees), &path[slashes.map_or(0, |(at, _)| at)..]);
        let at_root = BlockedPathOperations::AtRoot;
        let is_deep = path_names(path).count() > longest(at_root);
        found.or_else(|| if is_deep { None } else { find(entries(at_root), path) })
    }
}

fn find<'p, 'e>(
    entries: impl Iterator<Item = &'e ProtectedPath>,
    path: &'p str,
) -> Option<&'p str> {
    let written: Vec<&str> = path_names(path).collect();
    let folded: Vec<String> = written.iter().map(|name| fold_name(name)).collect();
    for ProtectedPath { names, reach } in entries {
        let mut windows = folded.windows(names.len());
        let is_found = |window: &[String]| {
            window.iter().zip(names).all(|(name, protected)| is_same_name(name, protected))
        };
        let at = match reach {
            BlockedPathOperations::AtRoot => {
                windows.next().filter(|first| is_found(first)).map(|_| 0)
            }
            BlockedPathOperations::DirectOnly | BlockedPathOperations::InTrees => {
                windows.position(is_found)
            }
        };
        if let Some(at) = at {
            return Some(written[at + names.len() - 1]);
        }
    }
    None
}

fn path_names(path: &str) -> impl Iterator<Item = &str> {
    path.split('/').filter(|name| !matches!(*name, "" | "."))
}

fn is_same_name(name: &str, protected: &str) -> bool {
    name == protected || is_short_name(name, protected)
}

/// Returns `true` if `name` is a DOS short name of `protected`: `git~1`, `mcp~1.jso`.
fn is_short_name(name: &str, protected: &str) -> bool {
    let Some((stem, number)) = name.split_once('~') else { return false };
    let long = protected.trim_start_matches('.').split('.').next().unwrap_or_default();
    let cut: String = long.chars().take(6).collect();
    stem == cut && number.starts_with(|c: char| c.is_ascii_digit())
}

/// Returns the normalized form of `name`. Two names have the same form if the most lenient file
/// system treats them as equal.
fn fold_name(name: &str) -> String {
    let seen: String = name.chars().filter(|&c| !is_invisible(c)).collect();
    let stream = seen.find(':').unwrap_or(seen.len());
    let seen = seen[..stream].trim_end_matches(|c: char| c == '.' || c.is_whitespace());
    seen.to_uppercase().to_lowercase()
}

/// Returns `true` if a name looks the same without the character `c`.
fn is_invisible(c: char) -> bool {
    is_hidden(c) || matches!(c, '\u{fe00}'..='\u{fe0f}')
}

/// Checks with fuzzed bytes that every spelling of a protected name is found, and that plain paths
/// are found only if they contain such a name. The first byte selects the spelling, and the rest is
/// the path.
#[cfg(any(fuzzing, test))]
pub(crate) fn check(bytes: &[u8]) {
    let Ok(text) = str::from_utf8(bytes) else { return };
    let protected = ProtectedPaths::new(&DEFAULT_PROTECTED.map(|it| it.name.to_owned()), &[]);
    let found = protected.find_protected(text);
    if let Some(name) = found {
        assert!(text.split('/').any(|written| written == name), "{name:?} is not in {text:?}");
    }
    let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "./_-".contains(c);
    if text.chars().all(is_plain) && !text.split('/').any(|name| name.ends_with('.')) {
        let model = text.split('/').find(|name| default_name(name).is_some());
        assert_eq!(found.is_some(), model.is_some(), "{text:?}");
    }
    let parents = text.rsplit_once('/').map_or("", |(parents, _)| parents);
    if protected.find_in_tree(text).is_some() {
        assert!(found.is_some(), "{text:?}, beneath {parents:?}");
    }
    // Tests every way to write a protected name.
    let Some((&way, rest)) = bytes.split_first() else { return };
    let name = DEFAULT_PROTECTED[usize::from(way) % DEFAULT_PROTECTED.len()].name;
    let unseen: Vec<char> = ['\u{200c}', '\u{feff}', '\u{ad}', '\t', '\u{e0020}'].into();
    let mut spelled = String::new();
    for (at, c) in name.chars().enumerate() {
        let how = rest.get(at).copied().unwrap_or_default();
        if how & 1 == 1 {
            spelled.push(unseen[usize::from(how >> 2) % unseen.len()]);
        }
        spelled.push(if how & 2 == 2 { c.to_ascii_uppercase() } else { c });
    }
    let ends = ["", ".", " ", ". .", "::$INDEX_ALLOCATION", ":x", "\u{200b}."];
    spelled += ends[rest.get(name.len()).map_or(0, |end| usize::from(*end)) % ends.len()];
    for path in [spelled.clone(), format!("a/{spelled}/b"), format!("./{spelled}//")] {
        assert!(protected.find_protected(&path).is_some(), "{path:?} is {name}");
    }
}
