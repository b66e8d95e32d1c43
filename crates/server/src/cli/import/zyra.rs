//! Imports the commands of Zyra from the manifest that `zyra generate-manifest` writes, and from
//! the usage of each command.
//!
//! The manifest contains names, types, allowed values and defaults. Only the usage contains the
//! number of values of an option. Zyra's API also has argument aliases and two searches, which this
//! module adds.

use std::collections::BTreeMap;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::process::{Command as Process, Stdio};
use std::thread::ScopedJoinHandle;

use anyhow::{Context, bail};
use serde_json::{Map, Value};
use toolgate_contract::strip_byte_order_mark;

use super::pack::{ImportedPack, ImportedPackArgument, ImportedPackCommand};
use super::usage::{CommandUsageLine, OptionValueCount};

const HEAD: &str = r#"# Zyra's commands, as `toolgate import zyra` wrote them; edit a copy, or import again.
#
# Install the program with `pip install -r requirements.txt`, then set its path:
#   [commands]
#   packs = ["packs/zyra"]
#   programs = { zyra = "/opt/zyra/bin/zyra" }
# Credentials (AWS, Vimeo, FTP) are not passed on unless [defaults] names them in env_keep.

[defaults]
program = "zyra"
program_env = "ZYRA_PROGRAM"
deadline_ms = 600000
# matplotlib keeps its font cache in the workspace, because HOME is empty for each run.
env = { MPLBACKEND = "Agg", MPLCONFIGDIR = ".cache/matplotlib", PYTHONUNBUFFERED = "1" }
"#;

/// Alternative argument names that Zyra's API accepts for all commands (`_normalize_args`), each
/// with the name of the argument.
const ALIASES: [(&str, &str); 5] = [
    ("file", "file_or_url"),
    ("src", "input"),
    ("destination", "output"),
    ("dest", "output"),
    ("target", "output"),
];

/// Alternative argument names of single Zyra commands: each command, with pairs of an alternative
/// name and the name of the argument.
const ALIASES_OF: [(&str, &[(&str, &str)]); 9] = [
    ("process decode-grib2", &[("input", "file_or_url")]),
    (
        "process extract-variable",
        &[("input", "file_or_url"), ("var", "pattern"), ("regex", "pattern")],
    ),
    (
        "process convert-format",
        &[("input", "file_or_url"), ("output_path", "output"), ("files", "inputs")],
    ),
    ("acquire http", &[("input", "url")]),
    ("acquire ftp", &[("input", "path")]),
    (
        "acquire s3",
        &[("input", "url"), ("s3_url", "url"), ("bucket_name", "bucket"), ("object_key", "key")],
    ),
    ("decimate local", &[("output", "path"), ("output_path", "path")]),
    ("decimate s3", &[("s3_url", "url"), ("bucket_name", "bucket"), ("object_key", "key")]),
    ("decimate ftp", &[("output", "path")]),
];

/// Arguments of Zyra's commands that name a file to write.
const FILES: [&str; 6] = ["output", "to_video", "combine_to", "log_file", "state_file", "path"];
/// Arguments of Zyra's commands that name a folder to write.
const FOLDERS: [&str; 3] = ["output_dir", "sync_dir", "log_dir"];

/// The two searches of Zyra's API, which the manifest lacks. Each has an id, a description and the
/// arguments of the program.
const SEARCHES: [(&str, &str, &[&str]); 2] = [
    (
        "search.query",
        "Searches datasets in the bundled catalogue, in a profile's sources or at OGC services.",
        &["search", "--json"],
    ),
    (
        "search.semantic",
        "Searches datasets and has a language model rank and explain what is found.",
        &["search", "--json", "--semantic-analyze"],
    ),
];

