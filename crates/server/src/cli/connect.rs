//! Connects an MCP client to a folder or to a running server (`toolgate connect`).

mod earlier_entry;
mod entry;
mod json_text;
mod listing;
mod place;
mod record;
mod settings_file;
mod toml_text;

use std::io::{BufRead, IsTerminal};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail, ensure};
use clap::builder::PossibleValuesParser;
use toolgate_contract::unified_diff;
use toolgate_host::SecretSet;
use toolgate_service::config::environment;

use super::clients::{ClientSettingsScope, KnownMcpClient};
use super::terminal_questions::ask_yes_no;
use super::{complain, print};
use earlier_entry::keep_user_additions;
use entry::{RunningServerApiKey, ServerToConnect};
use place::{ServerEntryLocation, SettingsFormat};
use record::{SettingsBeforeEdit, SettingsChangeRecord};
use settings_file::SettingsFile;

/// Number of unchanged lines that the shown diff has before and after a change.
const CONTEXT_LINES: usize = 3;

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  toolgate connect                    list the clients on this machine
  toolgate connect cursor             let Cursor start toolgate for this folder
  toolgate connect cursor --read-only
  toolgate connect claude --folder ~/src/app --print
  toolgate connect codex --url http://127.0.0.1:8000/mcp --key-env TOOLGATE_KEY
  toolgate connect cursor --remove    undo the change

The command shows how it would change the client's settings, as a diff, and asks. Comments, order
and line ends stay as they are. If the client already has an entry for toolgate, arguments and
variables that you have added to it are kept. To drop them, use --remove first.")]
pub(super) struct ConnectArgs {
    /// Client to connect; without it, list the clients on this machine
    #[arg(value_parser = PossibleValuesParser::new(KnownMcpClient::names()))]
    client: Option<String>,
    /// Folder to serve, and the project of `--scope project`
    #[arg(long, value_name = "DIR", default_value = ".")]
    folder: PathBuf,
    /// Offer only read-only tools to the client
    #[arg(long, requires = "client", conflicts_with_all = ["url", "remove"])]
    read_only: bool,
    /// Connect to the running server at this URL instead of starting one for the folder
    #[arg(long, value_name = "URL", requires = "client")]
    url: Option<String>,
    /// Environment variable that contains your key for `--url`. The client reads this variable
    #[arg(long, value_name = "NAME", requires = "url", conflicts_with = "key")]
    key_env: Option<String>,
    /// Your key for `--url`. The command writes the key into the client's settings. `-` reads the
    /// key from standard input
    #[arg(long, value_name = "KEY", requires = "url")]
    key: Option<String>,
    /// Projects in which the client uses the server. With `--url`, the default is all projects.
    /// Without `--url`, the default is this project, or all projects if the client has no settings
    /// for single projects
    #[arg(long, value_enum, requires = "client")]
    scope: Option<ClientSettingsScope>,
    /// Name of the server in the client
    #[arg(long, default_value = "toolgate", value_parser = parse_name)]
    name: String,
    /// Undo the change of an earlier run. If the settings have changed since then, only remove the
    /// server
    #[arg(long, requires = "client", conflicts_with = "url")]
    remove: bool,
    /// Print the change of the client's settings, or the entry if there is no change, and write
    /// nothing
    #[arg(long, requires = "client", conflicts_with = "yes")]
    print: bool,
    /// Write the client's settings without asking
    #[arg(long, requires = "client")]
    yes: bool,
}

pub(super) fn run(args: &ConnectArgs) -> anyhow::Result<ExitCode> {
    let Some(client) = args.client.as_deref().and_then(KnownMcpClient::find) else {
        return listing::list_clients(&args.folder);
    };
    let settings = ClientSettings::open(args, client)?;
    let place = settings.place(&args.name);
    let planned = match args.remove {
        true => settings.plan_removal(place)?,
        false => settings.plan_connection(place, args)?,
    };
    let Some(planned) = planned else { return Ok(ExitCode::SUCCESS) };
    if !args.print {
        planned.notes.iter().for_each(|note| complain(note));
    }
    print(&planned.diff(&settings.file))?;
    if args.print {
        return Ok(ExitCode::SUCCESS);
    }
    let shown = settings.file.path.display();
    if !args.yes && !confirm(&format!("Change {shown}? "))? {
        complain("nothing was changed");
        return Ok(ExitCode::FAILURE);
    }
    planned.write(&settings.file, &args.name)?;
    complain(&match args.remove {
        true => format!("the change to {shown} is undone"),
        false => format!("{shown} has the server `{}`; {}", args.name, client.next_step),
    });
    Ok(ExitCode::SUCCESS)
}

