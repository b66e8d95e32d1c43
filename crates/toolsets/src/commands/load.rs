//! Loads declared commands from TOML, with the exact location of each error.

use std::collections::BTreeMap;
use std::fmt;
use std::io::Read as _;
use std::ops::Range;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use serde::de::DeserializeOwned;
use toml::Spanned;
use toolgate_contract::fold_name;

use super::CommandSettings;
use super::declared_command::{CommandDeclarationLocation, DeclaredCommand};
use super::resolve;
use super::table::{
    CommandDeclarationTable, CommandPackFile, ConfiguredCommands, OrderedTableEntries,
};

/// The maximum size of one command pack file, in bytes.
const PACK_BYTES_MAX: u64 = 8 << 20;

/// A text that declares commands, with the path of its file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandDeclarationSource {
    /// The path of the file. Relative paths of programs start from its folder.
    pub file: PathBuf,
    /// The content of the file.
    pub text: String,
}

/// An error in the declaration of a command, with its location.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}{message}", ErrorLocationPrefix(file, *line, *column))]
pub struct CommandLoadError {
    /// The file with the error.
    pub file: PathBuf,
    /// The number of the line with the error, from 1. 0 means that the error concerns the complete
    /// file.
    pub line: usize,
    /// The column in characters, from 1.
    pub column: usize,
    /// A description of the error and its fix.
    pub message: String,
}

/// The start of an error message, displayed as `FILE:LINE:COLUMN`.
struct ErrorLocationPrefix<'p>(&'p Path, usize, usize);

impl fmt::Display for ErrorLocationPrefix<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(file, line, column) = self;
        match line {
            0 => write!(f, "{}: ", file.display()),
            line => write!(f, "{}:{line}:{column}: ", file.display()),
        }
    }
}

/// An error in a text that declares commands, with the range of bytes that it concerns.
#[derive(Debug)]
pub(super) struct CommandDeclarationError {
    pub(super) span: Range<usize>,
    pub(super) message: String,
}

impl CommandDeclarationError {
    pub(super) fn at<T>(what: &Spanned<T>, message: impl Into<String>) -> Self {
        Self { span: what.span(), message: message.into() }
    }
}

/// Loads the commands from the configuration and from the packs in `settings`.
///
/// # Errors
/// Fails at the first error in a file, or if a file cannot be read.
pub fn load_commands(
    settings: &CommandSettings,
    configuration: Option<&CommandDeclarationSource>,
) -> Result<Vec<DeclaredCommand>, CommandLoadError> {
    let base = base_folder(configuration);
    let programs = absolute_programs(settings, base);
    let mut all = Vec::new();
    if let Some(source) = configuration {
        let ConfiguredCommands { command } = parse(source)?;
        all.extend(resolve_commands(source, None, command, &programs)?);
    }
    for pack in pack_paths(settings, configuration) {
        for source in read_pack(&pack)? {
            let CommandPackFile { defaults, command } = parse(&source)?;
            all.extend(resolve_commands(&source, defaults, command, &programs)?);
        }
    }
    check_distinct(&all)?;
    Ok(all)
}

/// Returns the paths of the command packs in `settings`. Each is a file or a folder of files.
pub fn pack_paths(
    settings: &CommandSettings,
    configuration: Option<&CommandDeclarationSource>,
) -> impl Iterator<Item = PathBuf> {
    let base = base_folder(configuration).to_owned();
    settings.packs.iter().map(move |pack| base.join(pack))
}

/// Returns the folder to which relative paths in the configuration refer.
fn base_folder(configuration: Option<&CommandDeclarationSource>) -> &Path {
    configuration.and_then(|source| source.file.parent()).unwrap_or(Path::new(""))
}

/// Returns the program paths in `settings`, by program name. Relative paths are resolved against
/// the folder `base`.
fn absolute_programs(settings: &CommandSettings, base: &Path) -> BTreeMap<String, String> {
    let programs = settings.programs.iter();
    programs.map(|(name, program)| (name.clone(), absolute_program(program, base))).collect()
}

/// Resolves the path `program` against the folder `base`. A name without `/` stays unchanged.
pub(super) fn absolute_program(program: &str, base: &Path) -> String {
    if !program.contains('/') {
        return program.to_owned();
    }
    let path = std::path::absolute(base.join(program)).unwrap_or_else(|_| base.join(program));
    path.to_string_lossy().into_owned()
}

/// Reads the command pack at `path`: one file, or the `*.toml` files of a folder, sorted by name.
#[allow(clippy::disallowed_methods, reason = "the owner's own files, read once at start")]
fn read_pack(path: &Path) -> Result<Vec<CommandDeclarationSource>, CommandLoadError> {
    let unreadable = |path: &Path, err: std::io::Error| CommandLoadError {
        file: path.to_owned(),
        line: 0,
        column: 0,
        message: format!(
            "the pack cannot be read: {err}; `commands.packs` lists files, or folders of `*.toml`"
        ),
    };
    let mut files = vec![path.to_owned()];
    if path.is_dir() {
        let entries = std::fs::read_dir(path).and_then(|entries| entries.collect::<Result<_, _>>());
        let entries: Vec<std::fs::DirEntry> = entries.map_err(|err| unreadable(path, err))?;
        files = entries.iter().map(std::fs::DirEntry::path).collect();
        files.retain(|file| file.extension().is_some_and(|it| it == "toml") && file.is_file());
        files.sort();
    }
    let read = |file: PathBuf| match read_plain_text(&file) {
        Ok(text) => Ok(CommandDeclarationSource { file, text }),
        Err(err) => Err(unreadable(&file, err)),
    };
    files.into_iter().map(read).collect()
}