/// Creates the pack of Zyra's commands from the program `from`, or from a file with its manifest.
/// The default is the program `zyra` in `PATH`.
pub(super) fn import(from: Option<&Path>) -> anyhow::Result<ImportedPack> {
    let from = from.unwrap_or(Path::new("zyra"));
    let (manifest, program) = match read_manifest(from)? {
        Some(manifest) => (manifest, None),
        None => (run_for_manifest(from)?, Some(from)),
    };
    let mut commands = Vec::new();
    let mut left_out = Vec::new();
    let mut usages = program.map_or_else(|| Ok(BTreeMap::new()), |it| usages(it, &manifest))?;
    for (words, entry) in &manifest {
        if words == "search api" {
            left_out.push("`search api`: it is not a tool of Zyra's API".to_owned());
            continue;
        }
        let usage = usages.remove(words.as_str()).flatten();
        if usage.is_none() {
            left_out.push(format!(
                "`{words}`: the number of values of its options (toolgate guesses this number)"
            ));
        }
        let usage = usage.unwrap_or_default();
        for choice in &usage.choices {
            left_out
                .push(format!("`{words}`: the rule that one of {} is required", choice.join(", ")));
        }
        commands.push(command(words, entry, &usage));
    }
    commands.extend(SEARCHES.map(|(id, about, argv)| search_command(id, about, argv)));
    commands.sort_by(|one, other| one.id.cmp(&other.id));
    let mut text = HEAD.to_owned();
    text.extend(commands.iter().map(ImportedPackCommand::to_toml));
    let commands = commands.into_iter().map(|command| command.id).collect();
    Ok(ImportedPack { name: "zyra", text, commands, left_out })
}

/// Reads Zyra's manifest of commands in the file `from`. Returns `None` if `from` does not end in
/// `.json`, and fails if the file is unusable.
#[allow(clippy::disallowed_methods, reason = "the user's own file, named on the command line")]
fn read_manifest(from: &Path) -> anyhow::Result<Option<Map<String, Value>>> {
    if from.extension().is_none_or(|it| it != "json") {
        return Ok(None);
    }
    let text = std::fs::read_to_string(from)
        .with_context(|| format!("cannot read the listing {}", from.display()))?;
    parse(&text).with_context(|| format!("in {}", from.display())).map(Some)
}

fn parse(text: &str) -> anyhow::Result<Map<String, Value>> {
    let manifest: Map<String, Value> = serde_json::from_str(strip_byte_order_mark(text))
        .context("the listing is not a JSON object of commands")?;
    if !manifest.values().all(|entry| entry["options"].is_object()) {
        bail!("the listing is not from Zyra: a command in it has no `options`");
    }
    Ok(manifest)
}

/// Runs Zyra to write its manifest of commands, and returns the manifest. Fails if Zyra fails.
#[allow(clippy::disallowed_methods, reason = "a file of our own, read once")]
fn run_for_manifest(program: &Path) -> anyhow::Result<Map<String, Value>> {
    let folder = std::env::temp_dir().join(format!("toolgate-import-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let file: PathBuf = folder.join("manifest.json");
    let words =
        ["generate-manifest", "-o"].map(Into::into).into_iter().chain([file.clone().into()]);
    let printed = run(program, words.collect());
    let text = std::fs::read_to_string(&file);
    std::fs::remove_dir_all(&folder)?;
    let text = text.with_context(|| {
        let printed = printed.as_deref().unwrap_or("nothing");
        format!("`zyra generate-manifest` wrote no listing; it printed {printed}")
    });
    printed.as_ref().map_err(|err| anyhow::anyhow!("{err:#}"))?;
    parse(&text?)
}

/// Runs `--help` of each of Zyra's commands, several in parallel, and returns the parsed usage by
/// command. `None` stands for a usage that could not be parsed.
fn usages<'m>(
    program: &Path,
    manifest: &'m Map<String, Value>,
) -> anyhow::Result<BTreeMap<&'m str, Option<CommandUsageLine>>> {
    let at_once = std::thread::available_parallelism().map_or(2, NonZero::get);
    let all: Vec<&str> = manifest.keys().map(String::as_str).collect();
    let mut usages = BTreeMap::new();
    for some in all.chunks(at_once) {
        let read = std::thread::scope(|scope| {
            let threads = some.iter().map(|words| scope.spawn(|| usage(program, words)));
            let threads: Vec<_> = threads.collect();
            threads.into_iter().map(ScopedJoinHandle::join).collect::<Vec<_>>()
        });
        for (words, usage) in some.iter().zip(read) {
            let usage = usage.map_err(|_| anyhow::anyhow!("reading the usage panicked"))?;
            usages.insert(*words, usage?);
        }
    }
    Ok(usages)
}

/// Reads the usage of the Zyra command `words` from `--help`, or from the error message if `--help`
/// fails. Returns `None` if no usage was found.
fn usage(program: &Path, words: &str) -> anyhow::Result<Option<CommandUsageLine>> {
    let words = || words.split(' ').map(Into::into);
    let help = run(program, words().chain(["--help".into()]).collect())?;
    if let Some(usage) = CommandUsageLine::parse(&help) {
        return Ok(Some(usage));
    }
    Ok(CommandUsageLine::parse(&run(program, words().collect())?))
}

