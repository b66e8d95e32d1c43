//! A pack being written: commands and arguments, and how a file says them.

use serde_json::Value;

/// What an importer made of a program.
pub(super) struct Imported {
    /// The pack's name.
    pub(super) name: &'static str,
    /// The file.
    pub(super) text: String,
    /// The ids of the commands in it.
    pub(super) commands: Vec<String>,
    /// What could not be taken over, a sentence each.
    pub(super) left_out: Vec<String>,
}

/// A command to be written.
pub(super) struct Command {
    /// `stage.command`.
    pub(super) id: String,
    pub(super) about: String,
    pub(super) argv: Vec<String>,
    pub(super) artefacts: Vec<String>,
    /// Whether it takes the place of the built-in tool that has its id.
    pub(super) replaces: bool,
    pub(super) arguments: Vec<Argument>,
}

/// An argument to be written.
pub(super) struct Argument {
    pub(super) name: String,
    /// Its type note.
    pub(super) note: String,
    pub(super) about: String,
    /// What the program takes when it is absent.
    pub(super) assumed: Option<Value>,
    pub(super) aliases: Vec<String>,
    /// Whether a list follows its option, instead of an option each.
    pub(super) is_spread: bool,
    /// Whether `-` may stand for it, as a word of its own.
    pub(super) is_dash: bool,
}

impl Command {
    /// Its table.
    pub(super) fn write(&self) -> String {
        let Self { id, about, argv, artefacts, replaces, arguments } = self;
        let mut text = format!("\n[command.{}]\nabout = {}\n", string(id), string(about));
        text += &format!("argv = {}\n", strings(argv));
        if *replaces {
            text += "replaces = true\n";
        }
        if !artefacts.is_empty() {
            text += &format!("artefacts = {}\n", strings(artefacts));
        }
        if !arguments.is_empty() {
            text += &format!("[command.{}.args]\n", string(id));
        }
        for argument in arguments {
            text += &format!("{} = {}\n", argument.name, argument.write());
        }
        text
    }
}

impl Argument {
    fn write(&self) -> String {
        let Self { note, about, assumed, aliases, is_spread, is_dash, .. } = self;
        let mut fields = vec![format!("type = {}", string(note))];
        if !about.is_empty() {
            fields.push(format!("about = {}", string(about)));
        }
        if let Some(assumed) = assumed {
            fields.push(format!("assumed = {}", inline(assumed)));
        }
        if !aliases.is_empty() {
            fields.push(format!("aliases = {}", strings(aliases)));
        }
        if *is_spread {
            fields.push("many = \"spread\"".to_owned());
        }
        if *is_dash {
            fields.push("dash = \"alone\"".to_owned());
        }
        match &fields[..] {
            [_] => string(note),
            fields => format!("{{ {} }}", fields.join(", ")),
        }
    }
}

/// `text` as TOML writes it on one line: JSON's strings are TOML's, but for DEL.
pub(super) fn string(text: &str) -> String {
    Value::from(text).to_string().replace('\u{7f}', "\\u007f")
}

fn strings(texts: &[String]) -> String {
    let texts: Vec<String> = texts.iter().map(|text| string(text)).collect();
    format!("[{}]", texts.join(", "))
}

/// A value as TOML writes it on one line; there is no null in it.
fn inline(value: &Value) -> String {
    match value {
        Value::String(text) => string(text),
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(inline).collect();
            format!("[{}]", items.join(", "))
        }
        other => other.to_string(),
    }
}