/// Settings file of the client to connect, with the scope of the server's entry.
struct ClientSettings {
    client: &'static KnownMcpClient,
    scope: ClientSettingsScope,
    /// The served folder, which is also the client's project, without symbolic links in the path.
    folder: PathBuf,
    file: SettingsFile,
}

/// A change of a client's settings file that is not written yet.
struct PlannedSettingsChange {
    /// New text of the settings file, or `None` to delete it.
    text: Option<String>,
    /// Record of the change, with which `--remove` undoes the change later.
    record: Option<SettingsChangeRecord>,
    /// Folders to delete with the settings file if they are empty, outermost first.
    folders: Vec<PathBuf>,
    /// API key of the caller that the new text contains. The printed change does not show this key.
    key: Option<String>,
    /// Notes about the change for the user, one sentence each.
    notes: Vec<String>,
}

impl ClientSettings {
    fn open(args: &ConnectArgs, client: &'static KnownMcpClient) -> anyhow::Result<Self> {
        let folder = resolve_folder(&args.folder)?;
        let default = match args.url.is_none() && client.has_scope(ClientSettingsScope::Project) {
            true => ClientSettingsScope::Project,
            false => ClientSettingsScope::User,
        };
        let scope = args.scope.unwrap_or(default);
        ensure!(
            client.has_scope(scope),
            "{} has no settings for one project; use --scope user",
            client.title
        );
        let path = client
            .settings_file(scope, &folder)
            .context("cannot find the user's settings, because HOME is not set")?;
        let project = (scope == ClientSettingsScope::Project).then_some(&*folder);
        let file = SettingsFile::read(&path, project)?;
        Ok(Self { client, scope, folder, file })
    }