/// Reads the text of the regular file at `path`. Refuses pipes and devices, which could block, and
/// files larger than a command pack may be.
#[allow(clippy::disallowed_methods, reason = "the owner's own files, read once at start")]
fn read_plain_text(path: &Path) -> std::io::Result<String> {
    let invalid = |why: String| std::io::Error::new(std::io::ErrorKind::InvalidInput, why);
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
    let flags = i32::try_from(flags.bits()).unwrap_or_default();
    let file = std::fs::OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(invalid("it is not a file".to_owned()));
    }
    let mut text = String::new();
    let read = file.take(PACK_BYTES_MAX + 1).read_to_string(&mut text)?;
    if read as u64 > PACK_BYTES_MAX {
        return Err(invalid(format!("the pack has more than {PACK_BYTES_MAX} bytes")));
    }
    Ok(text)
}

fn parse<T: DeserializeOwned>(source: &CommandDeclarationSource) -> Result<T, CommandLoadError> {
    toml::from_str(&source.text).map_err(|err| {
        let message = with_suggestion(err.message());
        source.error_at(CommandDeclarationError { span: err.span().unwrap_or_default(), message })
    })
}

/// Adds the name of a similar field to serde's message about an unknown field.
fn with_suggestion(message: &str) -> String {
    let Some(rest) = message.strip_prefix("unknown field `") else { return message.to_owned() };
    let mut names = rest.split('`').step_by(2);
    let unknown = names.next().unwrap_or_default();
    let suggestion = super::suggestion(unknown, names);
    format!(
        "`{unknown}` is not a setting; {}{suggestion}",
        rest[unknown.len() + 1..].trim_start_matches(", ")
    )
}

fn resolve_commands(
    source: &CommandDeclarationSource,
    defaults: Option<Spanned<CommandDeclarationTable>>,
    command: OrderedTableEntries<CommandDeclarationTable>,
    programs: &BTreeMap<String, String>,
) -> Result<Vec<DeclaredCommand>, CommandLoadError> {
    let defaults = resolve::CommandDefaults::new(defaults).map_err(|err| source.error_at(err))?;
    let mut all = Vec::with_capacity(command.0.len());
    for (id, table) in command.0 {
        let place = source.line_column(id.span().start);
        let found = CommandDeclarationLocation {
            file: source.file.clone(),
            line: place.0,
            column: place.1,
        };
        let declared = resolve::resolve_command(&id, table, &defaults, found, programs);
        all.push(declared.map_err(|err| source.error_at(err))?);
    }
    Ok(all)
}

/// Fails if the ids of two declared commands differ only in spelling, such as `-` and `_`.
fn check_distinct(all: &[DeclaredCommand]) -> Result<(), CommandLoadError> {
    let mut seen: BTreeMap<String, &DeclaredCommand> = BTreeMap::new();
    for declared in all {
        let CommandDeclarationLocation { file, line, column } = &declared.place;
        if let Some(first) = seen.insert(fold_name(declared.id()).into_owned(), declared) {
            return Err(CommandLoadError {
                file: file.clone(),
                line: *line,
                column: *column,
                message: format!(
                    "the command `{}` is declared twice, first as `{}` at {}:{}; toolgate treats \
                     `.`, `-` and `_` as equal",
                    declared.written_id,
                    first.written_id,
                    first.place.file.display(),
                    first.place.line,
                ),
            });
        }
    }
    Ok(())
}

impl CommandDeclarationSource {
    fn error_at(&self, err: CommandDeclarationError) -> CommandLoadError {
        let CommandDeclarationError { span, message } = err;
        let (line, column) = self.line_column(span.start);
        CommandLoadError { file: self.file.clone(), line, column, message }
    }

    /// Returns the line and column of the byte offset `at` in this text. Both count from 1, and
    /// columns count characters.
    fn line_column(&self, at: usize) -> (usize, usize) {
        let before = &self.text[..self.text.floor_char_boundary(at)];
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
        (line, column)
    }
}

/// Loads a fuzzed command pack and, after the byte 0x1f in `bytes`, normalizes a fuzzed input for
/// its commands. Panics if an error names a line that the file does not have, or if a second
/// normalization changes the input.
#[cfg(any(fuzzing, test))]
pub(crate) fn check_fuzz_input(bytes: &[u8]) {
    let Ok(text) = str::from_utf8(bytes) else { return };
    let (text, input) = text.split_once('\u{1f}').unwrap_or((text, "{}"));
    let source = CommandDeclarationSource { file: "/packs/a.toml".into(), text: text.to_owned() };
    let read = parse(&source).and_then(|CommandPackFile { defaults, command }| {
        let all = resolve_commands(&source, defaults, command, &BTreeMap::new())?;
        check_distinct(&all).map(|()| all)
    });
    let configured = parse(&source).and_then(|ConfiguredCommands { command }| {
        resolve_commands(&source, None, command, &BTreeMap::new())
    });
    if let Err(err) = &configured {
        assert!(!err.to_string().is_empty());
    }
    match read {
        Err(err) => {
            let lines = text.matches('\n').count() + 1;
            assert!(err.line <= lines, "{err} in {lines} lines");
        }
        Ok(all) => {
            for declared in all {
                assert!(declared.schema().is_object());
                if let Ok(input) = toolgate_contract::exact_json::parse(input) {
                    let once = declared.normalised(input);
                    assert_eq!(declared.normalised(once.clone()), once);
                }
            }
        }
    }
}