/// Runs Zyra with arguments and returns its standard output and standard error.
#[allow(
    clippy::disallowed_methods,
    reason = "the program that the user named, to list its commands"
)]
fn run(program: &Path, words: Vec<std::ffi::OsString>) -> anyhow::Result<String> {
    let output = Process::new(program)
        .args(words)
        // A wide terminal prevents line breaks, even at hyphens.
        .env("COLUMNS", "10000")
        .stdin(Stdio::null())
        .output()
        .with_context(|| {
            format!("cannot run `{}`; name the program with --from", program.display())
        })?;
    let printed = [output.stdout, output.stderr].concat();
    Ok(String::from_utf8_lossy(&printed).into_owned())
}

/// Converts the command `words` of Zyra's manifest to a declared command.
fn command(words: &str, entry: &Value, usage: &CommandUsageLine) -> ImportedPackCommand {
    let (stage, name) = words.split_once(' ').unwrap_or((words, words));
    let mut argv: Vec<String> = words.split(' ').map(str::to_owned).collect();
    let mut arguments = Vec::new();
    for positional in entry["positionals"].as_array().into_iter().flatten() {
        let argument = positional_argument(positional);
        let name = &argument.name;
        argv.push(match (argument.note.contains("[]"), argument.note.ends_with('!')) {
            (true, _) => format!("{{{name}...}}"),
            (false, true) => format!("{{{name}}}"),
            (false, false) => format!("{{{name}?}}"),
        });
        arguments.push(argument);
    }
    argv.push("{options}".to_owned());
    let options = entry["options"].as_object().into_iter().flatten();
    arguments.extend(
        options
            .filter(|(option, _)| *option != "--help")
            .map(|(option, entry)| option_argument(option, entry, usage)),
    );
    add_aliases(words, &mut arguments);
    let named =
        |names: &[&str], argument: &&ImportedPackArgument| names.contains(&argument.name.as_str());
    let files = arguments.iter().filter(|argument| named(&FILES, argument));
    let files = files.filter(|argument| argument.name != "path" || words == "decimate local");
    let folders = arguments.iter().filter(|argument| named(&FOLDERS, argument));
    let artefacts = files.map(|argument| format!("{{{}?}}", argument.name));
    let artefacts = artefacts.chain(folders.map(|argument| format!("{{{}?}}/**", argument.name)));
    let about = entry["description"].as_str().unwrap_or_default();
    let about = match about.strip_prefix("zyra ") {
        Some(_) | None if about.is_empty() => format!("Runs `zyra {words}`."),
        Some(rest) if rest == words => format!("Runs `zyra {words}`."),
        Some(_) | None => about.to_owned(),
    };
    ImportedPackCommand {
        id: format!("{stage}.{name}"),
        about,
        argv,
        artefacts: artefacts.collect(),
        replaces: false,
        arguments,
    }
}

/// Converts a positional argument of Zyra's manifest.
fn positional_argument(entry: &Value) -> ImportedPackArgument {
    let is_many = matches!(entry["nargs"].as_str(), Some("*" | "+"));
    let list = if is_many { "[]" } else { "" };
    let required = if entry["required"] == true { "!" } else { "" };
    let is_choice = entry["choices"].is_array();
    ImportedPackArgument {
        name: text(&entry["name"]),
        note: format!("{}{list}{required}", type_note(entry)),
        about: text(&entry["help"]),
        default: None,
        aliases: Vec::new(),
        is_list_after_option: false,
        // A single `-` reads standard input, as in a pipe.
        accepts_dash: !is_choice,
    }
}