    fn place<'a>(&self, name: &'a str) -> ServerEntryLocation<'a> {
        let format = SettingsFormat::of_file(&self.file.path);
        ServerEntryLocation { format, table: self.client.servers_key, name }
    }

    /// Plans the change that adds the server to the client's settings at `place`. Returns `None` if
    /// the settings already contain the same entry. Fails if the settings file is invalid.
    fn plan_connection(
        &self,
        place: ServerEntryLocation,
        args: &ConnectArgs,
    ) -> anyhow::Result<Option<PlannedSettingsChange>> {
        let target = self.target(args)?;
        let mut entry = target.entry(self.client)?;
        let current = self.file.text.as_deref();
        let shown = self.file.path.display();
        let invalid = || format!("{shown} is not changed, because it is invalid");
        let present = place.entry(current.unwrap_or_default()).with_context(invalid)?;
        let kept = present.as_ref().and_then(|present| keep_user_additions(&mut entry, present));
        if present.as_ref() == Some(&entry) {
            let kept = match !args.read_only && entry::is_read_only(&entry) {
                true => {
                    "; the server stays read-only: to change that, first run the command with \
                     --remove"
                }
                false => "",
            };
            complain(&format!("{} is already connected, in {shown}{kept}", self.client.title));
            if args.print {
                let text = place.with_entry("", &entry)?;
                print(&format!("{}\n", redact_settings(text.trim_end(), target.literal_key())))?;
            }
            return Ok(None);
        }
        let record = SettingsChangeRecord::load(&self.file.path, place.name);
        let (base, old_record) = self.base(place, record)?;
        let text = place
            .with_entry(base.as_deref().unwrap_or_default(), &entry)
            .with_context(|| format!("cannot change {shown}; add the entry by hand"))?;
        let mut record =
            SettingsChangeRecord::between(&self.file.path, place.name, base.as_deref(), &text);
        record.folders = match old_record {
            Some(old) => old.folders,
            None => self.file.missing_folders(),
        };
        let mut notes: Vec<String> = kept.into_iter().collect();
        let key = match target {
            ServerToConnect::Running { key: Some(RunningServerApiKey::Literal(key)), .. } => {
                Some(key)
            }
            ServerToConnect::Running { .. } => None,
            ServerToConnect::Program { .. } => {
                notes.extend(self.subfolder_note());
                None
            }
        };
        if key.is_some() && self.file.is_readable_by_others() {
            notes.push(format!(
                "other users can read {shown}, which gets your key; run `chmod go-r {shown}`"
            ));
        }
        let text = Some(text);
        let folders = Vec::new();
        Ok(Some(PlannedSettingsChange { text, record: Some(record), folders, key, notes }))
    }

    /// Returns a note for the user if the served folder is a subfolder of a git repository.
    fn subfolder_note(&self) -> Option<String> {
        let is_top = |folder: &&Path| folder.join(".git").symlink_metadata().is_ok();
        let top = self.folder.ancestors().find(is_top).filter(|top| *top != self.folder)?;
        let (folder, top) = (self.folder.display(), top.display());
        Some(format!(
            "the server serves only {folder}, a subfolder of the git repository {top}; to serve \
             all of the repository, use --folder {top}"
        ))
    }

    /// Returns the text of the settings without the change of an earlier `toolgate connect`, and
    /// the record of that change. Returns the unchanged text and `None` if there is no `record`.
    fn base(
        &self,
        place: ServerEntryLocation,
        record: Option<SettingsChangeRecord>,
    ) -> anyhow::Result<(Option<String>, Option<SettingsChangeRecord>)> {
        let (Some(current), Some(record)) = (&self.file.text, record) else {
            return Ok((self.file.text.clone(), None));
        };
        let base = match undo(place, &record, current) {
            Some(SettingsBeforeEdit::NoFile) => None,
            Some(SettingsBeforeEdit::Text(text)) => Some(text),
            None => Some(place.without_entry(current)?),
        };
        Ok((base, Some(record)))
    }

    /// Plans the change that removes the server at `place` from the client's settings. Returns
    /// `None` if the settings do not contain the server. Fails if the settings file is invalid.
    fn plan_removal(
        &self,
        place: ServerEntryLocation,
    ) -> anyhow::Result<Option<PlannedSettingsChange>> {
        let shown = self.file.path.display();
        let invalid = || format!("{shown} is not changed, because it is invalid");
        let current = self.file.text.as_deref();
        let is_there = place.entry(current.unwrap_or_default()).with_context(invalid)?.is_some();
        let (Some(current), true) = (current, is_there) else {
            complain(&format!("{shown} has no server `{}`", place.name));
            SettingsChangeRecord::delete(&self.file.path, place.name);
            return Ok(None);
        };
        let record = SettingsChangeRecord::load(&self.file.path, place.name);
        let undone = record.as_ref().and_then(|record| undo(place, record, current));
        let is_new_file = record.as_ref().is_some_and(|record| record.is_new_file);
        let folders = record.map(|record| record.folders).unwrap_or_default();
        let text = match undone {
            Some(SettingsBeforeEdit::NoFile) => None,
            Some(SettingsBeforeEdit::Text(text)) => Some(text),
            None if is_new_file && place.is_empty_otherwise(current)? => None,
            None => Some(
                place
                    .without_entry(current)
                    .with_context(|| format!("cannot change {shown}; remove the entry by hand"))?,
            ),
        };
        let mut notes = Vec::new();
        if let Some(text) = &text
            && place.entry(text)?.is_some()
        {
            notes.push(format!(
                "{shown} had another entry `{}` before, which is restored; to remove that entry, \
                 too, run the command again",
                place.name
            ));
        }
        Ok(Some(PlannedSettingsChange { text, record: None, folders, key: None, notes }))
    }

    /// Returns the server that the command-line options `args` describe. Reads the API key from
    /// standard input if an option says so.
    fn target(&self, args: &ConnectArgs) -> anyhow::Result<ServerToConnect> {
        let Some(url) = &args.url else {
            let text = |path: &Path| path.to_str().map(str::to_owned);
            let folder = text(&self.folder).context("the path of the folder is not UTF-8")?;
            let program = text(&program_path()?).context("the path of toolgate is not UTF-8")?;
            return Ok(ServerToConnect::Program { program, folder, read_only: args.read_only });
        };
        ensure!(
            args.key.is_none() || self.scope == ClientSettingsScope::User,
            "--key would write your key into {}, which others get with the project; use --key-env or \
             --scope user",
            self.file.path.display()
        );
        let key = match (&args.key, &args.key_env) {
            (Some(key), _) if key == "-" => Some(RunningServerApiKey::Literal(read_key()?)),
            (Some(key), _) => Some(RunningServerApiKey::Literal(key.clone())),
            (None, Some(name)) => Some(RunningServerApiKey::Variable(name.clone())),
            (None, None) => None,
        };
        Ok(ServerToConnect::Running { url: url.clone(), key })
    }
}

impl PlannedSettingsChange {
    /// Returns the planned change of `file` as a unified diff, in which recognized secrets are
    /// redacted.
    fn diff(&self, file: &SettingsFile) -> String {
        let path = file.path.to_string_lossy();
        let nothing = "/dev/null";
        let old_name = if file.text.is_some() { &*path } else { nothing };
        let new_name = if self.text.is_some() { &*path } else { nothing };
        let old = file.text.as_deref().unwrap_or_default();
        let new = self.text.as_deref().unwrap_or_default();
        let hunks = unified_diff(old, new, CONTEXT_LINES);
        if hunks.is_empty() {
            return String::new();
        }
        let diff = format!("--- {old_name}\n+++ {new_name}\n{hunks}");
        redact_settings(&diff, self.key.as_deref())
    }

    /// Writes the planned change of `file`. Before that, writes the record that can undo the
    /// change, so that an interrupted change can be undone.
    fn write(&self, file: &SettingsFile, name: &str) -> anyhow::Result<()> {
        if let Some(Err(err)) = self.record.as_ref().map(SettingsChangeRecord::store) {
            complain(&format!(
                "cannot store how to undo the change: {err:#}; `--remove` will only remove the entry"
            ));
        }
        match &self.text {
            Some(text) => file.replace(text, self.key.is_some())?,
            None => file.delete(&self.folders)?,
        }
        if self.record.is_none() {
            SettingsChangeRecord::delete(&file.path, name);
        }
        Ok(())
    }
}

/// Redacts the caller's `key` and all recognized secrets in the `text` of settings.
fn redact_settings(text: &str, key: Option<&str>) -> String {
    match key {
        Some(key) => {
            let text = text.replace(&format!("Bearer {key}"), "Bearer [redacted]");
            SecretSet::default().redact(&text).into_owned()
        }
        None => SecretSet::default().redact(text).into_owned(),
    }
}

/// Undoes the change that `record` describes in `current`, the text of a settings file. Returns
/// `None` if this is impossible, or if it would change more than the server's entry.
fn undo(
    place: ServerEntryLocation,
    record: &SettingsChangeRecord,
    current: &str,
) -> Option<SettingsBeforeEdit> {
    let undone = record.undo(current)?;
    let is_only_server = match &undone {
        SettingsBeforeEdit::NoFile => true,
        SettingsBeforeEdit::Text(text) => {
            matches!(place.is_same_otherwise(text, current), Ok(true))
        }
    };
    is_only_server.then_some(undone)
}

/// Asks the person at the terminal the yes-or-no question `question`. Returns true for yes. Fails
/// if there is no terminal.
fn confirm(question: &str) -> anyhow::Result<bool> {
    ask_yes_no(question).context(
        "this change needs a confirmation, and there is no terminal to ask; read the diff, and run \
         the command with --yes",
    )
}

/// Reads the caller's API key from standard input.
fn read_key() -> anyhow::Result<String> {
    if std::io::stdin().is_terminal() {
        complain("type or paste your key, and press Enter");
    }
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line).context("cannot read the key")?;
    Ok(line.trim().to_owned())
}

fn resolve_folder(folder: &Path) -> anyhow::Result<PathBuf> {
    let shown = folder.display();
    let resolved =
        folder.canonicalize().with_context(|| format!("cannot find the folder {shown}"))?;
    ensure!(resolved.is_dir(), "{shown} is not a folder");
    Ok(resolved)
}

/// Returns the path of this program. Prefers a path in `PATH`, because that path stays the same
/// when toolgate is updated.
fn program_path() -> anyhow::Result<PathBuf> {
    let program = std::env::current_exe().context("cannot find the path of toolgate")?;
    let search = environment().into_iter().find(|(name, _)| name == "PATH");
    let folders = search.iter().flat_map(|(_, path)| std::env::split_paths(path));
    let name = program.file_name().context("cannot find the name of toolgate")?;
    let is_same = |path: &PathBuf| {
        path.is_absolute()
            && path.canonicalize().is_ok_and(|it| Some(it) == program.canonicalize().ok())
    };
    let found = folders.map(|folder| folder.join(name)).find(is_same);
    Ok(found.unwrap_or(program))
}

/// Returns `name` if every client accepts it as the name of a server in its settings: at most 64
/// letters, digits, `-` and `_`. Fails for any other name.
fn parse_name(name: &str) -> anyhow::Result<String> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    if name.is_empty() || name.len() > 64 || !name.chars().all(is_plain) {
        bail!("use at most 64 letters, digits, `-` and `_`");
    }
    Ok(name.to_owned())
}