/// Converts an option of Zyra's manifest.
fn option_argument(option: &str, entry: &Value, usage: &CommandUsageLine) -> ImportedPackArgument {
    let help = entry.as_str().map_or_else(|| text(&entry["help"]), str::to_owned);
    let default = Some(&entry["default"]).filter(|default| !default.is_null());
    let of_default = match default.and_then(Value::as_array) {
        Some(items) if items.is_empty() => OptionValueCount::One,
        Some(items) => OptionValueCount::Exactly(items.len()),
        None if entry["type"] == "bool" => OptionValueCount::None,
        None if option == "--inputs" => OptionValueCount::Many,
        None => OptionValueCount::One,
    };
    let values = usage.options.get(option).copied().unwrap_or(of_default);
    let is_repeated = help.contains("repeat") || default.is_some_and(Value::is_array);
    let (note, is_spread) = match values {
        OptionValueCount::None => ("flag".to_owned(), false),
        OptionValueCount::One | OptionValueCount::Optional if is_repeated => {
            (format!("{}[]", type_note(entry)), false)
        }
        OptionValueCount::One | OptionValueCount::Optional => (type_note(entry), false),
        OptionValueCount::Exactly(count) => (format!("{}[{count}]", type_note(entry)), true),
        OptionValueCount::Many => (format!("{}[]", type_note(entry)), true),
    };
    let required = if entry["required"] == true { "!" } else { "" };
    let is_informative = |default: &&Value| {
        **default != false && **default != "" && default.as_array().is_none_or(|it| !it.is_empty())
    };
    ImportedPackArgument {
        name: option.trim_start_matches('-').replace('-', "_"),
        note: format!("{note}{required}"),
        about: help,
        default: default.filter(is_informative).cloned(),
        aliases: Vec::new(),
        is_list_after_option: is_spread,
        accepts_dash: false,
    }
}

/// Returns the type of one value of a Zyra argument, in the notation of command packs.
fn type_note(entry: &Value) -> String {
    if let Some(choices) = entry["choices"].as_array() {
        let choices: Vec<String> = choices.iter().map(text).collect();
        return choices.join("|");
    }
    match entry["type"].as_str() {
        Some("int") => "integer",
        Some("float") => "number",
        Some("bool") => "flag",
        Some("path") => "path",
        Some(_) | None => "string",
    }
    .to_owned()
}

fn text(value: &Value) -> String {
    value
        .as_str()
        .map_or_else(String::new, |text| text.split_whitespace().collect::<Vec<_>>().join(" "))
}

/// Adds the alternative names that Zyra's API accepts to the `arguments` of the command `words`.
fn add_aliases(words: &str, arguments: &mut [ImportedPackArgument]) {
    let own = ALIASES_OF.iter().find(|(command, _)| *command == words);
    let own = own.map_or(&[][..], |(_, aliases)| aliases);
    // A command may write to `path` instead of `output`.
    let here = |name: &'static str| {
        own.iter().find(|(alias, _)| *alias == name).map_or(name, |(_, target)| *target)
    };
    let shared = ALIASES.iter().map(|(alias, target)| (*alias, here(target)));
    for (alias, target) in own.iter().copied().chain(shared) {
        if arguments.iter().any(|argument| argument.name == alias) {
            continue;
        }
        if let Some(argument) = arguments.iter_mut().find(|argument| argument.name == target) {
            argument.aliases.push(alias.to_owned());
        }
    }
}

/// Creates the declared command for a search of Zyra's API.
fn search_command(id: &str, about: &str, argv: &[&str]) -> ImportedPackCommand {
    let argument = |name: &str, note: &str, about: &str| ImportedPackArgument {
        name: name.to_owned(),
        note: note.to_owned(),
        about: about.to_owned(),
        default: None,
        aliases: Vec::new(),
        is_list_after_option: false,
        accepts_dash: false,
    };
    let limit = ImportedPackArgument {
        default: Some(10.into()),
        ..argument("limit", "integer", "Maximum number of results.")
    };
    ImportedPackCommand {
        id: id.to_owned(),
        about: about.to_owned(),
        argv: argv.iter().copied().chain(["{options}"]).map(str::to_owned).collect(),
        artefacts: Vec::new(),
        // Zyra's clients expect Zyra's own search.
        replaces: id == "search.semantic",
        arguments: vec![
            argument("query", "string!", "What to look for in titles, keywords and descriptions."),
            limit,
            argument("profile", "string", "A bundled profile of sources, e.g. sos."),
            argument("profile_file", "path", "A JSON profile of sources."),
            argument("include_local", "flag", "Search the local catalogue besides remote sources."),
            argument("remote_only", "flag", "Search remote sources only."),
            argument("ogc_wms", "string", "The GetCapabilities URL of a WMS to search."),
            argument("ogc_records", "string", "The items URL of an OGC API - Records to search."),
            argument("offline", "flag", "Fetch nothing over the network to enrich results."),
            argument("https_only", "flag", "Probe remote sources over HTTPS only."),
        ],
    }
}
